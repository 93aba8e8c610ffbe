# SPDX-License-Identifier: Apache-2.0
"""The outbox: events to provisioners, committed with the provision they follow from."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, select, update

from corral.model.events import EventKind
from corral.model.ids import AgentId
from corral.model.records import Provision
from corral.model.states import DELIVERY, DeliveryEvent, DeliveryState
from corral.store.repo.installation import now
from corral.store.repo.rows import add_row
from corral.store.tables import db_now, deliveries


def scale_up(connection: Connection, provision: Provision, *, deadline: int) -> None:
    """Ask for the instance. ``provision.sequence`` is the event's; ``deadline``: microseconds from now by which it has
    to be delivered."""
    _add(connection, provision, EventKind.SCALE_UP, reason=provision.cause, evidence={}, deadline=deadline)


def scale_down(connection: Connection, provision: Provision, reason: str, evidence: Mapping[str, str]) -> None:
    """Ask for its end; a scale-up that waits to be sent is not sent any more. ``provision.sequence`` is the event's."""
    _drop(connection, provision.agent_id)
    _add(connection, provision, EventKind.SCALE_DOWN, reason=reason, evidence=evidence, deadline=None)


def unsent(connection: Connection, agent_id: AgentId) -> bool:
    """True where its scale-up waits and was never sent: nothing outside knows of it."""
    query = select(deliveries.c.id).where(
        deliveries.c.agent_id == agent_id,
        deliveries.c.kind == EventKind.SCALE_UP,
        deliveries.c.state == DeliveryState.PENDING,
        deliveries.c.first_sent_at.is_(None),
    )
    return connection.execute(query).first() is not None


def drop_unsent(connection: Connection, agent_id: AgentId) -> bool:
    """Take the scale-up back; False: it was sent meanwhile."""
    return unsent(connection, agent_id) and _drop(connection, agent_id) == 1


def _add(
    connection: Connection,
    provision: Provision,
    kind: EventKind,
    *,
    reason: str,
    evidence: Mapping[str, str],
    deadline: int | None,
) -> None:
    assert provision.target is not None, "only a pool with a provisioner has events"
    moment = now(connection)
    values = {
        # The same event has the same id, whoever writes it.
        "id": f"{provision.agent_id}.{provision.sequence}",
        "position": moment,
        "agent_id": provision.agent_id,
        "pool": provision.pool,
        "target": provision.target,
        "target_key": provision.target_key,
        "kind": kind,
        "sequence": provision.sequence,
        "state": DELIVERY.initial,
        "reason": reason,
        "evidence": dict(evidence),
        "created_at": moment,
        "next_at": moment,
        "deadline_at": None if deadline is None else moment + deadline,
    }
    add_row(connection, deliveries, values)


def _drop(connection: Connection, agent_id: AgentId) -> int:
    done = connection.execute(
        update(deliveries)
        .where(
            deliveries.c.agent_id == agent_id,
            deliveries.c.kind == EventKind.SCALE_UP,
            deliveries.c.state == DeliveryState.PENDING,
        )
        .values(
            state=DELIVERY.advance(DeliveryState.PENDING, DeliveryEvent.DROP),
            ended_at=db_now(),
            version=deliveries.c.version + 1,
        )
    )
    return done.rowcount
