# SPDX-License-Identifier: Apache-2.0
"""What operators ask of agents: cordon, uncordon, drain. Transactions, and what has to be told to the agent."""

from __future__ import annotations

from sqlalchemy import Connection

from corral.control.settle import SECOND
from corral.model.errors import NotFound, Refused
from corral.model.ids import AgentId
from corral.model.records import Agent, Hold
from corral.model.states import AgentState, ProvisionState
from corral.store.repo import agents
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import now
from corral.wire.messages import Drain

STATIC = "static"
UNHURRIED = 30 * 86400.0
"""Seconds told to a draining agent whose job may take its time: the job's own timeout ends it earlier."""


def cordon(connection: Connection, agent_id: AgentId, by: str) -> Agent:
    """Nothing is offered to it any more; the job in hand goes on. A drain becomes a cordon only by uncordoning first.

    :raises NotFound: no such agent. :raises Refused: it has ended, or is draining.
    """
    agent = _living(connection, agent_id)
    if agent.hold is Hold.DRAIN:
        raise Refused(f"agent {agent_id} is draining already; to keep it: corral agents uncordon {agent_id}")
    if agent.hold is None:
        agents.hold(connection, agent_id, Hold.CORDON, by=by)
    return _living(connection, agent_id)


def uncordon(connection: Connection, agent_id: AgentId) -> Agent:
    """Take back an operator's hold, and Corral's own cordon of a static agent.

    :raises NotFound: no such agent. :raises Refused: it has ended, or its instance is being given back.
    """
    agent = _living(connection, agent_id)
    provision = provisions_rows.get(connection, agent_id)
    leaving = provision is not None and provision.state not in (ProvisionState.REQUESTED, ProvisionState.ACTIVE)
    if leaving or (provision is not None and agent.cordon_reason is not None):
        raise Refused(
            f"agent {agent_id} is being given back ({agent.cordon_reason or 'released'}); nothing brings it back"
        )
    agents.unhold(connection, agent_id)
    if agent.kind == STATIC:
        agents.uncordon(connection, agent_id)
    return _living(connection, agent_id)


def drain(connection: Connection, agent_id: AgentId, by: str, hand_back_after: float | None) -> Agent:
    """As a cordon; and after the job in hand its instance is given back, or the static agent ends. Asked again, the
    earlier time to hand the job back counts.

    :raises NotFound: no such agent. :raises Refused: it has ended.
    """
    agent = _living(connection, agent_id)
    limit = None if hand_back_after is None else now(connection) + int(hand_back_after * SECOND)
    limits = [each for each in (limit, agent.hand_back_at) if each is not None]
    agents.hold(connection, agent_id, Hold.DRAIN, by=by, hand_back_at=min(limits, default=None))
    return _living(connection, agent_id)


def drain_message(agent: Agent, moment: int) -> Drain:
    """What a draining agent is told, now and whenever it registers again. ``moment``: now, microseconds."""
    left = UNHURRIED if agent.hand_back_at is None else max(0.0, (agent.hand_back_at - moment) / SECOND)
    return Drain(reason="an operator drains this agent", deadline=left)


def _living(connection: Connection, agent_id: AgentId) -> Agent:
    agent = agents.get(connection, agent_id)
    if agent is None:
        raise NotFound(f"no agent {agent_id}")
    if agent.state is AgentState.ENDED:
        raise Refused(f"agent {agent_id} has ended")
    return agent
