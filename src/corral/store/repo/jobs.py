# SPDX-License-Identifier: Apache-2.0
"""Jobs, their attempts and steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, bindparam, func, insert, select, update

from corral.model.ids import AgentId, JobId, RunId
from corral.model.labels import Labels
from corral.model.records import Attempt, Job, Step
from corral.model.states import ATTEMPT, JOB, STEP, AttemptEvent, AttemptState, JobEvent, JobState, StepEvent
from corral.store.repo.rows import columns, many, one
from corral.store.tables import attempts, db_now, jobs, steps

_JOB = columns(jobs, Job)
_ATTEMPT = columns(attempts, Attempt)
_STEP = columns(steps, Step)
LIVE = tuple(state for state in JobState if state not in JOB.terminal)

_GET = select(*_JOB).where(jobs.c.id == bindparam("id"))
_ATTEMPT_GET = select(*_ATTEMPT).where(
    attempts.c.job_id == bindparam("job_id"), attempts.c.number == bindparam("number")
)


def add_all(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Insert the jobs of a new run; all of them have the same keys."""
    if rows:
        connection.execute(insert(jobs), rows)


def get(connection: Connection, job_id: JobId) -> Job | None:
    return one(Job, connection.execute(_GET, {"id": job_id}).first())


def of_run(connection: Connection, run_id: RunId) -> tuple[Job, ...]:
    return many(Job, connection.execute(select(*_JOB).where(jobs.c.run_id == run_id).order_by(jobs.c.ordinal)))


def has_waiting(connection: Connection, run_id: RunId) -> bool:
    query = select(jobs.c.id).where(jobs.c.run_id == run_id, jobs.c.state == JobState.WAITING).limit(1)
    return connection.execute(query).first() is not None


def next_ready_at(connection: Connection) -> int | None:
    """When the next job comes out of its backoff."""
    query = select(func.min(jobs.c.ready_at)).where(jobs.c.state == JobState.QUEUED, jobs.c.ready_at > db_now())
    return connection.execute(query).scalar()


def count_queued(connection: Connection) -> int:
    found: int = connection.execute(select(func.count()).where(jobs.c.state == JobState.QUEUED)).scalar_one()
    return found


def in_state(connection: Connection, state: JobState) -> tuple[Job, ...]:
    return many(Job, connection.execute(select(*_JOB).where(jobs.c.state == state).order_by(jobs.c.id)))


def unended(connection: Connection, job_ids: Iterable[JobId]) -> frozenset[JobId]:
    """Those of the jobs that exist and have not ended."""
    query = select(jobs.c.id).where(jobs.c.id.in_(tuple(job_ids)), jobs.c.state.in_(LIVE))
    return frozenset(connection.execute(query).scalars())


def advance(connection: Connection, job: Job, event: JobEvent, **values: Any) -> bool:
    """Move the job by one event, from the version it was read in; False: somebody else was first, or nothing moves."""
    if not JOB.changes(job.state, event):
        return False
    after = JOB.advance(job.state, event)
    if after in JOB.terminal:
        values.setdefault("finished_at", db_now())
    if after is JobState.QUEUED:
        values.setdefault("queued_at", db_now())
        values.setdefault("ready_at", db_now())
        values.setdefault("agent_id", None)
    done = connection.execute(
        update(jobs)
        .where(jobs.c.id == job.id, jobs.c.state == job.state, jobs.c.version == job.version)
        .values(state=after, version=jobs.c.version + 1, **values)
    )
    return done.rowcount == 1


def change(connection: Connection, job: Job, **values: Any) -> bool:
    """Write columns other than the state, from the version it was read in."""
    done = connection.execute(
        update(jobs)
        .where(jobs.c.id == job.id, jobs.c.version == job.version)
        .values(version=jobs.c.version + 1, **values)
    )
    return done.rowcount == 1


def count_create(connection: Connection, job_id: JobId) -> None:
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(creates=jobs.c.creates + 1))


def overdue(connection: Connection, *, queue_timeout: int) -> tuple[Job, ...]:
    """Jobs past a deadline of their own: running too long, cancelling too long, queued too long (microseconds)."""
    late = (
        (jobs.c.state.in_((JobState.RUNNING,)) & (jobs.c.deadline_at < db_now()))
        | ((jobs.c.state == JobState.CANCELLING) & (jobs.c.cancel_deadline_at < db_now()))
        | ((jobs.c.state == JobState.QUEUED) & (jobs.c.queued_at < db_now() - queue_timeout))
    )
    return many(Job, connection.execute(select(*_JOB).where(late)))


# --- attempts ----------------------------------------------------------------------------------------------


def add_attempt(
    connection: Connection, *, job_id: JobId, number: int, agent_id: AgentId, boot_id: str, deadline: int
) -> None:
    """``deadline``: microseconds from now that the agent has to answer."""
    connection.execute(
        insert(attempts).values(
            job_id=job_id,
            number=number,
            agent_id=agent_id,
            state=ATTEMPT.initial,
            boot_id=boot_id,
            offered_at=db_now(),
            offer_deadline_at=db_now() + deadline,
        )
    )


def attempt(connection: Connection, job_id: JobId, number: int) -> Attempt | None:
    return one(Attempt, connection.execute(_ATTEMPT_GET, {"job_id": job_id, "number": number}).first())


def attempts_of(connection: Connection, job_id: JobId) -> tuple[Attempt, ...]:
    query = select(*_ATTEMPT).where(attempts.c.job_id == job_id).order_by(attempts.c.number)
    return many(Attempt, connection.execute(query))


def offered(connection: Connection) -> tuple[Attempt, ...]:
    """Attempts that wait for an answer."""
    query = select(*_ATTEMPT).where(attempts.c.state == AttemptState.OFFERED).order_by(attempts.c.offered_at)
    return many(Attempt, connection.execute(query))


def advance_attempt(connection: Connection, row: Attempt, event: AttemptEvent, **values: Any) -> bool:
    """Move the attempt by one event; False: somebody else was first, or nothing moves."""
    if not ATTEMPT.changes(row.state, event):
        return False
    after = ATTEMPT.advance(row.state, event)
    if after in ATTEMPT.terminal:
        values.setdefault("finished_at", db_now())
    if event is AttemptEvent.START:
        values["started_at"] = db_now()
    done = connection.execute(
        update(attempts)
        .where(attempts.c.job_id == row.job_id, attempts.c.number == row.number, attempts.c.state == row.state)
        .values(state=after, **values)
    )
    return done.rowcount == 1


def seen_sequence(connection: Connection, job_id: JobId, number: int, sequence: int) -> None:
    connection.execute(
        update(attempts)
        .where(attempts.c.job_id == job_id, attempts.c.number == number, attempts.c.sequence < sequence)
        .values(sequence=sequence)
    )


def last_agents(connection: Connection, job_ids: Iterable[JobId]) -> Mapping[JobId, AgentId]:
    """For jobs whose latest attempt was withdrawn: the agent that did not take it."""
    query = select(attempts.c.job_id, attempts.c.agent_id).where(
        attempts.c.job_id.in_(tuple(job_ids)),
        attempts.c.state == AttemptState.WITHDRAWN,
        attempts.c.number == select(jobs.c.attempt).where(jobs.c.id == attempts.c.job_id).scalar_subquery(),
    )
    return {row.job_id: row.agent_id for row in connection.execute(query)}


# --- steps -------------------------------------------------------------------------------------------------


def steps_of(connection: Connection, job_id: JobId, attempt_number: int) -> tuple[Step, ...]:
    query = select(*_STEP).where(steps.c.job_id == job_id, steps.c.attempt == attempt_number).order_by(steps.c.number)
    return many(Step, connection.execute(query))


def step(connection: Connection, job_id: JobId, attempt_number: int, number: int) -> Step | None:
    query = select(*_STEP).where(steps.c.job_id == job_id, steps.c.attempt == attempt_number, steps.c.number == number)
    return one(Step, connection.execute(query).first())


def advance_step(
    connection: Connection, job_id: JobId, attempt_number: int, number: int, event: StepEvent, **values: Any
) -> bool:
    """Move one step; its row is made by the first news of it. False: the news is late or repeated."""
    row = step(connection, job_id, attempt_number, number)
    state = row.state if row else STEP.initial
    if not STEP.changes(state, event):
        return False
    values["state"] = STEP.advance(state, event)
    if row is None:
        values.setdefault("outputs", {})
        connection.execute(insert(steps).values(job_id=job_id, attempt=attempt_number, number=number, **values))
        return True
    done = connection.execute(
        update(steps)
        .where(
            steps.c.job_id == job_id,
            steps.c.attempt == attempt_number,
            steps.c.number == number,
            steps.c.state == state,
        )
        .values(**values)
    )
    return done.rowcount == 1


def change_step(connection: Connection, job_id: JobId, attempt_number: int, number: int, **values: Any) -> None:
    connection.execute(
        update(steps)
        .where(steps.c.job_id == job_id, steps.c.attempt == attempt_number, steps.c.number == number)
        .values(**values)
    )


def run_of(connection: Connection, job_id: JobId) -> RunId | None:
    return connection.execute(select(jobs.c.run_id).where(jobs.c.id == job_id)).scalar()


# --- the head of the queue ---------------------------------------------------------------------------------


class Head(Struct, frozen=True, kw_only=True):
    """What placing needs of a queued job, without decoding its specification."""

    id: JobId
    run_id: RunId
    labels: Labels
    excludes: Labels
    offers: int
    creates: int
    queued_at: int
    unroutable_since: int | None
    cpu: float | None
    memory: int | None


_HEAD = columns(jobs, Head)


def queued_heads(connection: Connection, limit: int) -> tuple[Head, ...]:
    """Jobs that want an agent now, longest waiting first."""
    query = (
        select(*_HEAD)
        .where(jobs.c.state == JobState.QUEUED, jobs.c.ready_at <= db_now())
        .order_by(jobs.c.queued_at, jobs.c.run_id, jobs.c.ordinal)
        .limit(limit)
    )
    return many(Head, connection.execute(query))


def overdue_offers(connection: Connection) -> int:
    query = select(func.count()).where(
        attempts.c.state == AttemptState.OFFERED, attempts.c.offer_deadline_at <= db_now()
    )
    found: int = connection.execute(query).scalar_one()
    return found


def mark_unroutable(connection: Connection, job_ids: Iterable[JobId]) -> None:
    """From now on, unless it was so before."""
    connection.execute(
        update(jobs)
        .where(jobs.c.id.in_(tuple(job_ids)), jobs.c.unroutable_since.is_(None))
        .values(unroutable_since=db_now())
    )


def clear_unroutable(connection: Connection, job_ids: Iterable[JobId]) -> None:
    connection.execute(
        update(jobs)
        .where(jobs.c.id.in_(tuple(job_ids)), jobs.c.unroutable_since.is_not(None))
        .values(unroutable_since=None)
    )
