# SPDX-License-Identifier: Apache-2.0
"""``corral agents``: who is there to run jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from corral.cli.options import AsJson, StateDir, Url, with_client
from corral.cli.output import moment, table, write, write_json

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import AgentView


def command(context: typer.Context, state_dir: StateDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the agents whose instance is not gone, newest first."""

    async def work(client: Client) -> tuple[AgentView, ...]:
        return await client.agents()

    agents = with_client(context, state_dir, url, work)
    if as_json:
        write_json(agents)
        return
    rows = [
        (
            agent.id,
            agent.pool or "-",
            agent.state,
            agent.job_id or "-",
            moment(agent.last_seen_at),
            agent.cordon_reason or " ".join(agent.labels),
        )
        for agent in agents
    ]
    write(table(("AGENT", "POOL", "STATE", "JOB", "LAST SEEN", "LABELS OR CORDON"), rows))
