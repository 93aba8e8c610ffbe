# SPDX-License-Identifier: Apache-2.0
"""Runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, or_, select, update

from corral.model.ids import RunId
from corral.model.records import Run
from corral.model.spec import WorkflowSpec
from corral.model.states import RUN, RunEvent, RunState
from corral.store.repo.rows import NOW, change, columns, many, one
from corral.store.tables import db_now, runs

_COLUMNS = columns(runs, Run)
_GET = select(*_COLUMNS).where(runs.c.id == bindparam("id"))
_BY_DEDUPE = select(*_COLUMNS).where(runs.c.dedupe == bindparam("dedupe"))
LIVE = tuple(state for state in RunState if state not in RUN.terminal)
_LIVE = select(runs.c.id).where(runs.c.state.in_(LIVE)).order_by(runs.c.created_at)
_OVERDUE = select(runs.c.id).where(runs.c.state.in_((RunState.QUEUED, RunState.RUNNING)), runs.c.deadline_at < db_now())


def add(connection: Connection, **values: Any) -> None:
    connection.execute(insert(runs).values(state=RUN.initial, created_at=db_now(), **values))


def get(connection: Connection, run_id: RunId) -> Run | None:
    return one(Run, connection.execute(_GET, {"id": run_id}).first())


def by_dedupe(connection: Connection, key: str) -> Run | None:
    """The run that was begun under this key."""
    return one(Run, connection.execute(_BY_DEDUPE, {"dedupe": key}).first())


def live_provisioning(connection: Connection) -> tuple[Run, ...]:
    """Those that work for provisioners and have not ended."""
    query = select(*_COLUMNS).where(runs.c.state.in_(LIVE), runs.c.provisioning.is_(True))
    return many(Run, connection.execute(query.order_by(runs.c.created_at)))


def give_up_dedupe(connection: Connection, run_id: RunId) -> None:
    """Its key is free for another run."""
    connection.execute(update(runs).where(runs.c.id == run_id).values(dedupe=None))


def spec_of(connection: Connection, run_id: RunId) -> WorkflowSpec | None:
    """What the run was made of: as large as its workflow, so it is read only where all of it is needed."""
    found: WorkflowSpec | None = connection.execute(select(runs.c.spec).where(runs.c.id == run_id)).scalar()
    return found


def page(
    connection: Connection, project: str, before: tuple[int, str] | None, limit: int, *, provisioning: bool = False
) -> tuple[Run, ...]:
    """Newest first; ``before``: (created_at, id) of the last one of the page before. ``provisioning``: those that work
    for provisioners, instead of all others."""
    query = select(*_COLUMNS).where(runs.c.project == project, runs.c.provisioning.is_(provisioning))
    if before is not None:
        at, last = before
        query = query.where(or_(runs.c.created_at < at, (runs.c.created_at == at) & (runs.c.id < last)))
    return many(Run, connection.execute(query.order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(limit)))


def live(connection: Connection) -> tuple[RunId, ...]:
    """Ids of runs that have not ended, oldest first."""
    return tuple(connection.execute(_LIVE).scalars())


def overdue(connection: Connection) -> tuple[RunId, ...]:
    return tuple(connection.execute(_OVERDUE).scalars())


def advance(connection: Connection, run: Run, event: RunEvent, **values: Any) -> bool:
    """Move the run by one event, from the state it was read in; False: somebody else was first, or nothing moves."""
    if not RUN.changes(run.state, event):
        return False
    after = RUN.advance(run.state, event)
    if after in RUN.terminal:
        values["finished_at"] = db_now()
    if event is RunEvent.START:
        values["started_at"] = db_now()
    done = connection.execute(
        update(runs)
        .where(runs.c.id == run.id, runs.c.state == run.state)
        .values(state=after, version=runs.c.version + 1, **values)
    )
    return done.rowcount == 1


def started(connection: Connection, run_id: RunId) -> None:
    """Its first job starts; later ones change nothing."""
    change(
        connection,
        runs,
        {"id": run_id, "state": RunState.QUEUED},
        {"state": RunState.RUNNING, "started_at": NOW},
    )


_COUNT = (
    update(runs)
    .where(runs.c.id == bindparam("run"))
    .values(jobs_finished=runs.c.jobs_finished + bindparam("more"), version=runs.c.version + 1)
)


def count_finished(connection: Connection, run_id: RunId, count: int) -> None:
    connection.execute(_COUNT, {"run": run_id, "more": count})


def request_cancel(connection: Connection, run_id: RunId, *, force: bool, reason: str) -> None:
    """Keep the wish; the first reason stays, force is never taken back."""
    values: dict[str, Any] = {"cancel_requested_at": db_now(), "cancel_reason": reason}
    connection.execute(update(runs).where(runs.c.id == run_id, runs.c.cancel_requested_at.is_(None)).values(values))
    if force:
        connection.execute(update(runs).where(runs.c.id == run_id).values(cancel_force=True))


def mark_log_incomplete(connection: Connection, run_id: RunId) -> None:
    connection.execute(update(runs).where(runs.c.id == run_id).values(log_incomplete=True))


def ended_oldest_first(connection: Connection, *, provisioning: bool = False) -> tuple[tuple[RunId, str | None], ...]:
    """(run, source hash) of every ended run; those that work for provisioners apart from all others."""
    query = select(runs.c.id, runs.c.source_hash).where(
        runs.c.state.in_(tuple(RUN.terminal)), runs.c.provisioning.is_(provisioning)
    )
    return tuple((row.id, row.source_hash) for row in connection.execute(query.order_by(runs.c.finished_at)))


def sources_in_use(connection: Connection) -> frozenset[str]:
    query = select(runs.c.source_hash).where(runs.c.source_hash.is_not(None)).distinct()
    return frozenset(connection.execute(query).scalars())


def forget(connection: Connection, run_ids: Iterable[RunId]) -> int:
    """Delete ended runs with all that hangs on them; how many."""
    done = connection.execute(delete(runs).where(runs.c.id.in_(tuple(run_ids)), runs.c.state.in_(tuple(RUN.terminal))))
    return done.rowcount


_COUNTS = select(runs.c.jobs_total, runs.c.jobs_finished, runs.c.cancel_requested_at).where(
    runs.c.id == bindparam("id")
)


def counts(connection: Connection, run_id: RunId) -> tuple[int, int, bool]:
    """(jobs in all, jobs finished, being cancelled)."""
    row = connection.execute(_COUNTS, {"id": run_id}).one()
    return row.jobs_total, row.jobs_finished, row.cancel_requested_at is not None
