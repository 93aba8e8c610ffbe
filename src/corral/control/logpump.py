# SPDX-License-Identifier: Apache-2.0
"""From one session's log frames to the log store: coalesced, in order, acknowledged when durable.

A store that cannot take it now is asked again; meanwhile an agent sends no more than its window, keeps the rest on its
disk, and slows the job when that is full. The line is read on, so heartbeats are answered. Nothing is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from corral.model.errors import Refused, TemporaryError
from corral.model.ids import JobId
from corral.runtime.clock import Clock
from corral.store.interface import LogKey, LogStore
from corral.wire.agent import LOG_WINDOW
from corral.wire.messages import LOG_CHUNK_LIMIT, Log, LogAck

log = logging.getLogger(__name__)

BUDGET = LOG_WINDOW + LOG_CHUNK_LIMIT
"""Bytes that one session may have on the way to the store; beyond them it is not read. More than an agent sends without
an acknowledgement: heartbeats stuck behind its log would go unanswered, and a job whose agent is not answered is killed
before its time to be tried again elsewhere."""
APPEND_LIMIT = 1024 * 1024
"""Bytes of one append."""
RETRY_PAUSE = 0.5
RETRY_PAUSE_MAX = 10.0


@dataclass(kw_only=True)
class _Chunk:
    key: LogKey
    offset: int
    data: bytes
    time: int
    dropped: int = 0
    """Bytes that are not to be stored, acknowledged once all before them is durable."""


class LogPump:
    """One per session. ``acknowledge`` is called with each :class:`LogAck` to send, ``stored`` with how many
    bytes became durable."""

    def __init__(
        self,
        logs: LogStore,
        clock: Clock,
        acknowledge: Callable[[LogAck], None],
        stored: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._acknowledge = acknowledge
        self._stored = stored
        self._queue: deque[_Chunk] = deque()
        self._pending = 0
        self._work = asyncio.Event()
        self._progress = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._broken: Exception | None = None
        self.stalled = False
        """True while the store does not accept."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._loop(), name="log-pump")

    async def put(self, key: LogKey, message: Log) -> None:
        """Take one frame; waits while the budget is used up.

        :raises CorralError: the store failed for good: nothing more will be stored over this pump.
        """
        while self._pending >= BUDGET and self._broken is None:
            await self._wait_progress()
        self._check()
        self._queue.append(_Chunk(key=key, offset=message.offset, data=message.data, time=message.time))
        self._pending += len(message.data)
        self._work.set()

    async def drop(self, key: LogKey, message: Log) -> None:
        """Take one frame that is not to be stored, in its place among the others.

        :raises CorralError: as :meth:`put`.
        """
        while self._pending >= BUDGET and self._broken is None:
            await self._wait_progress()
        self._check()
        size = len(message.data)
        self._queue.append(_Chunk(key=key, offset=message.offset, data=b"", time=message.time, dropped=size))
        self._pending += size
        self._work.set()

    async def drained(self) -> None:
        """Return when everything put so far is stored. :raises CorralError: as :meth:`put`."""
        while self._pending and self._broken is None:
            await self._wait_progress()
        self._check()

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _wait_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    async def _loop(self) -> None:
        try:
            while True:
                while not self._queue:
                    self._work.clear()
                    await self._work.wait()
                await self._store_next()
        except Exception as error:
            # Whoever waits here has to hear of it: a session that goes on without its pump would wait for ever.
            self._broken = error
            self._progress.set()

    async def _store_next(self) -> None:
        chunk, taken = self._coalesce()
        await self._store(chunk)
        self._pending -= taken
        self._progress.set()

    def _coalesce(self) -> tuple[_Chunk, int]:
        """The longest run of adjoining frames of one step at the front, as one chunk."""
        first = self._queue.popleft()
        if first.dropped:
            return first, first.dropped
        parts = [first.data]
        size = len(first.data)
        while self._queue and size < APPEND_LIMIT:
            following = self._queue[0]
            if following.dropped or following.key != first.key or following.offset != first.offset + size:
                break
            parts.append(following.data)
            size += len(following.data)
            self._queue.popleft()
        data = first.data if len(parts) == 1 else b"".join(parts)
        return _Chunk(key=first.key, offset=first.offset, data=data, time=first.time), size

    async def _store(self, chunk: _Chunk) -> None:
        if chunk.dropped:
            self._tell(chunk.key, chunk.offset + chunk.dropped)
            return
        pause = RETRY_PAUSE
        while True:
            try:
                stored = await self._logs.append(chunk.key, chunk.offset, chunk.data, chunk.time)
                self._stored(len(chunk.data))
                break
            except Refused:
                # Final already, or a gap the agent will close from its spool: say how far we are.
                stored = (await self._logs.info(chunk.key)).size
                break
            except TemporaryError as error:
                if not self.stalled:
                    log.warning("the log store does not accept: %s; the job that prints is slowed", error)
                self.stalled = True
                await self._clock.sleep(pause)
                pause = min(pause * 2, RETRY_PAUSE_MAX)
        if self.stalled:
            log.info("the log store accepts again")
        self.stalled = False
        self._tell(chunk.key, stored)

    def _tell(self, key: LogKey, offset: int) -> None:
        self._acknowledge(LogAck(job_id=JobId(key.job_id), attempt=key.attempt, step=key.step, offset=offset))
