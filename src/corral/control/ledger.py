# SPDX-License-Identifier: Apache-2.0
"""What operators see of provisions, and say about those that could not be confirmed gone: the leak ledger."""

from __future__ import annotations

import logging

from sqlalchemy import Connection

from corral.control.queries import provision_story, when
from corral.model.errors import Conflict, NotFound, Refused
from corral.model.ids import AgentId
from corral.model.records import Delivery, Provision
from corral.model.states import ProvisionEvent, ProvisionState
from corral.model.views import DeliveryView, ProvisionView
from corral.runtime.clock import SECOND, rfc3339
from corral.store.repo import agents, deliveries
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import now

log = logging.getLogger(__name__)

HOUR = 3600 * SECOND


def listed(connection: Connection, *, state: str = "", pool: str = "") -> tuple[ProvisionView, ...]:
    """Newest first; without a state those that are not gone."""
    rows = provisions_rows.listed(connection, ProvisionState(state) if state else None, pool or None)
    moment = now(connection)
    return tuple(_view(row, moment) for row in rows)


def shown(connection: Connection, agent_id: AgentId) -> ProvisionView:
    """With its story and its events. :raises NotFound: no such provision."""
    row = _required(connection, agent_id)
    events = deliveries.of_agent(connection, agent_id)
    dated = provision_story(row) + [entry for event in events for entry in _told(event)]
    story = tuple(f"{rfc3339(moment)} {text}" for moment, text in sorted(dated, key=lambda entry: entry[0]))
    return _view(row, now(connection), story, tuple(_delivery(event) for event in events))


def retry(connection: Connection, agent_id: AgentId, by: str) -> None:
    """Try again to end what could not be ended.

    :raises NotFound: no such provision. :raises Refused: it is not abandoned.
    """
    row = _abandoned(connection, agent_id, "tried again")
    log.info("provision %s: its release is tried again, asked by %s", agent_id, by or "the operator")
    if not provisions_rows.advance(connection, row, ProvisionEvent.RETRY, release_attempts=0):
        raise Conflict("the provision changed meanwhile; look again")


def forget(connection: Connection, agent_id: AgentId, by: str) -> None:
    """Somebody looked and says that it does not exist; it is recorded who.

    :raises NotFound: no such provision. :raises Refused: it is not abandoned.
    """
    row = _abandoned(connection, agent_id, "forgotten")
    said = f"forgotten by {by or 'the operator'}"
    log.warning("provision %s: %s", agent_id, said)
    error = f"{row.error}; {said}" if row.error else said
    if not provisions_rows.advance(connection, row, ProvisionEvent.GONE, error=error):
        raise Conflict("the provision changed meanwhile; look again")
    agents.end(connection, agent_id)


def _required(connection: Connection, agent_id: AgentId) -> Provision:
    row = provisions_rows.get(connection, agent_id)
    if row is None:
        raise NotFound(f"no provision {agent_id}")
    return row


def _abandoned(connection: Connection, agent_id: AgentId, what: str) -> Provision:
    row = _required(connection, agent_id)
    if row.state is not ProvisionState.ABANDONED:
        hint = "it is being ended by itself" if row.state is ProvisionState.RELEASING else "drain its agent to end it"
        if row.state is ProvisionState.GONE:
            hint = "nothing is left of it"
        raise Refused(f"provision {agent_id} is {row.state}, only abandoned ones are {what}; {hint}")
    return row


def _view(
    row: Provision, moment: int, story: tuple[str, ...] = (), events: tuple[DeliveryView, ...] = ()
) -> ProvisionView:
    age = max(0, (row.gone_at or moment) - row.requested_at)
    return ProvisionView(
        id=row.agent_id,
        pool=row.pool,
        backend=row.backend,
        state=row.state,
        cause=row.cause,
        job_id=row.job_id or "",
        run_id=row.run_id or "",
        labels=tuple(sorted(row.labels)),
        cpu=row.cpu,
        memory=row.memory,
        cost_per_hour=row.cost_per_hour,
        cost=round(row.cost_per_hour * age / HOUR, 6),
        provider_id=row.provider_id,
        requested_at=rfc3339(row.requested_at),
        sent_at=when(row.sent_at),
        registered_at=when(row.adopted_at),
        released_at=when(row.released_at),
        gone_at=when(row.gone_at),
        release_reason=row.release_reason,
        release_attempts=row.release_attempts,
        error=row.error,
        age=age / SECOND,
        story=story,
        deliveries=events,
    )


def _delivery(row: Delivery) -> DeliveryView:
    return DeliveryView(
        id=row.id,
        kind=row.kind,
        sequence=row.sequence,
        state=row.state,
        reason=row.reason,
        evidence=row.evidence,
        attempts=row.attempts,
        last=row.last,
        error=row.error,
        created_at=rfc3339(row.created_at),
        sent_at=when(row.sent_at),
        ended_at=when(row.ended_at),
    )


def _told(row: Delivery) -> list[tuple[int, str]]:
    name = str(row.kind).rsplit(".", 2)[1]
    story = []
    if row.first_sent_at is not None:
        story.append((row.first_sent_at, f"{name} was first sent to its provisioner"))
    if row.ended_at is not None:
        because = f": {row.error}" if row.error else ""
        story.append((row.ended_at, f"{name} is {row.state} after {row.attempts} sendings{because}"))
    return story
