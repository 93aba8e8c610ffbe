# SPDX-License-Identifier: Apache-2.0
"""What a provisioner says by itself about one instance. A report may overtake every answer: it is total over the
provision's states, and never ends anything whose agent is there."""

from __future__ import annotations

import logging

from sqlalchemy import Connection

from corral.control.answers import create_failed, gone, store_provider_id
from corral.model.errors import Fault, Invalid, NotFound
from corral.model.events import EventKind, ProvisionReport
from corral.model.ids import AgentId
from corral.model.leaks import ReportView
from corral.model.pools import Backoff
from corral.model.records import Provision
from corral.model.states import AgentState, DeliveryEvent, DeliveryState, ProvisionState
from corral.runtime.clock import SECOND
from corral.store.repo import agents, deliveries
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import now
from corral.store.repo.rows import NOW

log = logging.getLogger(__name__)

SEEN_WITHIN = 120 * SECOND
"""Microseconds for which a hello says that the agent is there."""
STATES = ("accepted", "failed", "gone")
_ENDING = (ProvisionState.RELEASING, ProvisionState.ABANDONED)
_WANTED = (ProvisionState.REQUESTED, ProvisionState.ACTIVE)


def report(connection: Connection, agent_id: AgentId, said: ProvisionReport, pace: Backoff) -> ReportView:
    """:raises NotFound: no provision of a provisioner's. :raises Invalid: no such state."""
    if said.state not in STATES:
        faults = [Fault(path="state", message=f"no state {said.state!r}", remedy=f"one of {', '.join(STATES)}")]
        raise Invalid("report", faults)
    row = provisions_rows.get(connection, agent_id)
    if row is None or row.target is None:
        raise NotFound(f"no provision {agent_id} that a provisioner was asked for")
    store_provider_id(connection, agent_id, said.provider_id)
    message = _take(connection, row, said, pace)
    if message:
        log.warning("provision %s: its provisioner says %s; %s", agent_id, said.state, message)
    after = provisions_rows.get(connection, agent_id)
    assert after is not None
    return ReportView(agent_id=agent_id, state=str(after.state), taken=not message, message=message)


def _take(connection: Connection, row: Provision, said: ProvisionReport, pace: Backoff) -> str:
    """Why it changes nothing; empty: it was taken."""
    if said.state == "accepted":
        return _accepted(connection, row)
    if seen(connection, row.agent_id):
        return "its agent is here, so nothing is changed"
    return _failed(connection, row, said, pace) if said.state == "failed" else _gone(connection, row, said)


def seen(connection: Connection, agent_id: AgentId) -> bool:
    """It has a session, or said hello just now."""
    agent = agents.get(connection, agent_id)
    if agent is None:
        return False
    knocked = agent.knocked_at is not None and now(connection) - agent.knocked_at < SEEN_WITHIN
    return agent.state is AgentState.ONLINE or knocked


def _accepted(connection: Connection, row: Provision) -> str:
    """What repeats for want of an answer need not be repeated."""
    for event in deliveries.of_agent(connection, row.agent_id):
        if event.kind is EventKind.SCALE_UP and event.state is DeliveryState.PENDING and event.attempts:
            deliveries.advance(connection, event, DeliveryEvent.DELIVER)
    return ""


def _failed(connection: Connection, row: Provision, said: ProvisionReport, pace: Backoff) -> str:
    error = said.reason or "the provisioner reports a failure"
    current = provisions_rows.get(connection, row.agent_id)
    assert current is not None
    if current.state is not ProvisionState.REQUESTED:
        provisions_rows.write(connection, current, error=error)
        return "" if current.state in _ENDING else f"it is {current.state}"
    if said.retryable:
        # Another is made for the job at once: this is no failure of the pool.
        provisions_rows.write(connection, current, failed_at=NOW, error=error)
    else:
        create_failed(connection, row.agent_id, error, pace)
    return ""


def _gone(connection: Connection, row: Provision, said: ProvisionReport) -> str:
    if row.state in _WANTED:
        provisions_rows.note_ended(connection, row.agent_id, said.reason or "its provisioner says that it is gone")
        return ""
    if row.state in _ENDING:
        for event in deliveries.of_agent(connection, row.agent_id):
            late = event.id in deliveries.unresolved(connection, [row.agent_id]).get(row.agent_id, {})
            if event.kind is EventKind.SCALE_UP and late:
                return "its creation may still be under way"
        gone(connection, row.agent_id)
    return ""
