# SPDX-License-Identifier: Apache-2.0
"""How many there are of everything, for metrics and diagnosis: counted by the database, never row by row."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from sqlalchemy import Connection, Table, and_, case, func, select

from corral.model.labels import Labels
from corral.model.states import AgentState, DeliveryState, JobState, ProvisionState
from corral.store.tables import agents, db_now, deliveries, jobs, provisions, runs

GROUPS = 500
"""Different sets of labels among queued jobs that are looked at; those of most jobs first."""


class AgentCount(Struct, frozen=True, kw_only=True):
    """``idle`` and ``busy``: of those that are online."""

    pool: str
    state: AgentState
    count: int
    idle: int
    busy: int


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
    """``attempts``: most of one that is pending."""

    states: Mapping[str, int]
    answers: Mapping[str, int]
    attempts: int


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


def outbox(connection: Connection) -> Outbox:
    open_ = deliveries.c.state.in_((DeliveryState.PENDING, DeliveryState.SENDING))
    attempts: int = connection.execute(
        select(func.coalesce(func.max(deliveries.c.attempts), 0)).where(open_)
    ).scalar_one()
    answers = connection.execute(
        select(deliveries.c.last, func.count()).where(deliveries.c.last != "").group_by(deliveries.c.last)
    )
    return Outbox(
        states=by_state(connection, deliveries),
        answers={str(row[0]): int(row[1]) for row in answers},
        attempts=attempts,
    )


def releasing(connection: Connection) -> tuple[int, int]:
    """How many provisions are on their way out, and for how many microseconds the first is."""
    count, age = connection.execute(
        select(func.count(), func.coalesce(db_now() - func.min(provisions.c.released_at), 0)).where(
            provisions.c.state == ProvisionState.RELEASING
        )
    ).one()
    return count, max(0, int(age))
