# SPDX-License-Identifier: Apache-2.0
"""``corral cluster``: what concerns the installation as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from corral.cli.failing import say
from corral.cli.options import AsJson, StateDir, Url, with_client
from corral.cli.output import write_json

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.leaks import EpochView

app = typer.Typer(
    help="What concerns the installation as a whole.", rich_markup_mode=None, add_completion=False, no_args_is_help=True
)


@app.callback()
def cluster() -> None:
    """What concerns the installation as a whole."""


@app.command("raise-epoch")
def raise_epoch(context: typer.Context, state_dir: StateDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """Make provisioners that saw a higher epoch accept this installation again.

    For a database that was restored from a copy. First make sure that no other server uses the same cluster id: it
    could destroy nothing any more.
    """

    async def work(client: Client) -> EpochView:
        return await client.raise_epoch()

    view = with_client(context, state_dir, url, work)
    if as_json:
        write_json(view)
    else:
        say(f"every event carries generation {view.generation} from the next term on; a running server begins it now")
