# SPDX-License-Identifier: Apache-2.0
"""Reading logs: which bytes belong to a step, and following a job's whole log as it is written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sqlalchemy import Connection

from corral.control import bell, queries
from corral.control.api import LogPart
from corral.control.bell import Bell
from corral.model.errors import NotFound
from corral.model.ids import JobId
from corral.model.records import Job
from corral.model.states import ATTEMPT, JOB, STEP
from corral.store.interface import Database, LogKey, LogStore
from corral.store.repo import jobs

LOOK_AGAIN = 1.0
"""Seconds after which a follower looks at the state itself, should no bell have rung."""


def key_of(connection: Connection, job_id: JobId, attempt: int | None, step: int) -> LogKey:
    """:raises NotFound: no such job, attempt or step."""
    return extent(connection, job_id, attempt, step)[0]


def extent(connection: Connection, job_id: JobId, attempt: int | None, step: int) -> tuple[LogKey, int | None]:
    """The log and how many bytes it will have in the end; None while that is not known."""
    job, number = _found(connection, job_id, attempt, step)
    key = LogKey(run_id=job.run_id, job_id=job_id, attempt=number, step=step)
    return key, _whole(connection, job, number, step)


def _found(connection: Connection, job_id: JobId, attempt: int | None, step: int) -> tuple[Job, int]:
    """The job and the attempt meant. :raises NotFound: no such job, attempt or step."""
    job = queries.required(connection, job_id)
    if not 0 <= step < _count(job):
        raise NotFound(f"job {job.name} has {_count(job)} steps, numbered from 0; there is no step {step}")
    if attempt is not None and jobs.attempt(connection, job_id, attempt) is None:
        raise NotFound(f"job {job.name} has no attempt {attempt}")
    return job, job.attempt if attempt is None else attempt


def _count(job: Job) -> int:
    return len(job.spec.steps) + len(job.spec.cleanup)


def _whole(connection: Connection, job: Job, attempt: int, step: int) -> int | None:
    row = jobs.step(connection, job.id, attempt, step)
    if row is not None and row.state in STEP.terminal:
        return row.log_size or 0
    tried = jobs.attempt(connection, job.id, attempt)
    if job.state in JOB.terminal or (tried is not None and tried.state in ATTEMPT.terminal):
        # Nothing more will be said about this step.
        return 0
    return None


@dataclass(frozen=True, kw_only=True)
class _Situation:
    key: LogKey
    whole: int | None
    last: bool
    over: bool


class Follower:
    """Sends what is stored, then waits for more; ends when the last step's last byte was sent."""

    def __init__(self, database: Database, logs: LogStore, bell_: Bell) -> None:
        self._db = database
        self._logs = logs
        self._bell = bell_

    async def follow(self, job_id: JobId, attempt: int | None, step: int, offset: int) -> AsyncIterator[LogPart]:
        number = attempt
        while True:
            run_topic = bell.run_topic((await self._db.read(lambda c: queries.required(c, job_id))).run_id)
            ticket = self._bell.ticket(run_topic)
            try:
                state = await self._look(job_id, number, step)
                number = state.key.attempt or number
                sent = offset
                async for part in self._new(state, step, offset):
                    offset = part.offset + len(part.data)
                    yield part
                    if part.final:
                        if state.last:
                            return
                        step, offset = step + 1, 0
                if offset == sent and not (state.whole is not None and sent >= state.whole):
                    await self._more(state, offset, run_topic, ticket)
            finally:
                self._bell.drop(run_topic, ticket)

    async def _look(self, job_id: JobId, attempt: int | None, step: int) -> _Situation:
        return await self._db.read(lambda c: _situation(c, job_id, attempt, step))

    async def _new(self, state: _Situation, step: int, offset: int) -> AsyncIterator[LogPart]:
        """What is stored beyond ``offset``; the last part says so when the log is complete."""
        info = await self._logs.info(state.key)
        whole = state.whole if state.whole is not None else (info.size if info.final else None)
        if state.over:
            whole = info.size
        async for data in self._logs.read(state.key, offset, info.size):
            yield LogPart(step=step, offset=offset, data=data, final=False)
            offset += len(data)
        if whole is not None and offset >= whole:
            yield LogPart(step=step, offset=offset, data=b"", final=True)

    async def _more(self, state: _Situation, offset: int, topic: str, ticket: asyncio.Future[None]) -> None:
        """Until more is stored, or the run changed, or a moment passed."""
        stored = asyncio.ensure_future(self._logs.changed(state.key, offset))
        try:
            await asyncio.wait({stored, ticket}, timeout=LOOK_AGAIN, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stored.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await stored


def _situation(connection: Connection, job_id: JobId, attempt: int | None, step: int) -> _Situation:
    job, number = _found(connection, job_id, attempt or None, step)
    key = LogKey(run_id=job.run_id, job_id=job_id, attempt=number, step=step)
    over = job.state in JOB.terminal
    return _Situation(key=key, whole=_whole(connection, job, number, step), last=step >= _count(job) - 1, over=over)
