# SPDX-License-Identifier: Apache-2.0
"""``corral runs``: what ran, or one run with its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.finding import find_run
from corral.cli.options import AsJson, StateDir, Url, with_client
from corral.cli.output import moment, table, write, write_json
from corral.cli.summary import run_lines, run_state

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import RunView


def command(
    context: typer.Context,
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Id of a run, the beginning of one, or 'latest': show it."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="Runs to list.")] = 20,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the runs, newest first, or show one with its jobs."""

    async def listed(client: Client) -> tuple[RunView, ...]:
        return (await client.runs(limit=limit)).items

    async def one(client: Client) -> RunView:
        return await find_run(client, str(run))

    if run is not None:
        view = with_client(context, state_dir, url, one)
        if as_json:
            write_json(view)
        else:
            write(run_lines(view))
        return
    views = with_client(context, state_dir, url, listed)
    if as_json:
        write_json(views)
    else:
        write(_list(views))


def _list(runs: tuple[RunView, ...]) -> str:
    rows = [
        (
            run.id,
            run_state(run),
            run.workflow,
            f"{run.jobs_finished}/{run.jobs_total}",
            moment(run.created_at),
            run.title,
        )
        for run in runs
    ]
    return table(("RUN", "STATE", "WORKFLOW", "JOBS", "CREATED", "TITLE"), rows)
