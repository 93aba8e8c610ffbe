# SPDX-License-Identifier: Apache-2.0
"""``corral runs``: what ran, or one run with its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from corral.cli.finding import find_run
from corral.cli.options import AsJson, StateDir, Url, with_client
from corral.cli.output import moment, table, write, write_json
from corral.cli.summary import run_lines, run_state, step_table
from corral.model.ids import JobId

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import JobView, RunView


def command(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[show] RUN", help="Id of a run, the beginning of one, or 'latest'; after 'show' with its steps."
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="Runs to list.")] = 20,
    provisioning: Annotated[
        bool, typer.Option("--provisioning", help="List the runs that make and destroy instances, instead of yours.")
    ] = False,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the runs, newest first, or show one with its jobs.

    `corral runs show RUN` adds the steps of each job: how they ended, how long they took, how much they printed, and
    whether any of that is missing.
    """
    run, detailed = _asked(words or [])

    async def listed(client: Client) -> tuple[RunView, ...]:
        return (await client.runs(limit=limit, provisioning=provisioning)).items

    async def one(client: Client) -> RunView:
        return await find_run(client, str(run))

    async def whole(client: Client) -> tuple[RunView, tuple[JobView, ...]]:
        view = await find_run(client, str(run))
        return view, tuple([await client.job(JobId(job.id)) for job in view.jobs])

    if run is not None and detailed:
        view, jobs = with_client(context, state_dir, url, whole)
        if as_json:
            write_json(msgspec.structs.replace(view, jobs=jobs))
        else:
            write(run_lines(view))
            write("")
            write(step_table(jobs))
        return
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


def _asked(words: list[str]) -> tuple[str | None, bool]:
    """(the run, whether with its steps). :raises BadParameter: more words than one run."""
    detailed = len(words) > 1 and words[0] == "show"
    rest = words[1:] if detailed else words
    if len(rest) > 1:
        raise typer.BadParameter(f"one run at a time, not {', '.join(rest)}")
    return (rest[0] if rest else None), detailed


def _list(runs: tuple[RunView, ...]) -> str:
    rows = [
        (
            run.id,
            run_state(run) + (f", again {run.original}" if run.original else ""),
            run.workflow,
            f"{run.jobs_finished}/{run.jobs_total}",
            moment(run.created_at),
            run.title,
        )
        for run in runs
    ]
    return table(("RUN", "STATE", "WORKFLOW", "JOBS", "CREATED", "TITLE"), rows)
