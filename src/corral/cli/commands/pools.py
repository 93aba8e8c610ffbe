# SPDX-License-Identifier: Apache-2.0
"""``corral pools``: where agents come from, how many there are, and what stops more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from corral.cli.options import AsJson, StateDir, Url, with_client
from corral.cli.output import table, write, write_json

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import PoolView


def command(context: typer.Context, state_dir: StateDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the pools with their agents and what stops them."""

    async def work(client: Client) -> tuple[PoolView, ...]:
        return await client.pools()

    pools = with_client(context, state_dir, url, work)
    if as_json:
        write_json(pools)
        return
    rows = [
        (
            pool.name,
            pool.backend,
            f"{pool.agents}/{pool.max_agents}",
            str(pool.idle),
            str(pool.busy),
            str(pool.queued),
            pool.isolation or "-",
            ("draining: " if pool.draining else "") + (pool.last_error or pool.waiting_reason or " ".join(pool.labels)),
        )
        for pool in pools
    ]
    write(table(("POOL", "BACKEND", "AGENTS", "IDLE", "BUSY", "QUEUED", "ISOLATION", "LABELS OR REASON"), rows))
