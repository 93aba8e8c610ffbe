# SPDX-License-Identifier: Apache-2.0
"""Writes ``docs/reference/cli.md`` from the command tree; with ``--check`` only says whether it is up to date."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from generated import main

from corral.cli.app import app
from corral.cli.exits import MEANINGS

PLACE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
WIDTH = 100
HEAD = """\
# Commands

Written by `tools/cli_reference.py` from the command tree (`make docs`).

Standard output is pure data: what a command was asked for, as a table, or as JSON with `--json`. Messages and progress
go to standard error. Colours appear on a terminal only, and not with `NO_COLOR`.

A run is named by its id, by the beginning of it, or by `latest`; a job by its name in the run, by the beginning of it,
or by its id. Commands speak to the server that `--url` or `CORRAL_URL` names, with the token in `CORRAL_TOKEN` or the
one that `corral login` saved for that URL; without a URL to whatever holds the state directory (`--state-dir`,
`CORRAL_STATE_DIR`), and where nothing does, they open it themselves.

## Exit codes

| code | meaning |
|---|---|
"""


def reference() -> str:
    """The whole file."""
    codes = "".join(f"| {int(code)} | {meaning} |\n" for code, meaning in MEANINGS.items())
    return HEAD + codes + "\n" + "\n".join(_commands(typer.main.get_command(app), "corral", None))


def _commands(command: Any, name: str, parent: Any) -> Iterator[str]:
    context = command.make_context(
        name if parent is None else name.rpartition(" ")[2],
        [],
        parent=parent,
        resilient_parsing=True,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
    )
    level = "#" * len(name.split())
    if parent is not None:
        yield f"{level} {name}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    for sub in getattr(command, "commands", {}):
        yield from _commands(command.commands[sub], f"{name} {sub}", context)


if __name__ == "__main__":
    sys.exit(main(PLACE, reference))
