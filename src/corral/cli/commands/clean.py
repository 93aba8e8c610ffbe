# SPDX-License-Identifier: Apache-2.0
"""``corral clean``: remove old runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.failing import say
from corral.cli.options import AsJson, StateDir, Url, with_client
from corral.cli.output import write_json
from corral.model.errors import Fault, Invalid
from corral.model.views import Clean

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import Cleaned

KEEP = Clean()


def command(
    context: typer.Context,
    keep_runs: Annotated[int, typer.Option("--keep-runs", min=0, help="Ended runs that may stay.")] = KEEP.keep_runs,
    keep_size: Annotated[
        str, typer.Option("--keep-size", help="What their logs and sources may take: bytes, or with k, m, g, t.")
    ] = "2g",
    everything: Annotated[bool, typer.Option("--all", help="Remove every ended run.")] = False,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Remove the oldest ended runs.

    With their logs and sources, until both bounds hold. Runs that go on are never touched.
    """
    how = Clean(keep_runs=0, keep_bytes=0) if everything else Clean(keep_runs=keep_runs, keep_bytes=_size(keep_size))

    async def work(client: Client) -> Cleaned:
        return await client.clean(how)

    cleaned = with_client(context, state_dir, url, work)
    if as_json:
        write_json(cleaned)
    else:
        say(f"{cleaned.runs} runs removed, {cleaned.bytes} bytes freed")


def _size(text: str) -> int:
    from corral.cli.config import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise Invalid("--keep-size", [Fault(message=str(error))]) from None
