# SPDX-License-Identifier: Apache-2.0
"""``corral diagnose``: what is wrong here, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.options import AsJson, StateDir, Url, with_client
from corral.cli.output import clean, write_json

if TYPE_CHECKING:
    from rich.text import Text

    from corral.client import Client
    from corral.model.views import DiagnoseRow, DiagnoseView

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "bold red"), "skipped": ("-", "dim")}
EXITS = {"ok": 0, "warning": 1, "failed": 2}


def command(
    context: typer.Context,
    only: Annotated[
        str, typer.Option("--only", metavar="NAME", help="One check, the beginning of its name, or a group.")
    ] = "",
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Check what can stand in the way of jobs, and say what to do.

    Exit code 0: all is well. 1: there are warnings. 2: something failed. Without a server it looks at the state
    directory itself.
    """

    async def work(client: Client) -> DiagnoseView:
        return await client.diagnose(only)

    view = with_client(context, state_dir, url, work)
    if as_json:
        write_json(view)
    else:
        _show(view)
    raise typer.Exit(EXITS[view.status])


def _show(view: DiagnoseView) -> None:
    """Coloured on a terminal, the same words without colour elsewhere."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    width = max(len(row.name) for row in view.rows)
    group = ""
    for row in view.rows:
        if row.group != group:
            group = row.group
            console.print(_heading(group))
        for line in _lines(row, width):
            console.print(line)
    console.print(_summary(view))


def _heading(group: str) -> Text:
    from rich.text import Text

    return Text(clean(group).capitalize(), style="bold")


def _lines(row: DiagnoseRow, width: int) -> list[Text]:
    from rich.text import Text

    mark, style = MARKS[row.status]
    name = clean(row.name).ljust(width)
    lines = [Text.assemble("  ", (mark, style), f" {name}  ", (clean(row.message), "dim" if mark == "-" else ""))]
    if row.remedy:
        lines.append(Text.assemble(" " * (width + 6), ("→ " + clean(row.remedy), "cyan")))
    return lines


def _summary(view: DiagnoseView) -> Text:
    from rich.text import Text

    count = {status: sum(1 for row in view.rows if row.status == status) for status in MARKS}
    said = f"{count['ok']} ok, {count['warning']} warnings, {count['failed']} failed, {count['skipped']} skipped"
    return Text(said, style=MARKS[view.status][1])
