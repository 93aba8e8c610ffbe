# SPDX-License-Identifier: Apache-2.0
"""``corral cancel``: end a run, gracefully or by killing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.failing import say
from corral.cli.finding import find_run
from corral.cli.options import AsJson, RunRef, StateDir, Url, with_client
from corral.cli.output import write_json
from corral.cli.statedir import default_state_dir
from corral.cli.wired import wiring_of
from corral.model.ids import RunId

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import RunView


def command(
    context: typer.Context,
    run: RunRef,
    force: Annotated[bool, typer.Option("--force", help="Kill at once; cleanup steps do not run.")] = False,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a run.

    Its jobs are interrupted, run their cleanup steps, and are killed after a grace.
    """

    async def work(client: Client) -> RunView:
        return await client.cancel_run(RunId((await find_run(client, run)).id), force=force)

    view = with_client(context, state_dir, url, work)
    if as_json:
        write_json(view)
    else:
        say(f"run {view.id} is {view.state}")
    if (
        view.state == "cancelling"
        and not url
        and wiring_of(context).live_server(state_dir or default_state_dir()) is None
    ):
        say("no coordinator runs here: it ends with the next `corral run` or `corral server` on this state directory")
