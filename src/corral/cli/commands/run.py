# SPDX-License-Identifier: Apache-2.0
"""``corral run``: the workflows of a work tree, here and now."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.interrupts import ending_cleanly
from corral.cli.options import AsJson, MaxAgents, StateDir
from corral.cli.wired import wiring_of

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import RunView

Tree = Annotated[
    Path, typer.Argument(metavar="PATH", help="A git work tree, or a directory inside one.", show_default=False)
]
Workflow = Annotated[str, typer.Option("--workflow", "-w", help="The workflow; needed where there are several.")]
Jobs = Annotated[list[str] | None, typer.Option("--job", "-j", help="Only this job, with all it needs; repeatable.")]
Env = Annotated[
    list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="A variable of every job; repeatable.")
]
Secrets = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="NAME[=@FILE|=-]",
        help="A secret: from the environment, a file, or standard input; repeatable.",
    ),
]


def command(
    context: typer.Context,
    path: Tree = Path(),
    workflow: Workflow = "",
    job: Jobs = None,
    env: Env = None,
    secret: Secrets = None,
    max_agents: MaxAgents = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Run a workflow of a git work tree on this machine.

    Uncommitted changes are included. Ctrl-C cancels the run gracefully; a second one kills it. Records and logs
    stay in the state directory.
    """
    from corral.cli.executing import Wanted, prepared, run_here, submit
    from corral.cli.inputs import secrets, variables
    from corral.cli.statedir import default_state_dir, refuse_held

    place = (state_dir or default_state_dir()).absolute()
    refuse_held(place)
    wanted = Wanted(
        path=path,
        workflow=workflow,
        jobs=tuple(job or ()),
        env=variables(env or ()),
        secrets=secrets(secret or ()),
    )
    with ending_cleanly(), prepared(wanted) as (new, source):

        async def begin(client: Client) -> RunView:
            return await submit(client, new, source)

        code = asyncio.run(
            run_here(
                wiring_of(context),
                place,
                begin,
                max_agents=max_agents,
                as_json=as_json,
                shown_dir=state_dir,
            )
        )
    raise typer.Exit(code)
