# SPDX-License-Identifier: Apache-2.0
"""``corral rerun``: the same again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.commands.run import Secrets
from corral.cli.failing import say
from corral.cli.finding import find_run
from corral.cli.interrupts import ending_cleanly
from corral.cli.options import AsJson, MaxAgents, RunRef, StateDir, Url, with_client
from corral.cli.output import write, write_json
from corral.cli.wired import wiring_of
from corral.model.ids import RunId
from corral.model.views import Rerun

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import RunView


def command(
    context: typer.Context,
    run: RunRef = "latest",
    failed: Annotated[bool, typer.Option("--failed", help="Only the jobs that did not succeed.")] = False,
    secret: Secrets = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="On a server: show the run until it has ended.")
    ] = False,
    max_agents: MaxAgents = None,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Run a run again, with the same lock file and source.

    Secrets have to be given again. Where no server holds the state directory the run is executed here, as
    corral run does.
    """
    from corral.cli.executing import follow_there, run_here
    from corral.cli.inputs import secrets
    from corral.cli.statedir import default_state_dir

    how = Rerun(failed_only=failed, secrets=secrets(secret or ()))

    async def begin(client: Client) -> RunView:
        return await client.rerun(RunId((await find_run(client, run)).id), how)

    async def there(client: Client) -> int:
        view = await begin(client)
        if follow:
            return await follow_there(client, view, as_json=as_json, state_dir=state_dir, url=url)
        if as_json:
            write_json(view)
        else:
            say(f"run {view.id} runs {view.original} again")
            write(view.id)
        return 0

    directory = (state_dir or default_state_dir()).absolute()
    wiring = wiring_of(context)
    if url or wiring.live_server(directory) is not None:
        raise typer.Exit(with_client(context, state_dir, url, there))
    with ending_cleanly():
        code = asyncio.run(
            run_here(wiring, directory, begin, max_agents=max_agents, as_json=as_json, shown_dir=state_dir)
        )
    raise typer.Exit(code)
