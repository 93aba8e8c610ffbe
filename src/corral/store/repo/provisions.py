# SPDX-License-Identifier: Apache-2.0
"""Provisions: the durable record of each instance that was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, delete, func, select, update

from corral.model.errors import Conflict
from corral.model.ids import AgentId, JobId, RunId
from corral.model.pools import EVENT
from corral.model.records import Provision
from corral.model.states import PROVISION, ProvisionEvent, ProvisionState
from corral.store.repo import deliveries
from corral.store.repo.rows import NOW, add_row, change, columns, many, one
from corral.store.tables import agents, db_now, provisions

_PROVISION = columns(provisions, Provision)
# Asked in every pass of a loop: building these costs several times what running them does.
_GET = select(*_PROVISION).where(provisions.c.agent_id == bindparam("agent_id"))
_LIVE_PROVISIONS = (
    select(*_PROVISION)
    .where(provisions.c.state != ProvisionState.GONE)
    .order_by(provisions.c.requested_at, provisions.c.agent_id)
)
_OF_HOST = (
    select(*_PROVISION)
    .where(provisions.c.host_id == bindparam("host_id"), provisions.c.state.in_(bindparam("states", expanding=True)))
    .order_by(provisions.c.requested_at, provisions.c.agent_id)
)
LISTED = 10_000
"""Rows in one list: more than any installation has instances, and no more than an answer can hold."""
LIVE = (ProvisionState.REQUESTED, ProvisionState.ACTIVE, ProvisionState.RELEASING, ProvisionState.ABANDONED)


def add(connection: Connection, **values: Any) -> None:
    add_row(connection, provisions, {"state": PROVISION.initial, "requested_at": NOW, **values})


def get(connection: Connection, agent_id: AgentId) -> Provision | None:
    return one(Provision, connection.execute(_GET, {"agent_id": agent_id}).first())


def live(connection: Connection) -> tuple[Provision, ...]:
    """Every provision that is not gone."""
    return many(Provision, connection.execute(_LIVE_PROVISIONS))


def listed(connection: Connection, state: ProvisionState | None, pool: str | None) -> tuple[Provision, ...]:
    """Newest first, at most LISTED of them; without a state those that are not gone."""
    wanted = provisions.c.state != ProvisionState.GONE if state is None else provisions.c.state == state
    query = select(*_PROVISION).where(wanted)
    if pool is not None:
        query = query.where(provisions.c.pool == pool)
    query = query.order_by(provisions.c.requested_at.desc(), provisions.c.agent_id.desc()).limit(LISTED)
    return many(Provision, connection.execute(query))


def in_state(connection: Connection, state: ProvisionState) -> tuple[Provision, ...]:
    """All of them, the longest known first."""
    query = select(*_PROVISION).where(provisions.c.state == state)
    return many(Provision, connection.execute(query.order_by(provisions.c.requested_at, provisions.c.agent_id)))


def of_host(connection: Connection, host_id: str, states: Iterable[ProvisionState]) -> tuple[Provision, ...]:
    return many(Provision, connection.execute(_OF_HOST, {"host_id": host_id, "states": tuple(states)}))


def some(connection: Connection, agent_ids: Iterable[AgentId]) -> tuple[Provision, ...]:
    return many(Provision, connection.execute(select(*_PROVISION).where(provisions.c.agent_id.in_(tuple(agent_ids)))))


def of_job(connection: Connection, job_id: JobId) -> tuple[Provision, ...]:
    query = select(*_PROVISION).where(provisions.c.job_id == job_id).order_by(provisions.c.requested_at)
    return many(Provision, connection.execute(query))


def count_live(connection: Connection, pool: str | None = None) -> int:
    """Provisions that are not gone, of one pool or of all."""
    query = select(func.count()).where(provisions.c.state.in_(LIVE))
    if pool is not None:
        query = query.where(provisions.c.pool == pool)
    found: int = connection.execute(query).scalar_one()
    return found


class Held(Struct, frozen=True, kw_only=True):
    """What provisions of one kind hold together: ``count`` of them, and their sums."""

    pool: str
    machine: str
    backend: str
    state: ProvisionState
    provisioning: bool
    failed: bool
    count: int
    cpu: float
    memory: int
    cost: float


_KINDS = (
    provisions.c.pool,
    provisions.c.machine,
    provisions.c.backend,
    provisions.c.state,
    provisions.c.provisioning,
    provisions.c.failed_at.is_not(None),
)
_HELD = (
    select(
        *_KINDS,
        func.count(),
        func.coalesce(func.sum(provisions.c.cpu), 0.0),
        func.coalesce(func.sum(provisions.c.memory), 0),
        func.coalesce(func.sum(provisions.c.cost_per_hour), 0.0),
    )
    .where(provisions.c.state.in_(LIVE))
    .group_by(*_KINDS)
)


def held(connection: Connection) -> tuple[Held, ...]:
    """What every provision that is not gone holds, counted now."""
    return many(Held, connection.execute(_HELD))


def advance(
    connection: Connection,
    row: Provision,
    event: ProvisionEvent,
    *,
    evidence: Mapping[str, str] | None = None,
    **values: Any,
) -> bool:
    """Move the provision by one event, from the version it was read in; False: somebody was first, or nothing moves.

    The one place where a provision changes its state, so an instance of a user's own provisioner never starts to end
    without the event that says so. ``evidence``: what the decision rests on, told to the provisioner.
    :raises Conflict: given up as never asked for, and it was asked for meanwhile.
    """
    if not PROVISION.changes(row.state, event):
        return False
    after = PROVISION.advance(row.state, event)
    values["state"] = after
    told = row.backend == EVENT and after is ProvisionState.RELEASING
    if told:
        values["sequence"] = row.sequence + 1
    if after is ProvisionState.RELEASING:
        values.setdefault("released_at", NOW)
        values.setdefault("release_next_at", NOW)
    if after is ProvisionState.GONE:
        values.setdefault("gone_at", NOW)
        values["claim_sealed"] = None
    where = {"agent_id": row.agent_id, "state": row.state, "version": row.version}
    if change(connection, provisions, where, values) != 1:
        return False
    if told:
        reason = values.get("release_reason", row.release_reason)
        deliveries.scale_down(connection, replace(row, sequence=row.sequence + 1), reason, evidence or {})
    unsent = event is ProvisionEvent.UNSENT and row.backend == EVENT
    if unsent and not deliveries.drop_unsent(connection, row.agent_id):
        raise Conflict("the provisioner was asked for it meanwhile")
    if row.backend == EVENT:
        _settle_deliveries(connection, row.agent_id, after)
    return True


def _settle_deliveries(connection: Connection, agent_id: AgentId, state: ProvisionState) -> None:
    """What waits to be sent is not wanted any more once the instance is confirmed gone, or given up."""
    if state is ProvisionState.GONE:
        deliveries.finish_open(connection, agent_id)
    elif state is ProvisionState.ABANDONED:
        deliveries.fail_open(connection, agent_id, "given up")


def write(connection: Connection, row: Provision, **values: Any) -> bool:
    """Write columns other than the state, from the version it was read in."""
    return change(connection, provisions, {"agent_id": row.agent_id, "version": row.version}, values) == 1


def note_ended(connection: Connection, agent_id: AgentId, detail: str) -> bool:
    """The backend saw the instance end by itself; the leader takes it from there."""
    done = connection.execute(
        update(provisions)
        .where(
            provisions.c.agent_id == agent_id,
            provisions.c.ended_at.is_(None),
            provisions.c.state.in_((ProvisionState.REQUESTED, ProvisionState.ACTIVE)),
        )
        .values(ended_at=db_now(), error=detail, version=provisions.c.version + 1)
    )
    return done.rowcount == 1


def not_ended(connection: Connection, agent_ids: Iterable[AgentId]) -> tuple[AgentId, ...]:
    """Those whose instance counts as running, or that still have a job."""
    wanted = (
        provisions.c.state.in_((ProvisionState.REQUESTED, ProvisionState.ACTIVE)) & provisions.c.ended_at.is_(None)
    ) | (agents.c.assignment.is_not(None))
    query = select(provisions.c.agent_id).join(agents, agents.c.id == provisions.c.agent_id)
    query = query.where(provisions.c.agent_id.in_(tuple(agent_ids)), wanted).order_by(provisions.c.agent_id)
    return tuple(connection.execute(query).scalars())


def gone_before(connection: Connection, agent_ids: Iterable[AgentId], moment: int) -> tuple[AgentId, ...]:
    """Those that were accounted as gone by then."""
    query = select(provisions.c.agent_id).where(
        provisions.c.agent_id.in_(tuple(agent_ids)),
        provisions.c.state == ProvisionState.GONE,
        provisions.c.gone_at < moment,
    )
    return tuple(connection.execute(query.order_by(provisions.c.agent_id)).scalars())


def config_acked(connection: Connection, agent_id: AgentId) -> None:
    """The agent holds its key: what carried the claim is not needed any more."""
    connection.execute(
        update(provisions)
        .where(provisions.c.agent_id == agent_id)
        .values(config_acked_at=func.coalesce(provisions.c.config_acked_at, db_now()), claim_sealed=None)
    )


def sealed_claim(connection: Connection, agent_id: AgentId) -> bytes | None:
    return connection.execute(select(provisions.c.claim_sealed).where(provisions.c.agent_id == agent_id)).scalar()


def purge_gone(connection: Connection, older_than: int) -> int:
    """Delete rows of instances gone for longer than this (microseconds), their agents and claims with them."""
    old = select(provisions.c.agent_id).where(
        provisions.c.state == ProvisionState.GONE, provisions.c.gone_at < db_now() - older_than
    )
    ids = tuple(connection.execute(old.limit(500)).scalars())
    if ids:
        connection.execute(delete(provisions).where(provisions.c.agent_id.in_(ids)))
        connection.execute(delete(agents).where(agents.c.id.in_(ids)))
    return len(ids)


def of_run(connection: Connection, run_id: RunId) -> dict[JobId, Provision]:
    """The latest provision made for each job of a run."""
    query = select(*_PROVISION).where(provisions.c.run_id == run_id).order_by(provisions.c.requested_at)
    rows = many(Provision, connection.execute(query))
    return {row.job_id: row for row in rows if row.job_id is not None}
