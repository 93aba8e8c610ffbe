# SPDX-License-Identifier: Apache-2.0
"""How many there are of everything, for metrics and diagnosis: counted by the database, never row by row."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from sqlalchemy import Connection, Table, and_, case, exists, func, select

from corral.model.labels import Labels
from corral.model.states import AgentState, DeliveryState, JobState, ProvisionState
from corral.store.tables import agents, db_now, deliveries, jobs, provisions, runs, sightings, targets

GROUPS = 500
"""Different sets of labels among queued jobs that are looked at; those of most jobs first."""


class AgentCount(Struct, frozen=True, kw_only=True):
    """``idle`` and ``busy``: of those that are online."""

    pool: str
    state: AgentState
    count: int
    idle: int
    busy: int


class ProvisionCount(Struct, frozen=True, kw_only=True):
    """Sums over one pool's provisions in one state: cores, bytes, money per hour."""

    pool: str
    state: ProvisionState
    count: int
    cpu: float
    memory: int
    cost: float


class Demanded(Struct, frozen=True, kw_only=True):
    """Queued jobs that ask for the same."""

    labels: Labels
    excludes: Labels
    count: int


class Queue(Struct, frozen=True, kw_only=True):
    """``oldest``: microseconds that the first has waited. ``unroutable``: of the queued."""

    queued: int
    oldest: int
    unroutable: int


class Outbox(Struct, frozen=True, kw_only=True):
    """``lag``: microseconds that the oldest due event has waited. ``attempts``: most of one that is pending."""

    states: Mapping[str, int]
    answers: Mapping[str, int]
    lag: int
    attempts: int


class Leaks(Struct, frozen=True, kw_only=True):
    """``cost``: money per hour of abandoned instances and strays."""

    abandoned: int
    strays: int
    ghosts: int
    cost: float


def by_state(connection: Connection, table: Table) -> dict[str, int]:
    rows = connection.execute(select(table.c.state, func.count()).group_by(table.c.state))
    return {str(state): count for state, count in rows}


def run_states(connection: Connection) -> dict[str, int]:
    return by_state(connection, runs)


def job_states(connection: Connection) -> dict[str, int]:
    return by_state(connection, jobs)


def queue(connection: Connection) -> Queue:
    query = select(
        func.count(),
        # The clock once, not once a row: on SQLite it is a call into Python.
        func.coalesce(db_now() - func.min(func.coalesce(jobs.c.queued_at, jobs.c.created_at)), 0),
        func.count(jobs.c.unroutable_since),
    ).where(jobs.c.state == JobState.QUEUED)
    count, oldest, unroutable = connection.execute(query).one()
    return Queue(queued=count, oldest=max(0, int(oldest)), unroutable=unroutable)


def demanded(connection: Connection) -> tuple[Demanded, ...]:
    count = func.count().label("count")
    query = (
        select(jobs.c.labels, jobs.c.excludes, count)
        .where(jobs.c.state == JobState.QUEUED)
        .group_by(jobs.c.labels, jobs.c.excludes)
        .order_by(count.desc(), jobs.c.labels)
        .limit(GROUPS)
    )
    return tuple(Demanded(labels=row[0], excludes=row[1], count=row[2]) for row in connection.execute(query))


def agents_by_pool(connection: Connection) -> tuple[AgentCount, ...]:
    online = agents.c.state == AgentState.ONLINE
    free = and_(online, agents.c.assignment.is_(None), agents.c.cordon_reason.is_(None), agents.c.hold.is_(None))
    query = (
        select(
            agents.c.pool,
            agents.c.state,
            func.count(),
            func.sum(case((free, 1), else_=0)),
            func.count(agents.c.assignment),
        )
        .where(agents.c.state != AgentState.ENDED)
        .group_by(agents.c.pool, agents.c.state)
    )
    return tuple(
        AgentCount(pool=row[0], state=row[1], count=row[2], idle=row[3], busy=row[4])
        for row in connection.execute(query)
    )


def provisions_by_pool(connection: Connection) -> tuple[ProvisionCount, ...]:
    query = (
        select(
            provisions.c.pool,
            provisions.c.state,
            func.count(),
            func.coalesce(func.sum(provisions.c.cpu), 0.0),
            func.coalesce(func.sum(provisions.c.memory), 0),
            func.coalesce(func.sum(provisions.c.cost_per_hour), 0.0),
        )
        .where(provisions.c.state != ProvisionState.GONE)
        .group_by(provisions.c.pool, provisions.c.state)
    )
    return tuple(
        ProvisionCount(pool=row[0], state=row[1], count=row[2], cpu=row[3], memory=int(row[4]), cost=row[5])
        for row in connection.execute(query)
    )


def outbox(connection: Connection) -> Outbox:
    open_ = deliveries.c.state.in_((DeliveryState.PENDING, DeliveryState.SENDING))
    lag, attempts = connection.execute(
        select(
            func.coalesce(db_now() - func.min(deliveries.c.created_at), 0),
            func.coalesce(func.max(deliveries.c.attempts), 0),
        ).where(open_)
    ).one()
    answers = connection.execute(
        select(deliveries.c.last, func.count()).where(deliveries.c.last != "").group_by(deliveries.c.last)
    )
    return Outbox(
        states=by_state(connection, deliveries),
        answers={str(row[0]): int(row[1]) for row in answers},
        lag=max(0, int(lag)),
        attempts=attempts,
    )


def leaks(connection: Connection) -> Leaks:
    """Abandoned instances; listed ones that nothing wants; wanted ones that the last listing lacked."""
    abandoned, cost = connection.execute(
        select(func.count(), func.coalesce(func.sum(provisions.c.cost_per_hour), 0.0)).where(
            provisions.c.state == ProvisionState.ABANDONED
        )
    ).one()
    wanted = exists().where(provisions.c.agent_id == sightings.c.agent_id, provisions.c.state != ProvisionState.GONE)
    there = (
        sightings.c.last_listed_at
        >= select(targets.c.listed_at).where(targets.c.key == sightings.c.target_key).scalar_subquery()
    )
    strays, stray_cost = connection.execute(
        select(func.count(), func.coalesce(func.sum(sightings.c.cost_per_hour), 0.0)).where(~wanted, there)
    ).one()
    listed = select(targets.c.listed_at).where(targets.c.key == provisions.c.target_key).scalar_subquery()
    seen = exists().where(sightings.c.agent_id == provisions.c.agent_id, sightings.c.last_listed_at >= listed)
    ghosts: int = connection.execute(
        select(func.count())
        .select_from(provisions)
        .where(
            provisions.c.state == ProvisionState.ACTIVE,
            provisions.c.backend == "event",
            provisions.c.adopted_at < listed,
            ~seen,
        )
    ).scalar_one()
    return Leaks(abandoned=abandoned, strays=strays, ghosts=ghosts, cost=cost + stray_cost)


def epoch_behind(connection: Connection) -> int:
    """Provisioners that refuse our epoch as an old one."""
    query = select(func.count()).select_from(targets).where(targets.c.stale_since.is_not(None))
    found: int = connection.execute(query).scalar_one()
    return found


class Provisioner(Struct, frozen=True, kw_only=True):
    """``told``: it answered this term's first word. ``stale``: it refuses our epoch."""

    key: str
    told: bool
    stale: bool
    error: str


def provisioners(connection: Connection) -> tuple[Provisioner, ...]:
    rows = connection.execute(select(targets).order_by(targets.c.key))
    return tuple(
        Provisioner(
            key=row.key.replace("\x1f", " "),
            told=row.told_at is not None,
            stale=row.stale_since is not None,
            error=row.error,
        )
        for row in rows
    )


def releasing(connection: Connection) -> tuple[int, int]:
    """How many provisions are on their way out, and for how many microseconds the first is."""
    count, age = connection.execute(
        select(func.count(), func.coalesce(db_now() - func.min(provisions.c.released_at), 0)).where(
            provisions.c.state == ProvisionState.RELEASING
        )
    ).one()
    return count, max(0, int(age))
