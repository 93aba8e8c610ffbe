# SPDX-License-Identifier: Apache-2.0
"""Jobs, their attempts and steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, Integer, bindparam, func, insert, select, update

from corral.model.ids import AgentId, JobId, RunId
from corral.model.labels import Labels
from corral.model.records import Attempt, Job, ListedJob, Step
from corral.model.states import ATTEMPT, JOB, STEP, AttemptEvent, AttemptState, JobEvent, JobState, StepEvent
from corral.store.repo.installation import now
from corral.store.repo.rows import NOW, add_row, columns, many, one
from corral.store.repo.rows import change as change_rows
from corral.store.tables import attempts, db_now, jobs, steps

_JOB = columns(jobs, Job)
_ATTEMPT = columns(attempts, Attempt)
_STEP = columns(steps, Step)
LIVE = tuple(state for state in JobState if state not in JOB.terminal)

_GET = select(*_JOB).where(jobs.c.id == bindparam("id"))
_LISTED = select(*columns(jobs, ListedJob)).where(jobs.c.run_id == bindparam("run_id")).order_by(jobs.c.ordinal)
_RUN_OF = select(jobs.c.run_id).where(jobs.c.id == bindparam("id"))
_WAITING = select(jobs.c.id).where(jobs.c.run_id == bindparam("run_id"), jobs.c.state == JobState.WAITING).limit(1)
_STEP_GET = select(*_STEP).where(
    steps.c.job_id == bindparam("job_id"),
    steps.c.attempt == bindparam("attempt"),
    steps.c.number == bindparam("number"),
)
_ATTEMPT_GET = select(*_ATTEMPT).where(
    attempts.c.job_id == bindparam("job_id"), attempts.c.number == bindparam("number")
)


_COUNT_CREATE = update(jobs).where(jobs.c.id == bindparam("job")).values(creates=jobs.c.creates + 1)
_CREATES = select(jobs.c.creates).where(jobs.c.id == bindparam("id"), jobs.c.state == JobState.QUEUED)
_IN_STATE = select(*_JOB).where(jobs.c.state == bindparam("state")).order_by(jobs.c.id)
_UNENDED = select(jobs.c.id).where(jobs.c.id.in_(bindparam("ids", expanding=True)), jobs.c.state.in_(LIVE))
_OVERDUE = select(*_JOB).where(
    ((jobs.c.state == JobState.RUNNING) & (jobs.c.deadline_at < db_now()))
    | ((jobs.c.state == JobState.CANCELLING) & (jobs.c.cancel_deadline_at < db_now()))
    | ((jobs.c.state == JobState.QUEUED) & (jobs.c.queued_at < db_now() - bindparam("queue_timeout", type_=Integer)))
)
_OVERDUE_OFFERS = select(func.count()).where(
    attempts.c.state == AttemptState.OFFERED, attempts.c.offer_deadline_at <= db_now()
)
# Asked in every pass of a loop: building these costs several times what running them does.


def add_all(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Insert the jobs of a new run; all of them have the same keys."""
    if rows:
        connection.execute(insert(jobs), rows)


def get(connection: Connection, job_id: JobId) -> Job | None:
    return one(Job, connection.execute(_GET, {"id": job_id}).first())


def of_run(connection: Connection, run_id: RunId) -> tuple[Job, ...]:
    return many(Job, connection.execute(select(*_JOB).where(jobs.c.run_id == run_id).order_by(jobs.c.ordinal)))


def listed(connection: Connection, run_id: RunId) -> tuple[ListedJob, ...]:
    """The jobs of a run, without their specifications."""
    return many(ListedJob, connection.execute(_LISTED, {"run_id": run_id}))


def has_waiting(connection: Connection, run_id: RunId) -> bool:
    return connection.execute(_WAITING, {"run_id": run_id}).first() is not None


def in_state(connection: Connection, state: JobState) -> tuple[Job, ...]:
    return many(Job, connection.execute(_IN_STATE, {"state": state}))


def unended(connection: Connection, job_ids: Iterable[JobId]) -> frozenset[JobId]:
    """Those of the jobs that exist and have not ended."""
    ids = tuple(job_ids)
    return frozenset(connection.execute(_UNENDED, {"ids": ids}).scalars()) if ids else frozenset()


def advance(connection: Connection, job: Job, event: JobEvent, **values: Any) -> bool:
    """Move the job by one event, from the version it was read in; False: somebody else was first, or nothing moves."""
    if not JOB.changes(job.state, event):
        return False
    after = JOB.advance(job.state, event)
    values["state"] = after
    if after in JOB.terminal:
        values.setdefault("finished_at", NOW)
    if after is JobState.QUEUED:
        values.setdefault("queued_at", NOW)
        values.setdefault("ready_at", NOW)
        for name in ("agent_id", "started_at", "deadline_at"):
            values.setdefault(name, None)
    return change_rows(connection, jobs, {"id": job.id, "state": job.state, "version": job.version}, values) == 1


def change(connection: Connection, job: Job, **values: Any) -> bool:
    """Write columns other than the state, from the version it was read in."""
    return change_rows(connection, jobs, {"id": job.id, "version": job.version}, values) == 1


def count_create(connection: Connection, job_id: JobId) -> None:
    connection.execute(_COUNT_CREATE, {"job": job_id})


def creates_of_queued(connection: Connection, job_id: JobId) -> int | None:
    """Instances that were made for it since it was last tried; None: it does not wait for an agent."""
    return connection.execute(_CREATES, {"id": job_id}).scalar()


def overdue(connection: Connection, *, queue_timeout: int) -> tuple[Job, ...]:
    """Jobs past a deadline of their own: running too long, cancelling too long, queued too long (microseconds)."""
    return many(Job, connection.execute(_OVERDUE, {"queue_timeout": queue_timeout}))


# --- attempts ----------------------------------------------------------------------------------------------


def add_attempt(
    connection: Connection, *, job_id: JobId, number: int, agent_id: AgentId, boot_id: str, deadline: int
) -> None:
    """``deadline``: microseconds from now that the agent has to answer."""
    moment = now(connection)
    add_row(
        connection,
        attempts,
        {
            "job_id": job_id,
            "number": number,
            "agent_id": agent_id,
            "state": ATTEMPT.initial,
            "boot_id": boot_id,
            "offered_at": moment,
            "offer_deadline_at": moment + deadline,
        },
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
    values["state"] = after
    if after in ATTEMPT.terminal:
        values.setdefault("finished_at", NOW)
    if event is AttemptEvent.START:
        values["started_at"] = NOW
    where = {"job_id": row.job_id, "number": row.number, "state": row.state}
    return change_rows(connection, attempts, where, values) == 1


def change_attempt(connection: Connection, row: Attempt, **values: Any) -> bool:
    """Write columns other than the state, while the state is the one it was read in."""
    where = {"job_id": row.job_id, "number": row.number, "state": row.state}
    return change_rows(connection, attempts, where, values) == 1


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


def steps_of_run(connection: Connection, run_id: RunId) -> tuple[Step, ...]:
    """Every step of every attempt that was begun."""
    query = select(*_STEP).join(jobs, jobs.c.id == steps.c.job_id).where(jobs.c.run_id == run_id)
    return many(Step, connection.execute(query))


def step(connection: Connection, job_id: JobId, attempt_number: int, number: int) -> Step | None:
    key = {"job_id": job_id, "attempt": attempt_number, "number": number}
    return one(Step, connection.execute(_STEP_GET, key).first())


def advance_step(
    connection: Connection, job_id: JobId, attempt_number: int, number: int, event: StepEvent, **values: Any
) -> bool:
    """Move one step; its row is made by the first news of it. False: the news is late or repeated."""
    row = step(connection, job_id, attempt_number, number)
    state = row.state if row else STEP.initial
    if not STEP.changes(state, event):
        return False
    values["state"] = STEP.advance(state, event)
    key = {"job_id": job_id, "attempt": attempt_number, "number": number}
    if row is None:
        values.setdefault("outputs", {})
        add_row(connection, steps, {**key, **values})
        return True
    return change_rows(connection, steps, {**key, "state": state}, values) == 1


def change_step(connection: Connection, job_id: JobId, attempt_number: int, number: int, **values: Any) -> None:
    change_rows(connection, steps, {"job_id": job_id, "attempt": attempt_number, "number": number}, values)


def run_of(connection: Connection, job_id: JobId) -> RunId | None:
    return connection.execute(_RUN_OF, {"id": job_id}).scalar()


# --- the head of the queue ---------------------------------------------------------------------------------


class Head(Struct, frozen=True, kw_only=True):
    """What placing needs of a queued job, without decoding its specification. ``provisioning``: of a run that works
    for a provisioner."""

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
    provisioning: bool


_HEAD = columns(jobs, Head)
_OLDEST = (jobs.c.queued_at, jobs.c.run_id, jobs.c.ordinal)
_RANKED = (
    select(*_HEAD, jobs.c.run_id.label("of_run"), jobs.c.ordinal)
    .add_columns(
        func.row_number()
        .over(
            partition_by=(jobs.c.provisioning, jobs.c.labels, jobs.c.excludes, jobs.c.cpu, jobs.c.memory),
            order_by=_OLDEST,
        )
        .label("place")
    )
    .where(jobs.c.state == JobState.QUEUED, jobs.c.ready_at <= db_now())
    .subquery()
)
_HEADS = (
    select(*(_RANKED.c[name] for name in Head.__struct_fields__))
    .where((_RANKED.c.place <= bindparam("limit")) | _RANKED.c.id.in_(bindparam("also", expanding=True)))
    .order_by(_RANKED.c.provisioning.desc(), _RANKED.c.queued_at, _RANKED.c.of_run, _RANKED.c.ordinal)
)


def queued_heads(connection: Connection, limit: int, also: Iterable[JobId] = ()) -> tuple[Head, ...]:
    """Jobs that want an agent now, those of provisioners before all others, then longest waiting first: at most
    ``limit`` of those that ask for the same labels, so that any number which nobody can serve stands in nobody's way;
    and those of ``also`` that are among them."""
    return many(Head, connection.execute(_HEADS, {"limit": limit, "also": tuple(also)}))


def overdue_offers(connection: Connection) -> int:
    found: int = connection.execute(_OVERDUE_OFFERS).scalar_one()
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
