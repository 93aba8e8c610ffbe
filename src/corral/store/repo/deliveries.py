# SPDX-License-Identifier: Apache-2.0
"""The outbox: events to provisioners, committed with the provision they follow from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, or_, select, update

from corral.model.events import EventKind, Verdict
from corral.model.ids import AgentId
from corral.model.records import Delivery, Provision
from corral.model.states import DELIVERY, DeliveryEvent, DeliveryState
from corral.store.repo.installation import now
from corral.store.repo.rows import add_row, change, columns, many, one
from corral.store.tables import db_now, deliveries, provisions

_DELIVERY = columns(deliveries, Delivery)
_OPEN = (DeliveryState.PENDING, DeliveryState.SENDING)
_GET = select(*_DELIVERY).where(deliveries.c.id == bindparam("id"))
_TURN = func.row_number().over(
    partition_by=(deliveries.c.target_key, deliveries.c.kind), order_by=(deliveries.c.next_at, deliveries.c.position)
)
_TURNS = (
    select(deliveries.c.id, _TURN.label("turn"))
    .where(deliveries.c.state == DeliveryState.PENDING, deliveries.c.next_at <= db_now())
    .subquery()
)
_DUE = (
    select(*_DELIVERY)
    .join(_TURNS, _TURNS.c.id == deliveries.c.id)
    .where(_TURNS.c.turn <= bindparam("turns"))
    .order_by(deliveries.c.position, deliveries.c.sequence, deliveries.c.id)
)
_SENDING = select(*_DELIVERY).where(deliveries.c.state == DeliveryState.SENDING).order_by(deliveries.c.position)


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


# --- sending -----------------------------------------------------------------------------------------------


def get(connection: Connection, delivery_id: str) -> Delivery | None:
    return one(Delivery, connection.execute(_GET, {"id": delivery_id}).first())


def due(connection: Connection, limit: int) -> tuple[Delivery, ...]:
    """Those whose moment has come, in order: at most ``limit`` of each kind to each target, so that a target with
    thousands of them hides nothing of the others."""
    return many(Delivery, connection.execute(_DUE, {"turns": limit}))


def sending(connection: Connection) -> tuple[Delivery, ...]:
    """Those whose send is recorded and whose answer is not."""
    return many(Delivery, connection.execute(_SENDING))


def of_agent(connection: Connection, agent_id: AgentId) -> tuple[Delivery, ...]:
    """In the order of their sequence."""
    query = select(*_DELIVERY).where(deliveries.c.agent_id == agent_id).order_by(deliveries.c.sequence)
    return many(Delivery, connection.execute(query))


def unresolved(connection: Connection, agent_ids: Iterable[AgentId]) -> dict[AgentId, dict[str, int]]:
    """Of each agent, the sends that may still arrive: deadline by id of the delivery."""
    query = select(deliveries.c.agent_id, deliveries.c.id, deliveries.c.send_deadline).where(
        deliveries.c.agent_id.in_(tuple(agent_ids)),
        deliveries.c.send_deadline > db_now(),
        or_(deliveries.c.state == DeliveryState.SENDING, deliveries.c.last == Verdict.UNANSWERED),
    )
    found: dict[AgentId, dict[str, int]] = {}
    for agent_id, delivery_id, deadline in connection.execute(query):
        found.setdefault(agent_id, {})[delivery_id] = deadline
    return found


def advance(connection: Connection, row: Delivery, event: DeliveryEvent, **values: Any) -> bool:
    """Move it by one event, from the version it was read in; False: somebody was first, or nothing moves."""
    if not DELIVERY.changes(row.state, event):
        return False
    after = DELIVERY.advance(row.state, event)
    values["state"] = after
    if after in DELIVERY.terminal:
        values.setdefault("ended_at", now(connection))
    return change(connection, deliveries, {"id": row.id, "state": row.state, "version": row.version}, values) == 1


def finish_open(connection: Connection, agent_id: AgentId) -> None:
    """Its instance is confirmed not to exist: what waits to be sent about it has become true by another way. What is
    being sent is settled by its answer."""
    for row in of_agent(connection, agent_id):
        if row.state is DeliveryState.PENDING:
            down = row.kind is EventKind.SCALE_DOWN
            advance(connection, row, DeliveryEvent.DELIVER if down else DeliveryEvent.DROP)


def fail_open(connection: Connection, agent_id: AgentId, error: str) -> None:
    """Nothing more is sent about it."""
    for row in of_agent(connection, agent_id):
        if row.state is DeliveryState.PENDING:
            advance(connection, row, DeliveryEvent.FAIL, error=error)


def lag(connection: Connection) -> tuple[int, int]:
    """(how many are not delivered, microseconds that the one due longest has waited)."""
    query = select(func.count(), func.min(deliveries.c.next_at)).where(deliveries.c.state.in_(_OPEN))
    count, oldest = connection.execute(query).one()
    return count, max(0, now(connection) - oldest) if oldest is not None else 0


def purge(connection: Connection) -> int:
    """Delete ended ones whose provision is purged; how many."""
    known = select(provisions.c.agent_id)
    old = select(deliveries.c.id).where(
        deliveries.c.state.not_in(_OPEN), deliveries.c.agent_id.is_not(None), deliveries.c.agent_id.not_in(known)
    )
    ids = tuple(connection.execute(old.limit(1000)).scalars())
    if ids:
        connection.execute(delete(deliveries).where(deliveries.c.id.in_(ids)))
    return len(ids)


# --- writing -----------------------------------------------------------------------------------------------


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
