# SPDX-License-Identifier: Apache-2.0
"""What goes out next: reports and answers first, then log, gathered into chunks worth a frame."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from corral.runtime.clock import Clock
from corral.wire.agent import AgentSession, JobKey, LogSlice
from corral.wire.messages import FromAgent

FLUSH_BYTES = 32 * 1024
"""A chunk of this size is sent at once."""
FLUSH_AFTER = 0.1
"""Seconds after which a smaller one is sent too: what people see as "at once" when they follow a log."""
FLUSH_BEFORE_REPORT = 256 * 1024
"""Bytes of a step's log sent before the report of its end, so that a reader rarely waits for the rest; a longer
rest follows the report, for the state must not wait behind hundreds of megabytes."""

ReadLog = Callable[[JobKey, int, int, int], bytes]


class Outbox:
    """Messages of one agent in the order they are sent. Only the connection's sender takes."""

    def __init__(self, session: AgentSession, read: ReadLog, clock: Clock) -> None:
        self._session = session
        self._read = read
        self._clock = clock
        self._first: deque[FromAgent] = deque()
        self._wake = asyncio.Event()
        self._due: dict[tuple[JobKey, int], float] = {}

    def put(self, message: FromAgent) -> None:
        self._first.append(message)
        self._wake.set()

    def wake(self) -> None:
        """There may be more to send: log grew, was stored, or a session was made."""
        self._wake.set()

    def clear(self) -> None:
        """A new connection: what the old one did not take is told by the session again."""
        self._first.clear()
        self._due.clear()

    def flush(self, key: JobKey, step: int) -> None:
        """Put the (small) rest of this step's log before what is put next."""
        budget = FLUSH_BEFORE_REPORT
        while budget > 0:
            piece = next((p for p in self._session.pending_logs() if (p.key, p.step) == (key, step)), None)
            if piece is None:
                return
            message = self._log(piece)
            if message is None:
                return
            budget -= piece.length
            self.put(message)

    async def take(self) -> FromAgent:
        """The next message; waits until there is one."""
        while True:
            self._wake.clear()
            message = self._first.popleft() if self._first else self._next_log()
            if message is not None:
                return message
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_due()):
                    await self._wake.wait()

    def _next_log(self) -> FromAgent | None:
        now = self._clock.monotonic()
        pieces = self._session.pending_logs()
        for gone in self._due.keys() - {(piece.key, piece.step) for piece in pieces}:
            del self._due[gone]
        for piece in pieces:
            if self._worth_sending(piece, now):
                self._due.pop((piece.key, piece.step), None)
                return self._log(piece)
        return None

    def _worth_sending(self, piece: LogSlice, now: float) -> bool:
        if piece.length >= FLUSH_BYTES or self._session.log_closed(piece.key, piece.step):
            return True
        return now >= self._due.setdefault((piece.key, piece.step), now + FLUSH_AFTER)

    def _until_due(self) -> float | None:
        if not self._due:
            return None
        return max(0.001, min(self._due.values()) - self._clock.monotonic())

    def _log(self, piece: LogSlice) -> FromAgent | None:
        data = self._read(piece.key, piece.step, piece.offset, piece.length)
        return self._session.log(piece, data, self._clock.now()) if data else None
