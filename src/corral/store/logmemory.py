# SPDX-License-Identifier: Apache-2.0
"""Logs in memory, with failure switches: for control's tests and the simulator. No threads, no clock."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from corral.model.errors import Refused, StoreUnavailable
from corral.model.ids import RunId
from corral.store.interface import LogInfo, LogKey

CHUNK = 1024 * 1024


@dataclass(eq=False, kw_only=True)
class MemoryLog:
    """``times``: (offset, microseconds) of each append that added bytes. ``missing``: stated as lost at the end."""

    data: bytearray = field(default_factory=bytearray)
    times: list[tuple[int, int]] = field(default_factory=list)
    final: bool = False
    missing: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def info(self) -> LogInfo:
        digest = hashlib.sha256(self.data).hexdigest() if self.final else ""
        return LogInfo(size=len(self.data), final=self.final, digest=digest)

    def wake(self) -> None:
        """Whoever waits looks again; later waiters wait for the next time."""
        news, self.news = self.news, asyncio.Event()
        news.set()


class MemoryLogs:
    """A :class:`~corral.store.interface.LogStore`.

    ``available = False``: writes fail with StoreUnavailable. ``stall()`` holds writes back until ``resume()``;
    ``lose_answers``: that many next appends are stored, but their caller gets StoreUnavailable.
    """

    def __init__(self) -> None:
        self.available = True
        self.lose_answers = 0
        self.logs: dict[LogKey, MemoryLog] = {}
        self._flowing = asyncio.Event()
        self._flowing.set()

    def stall(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    async def append(self, key: LogKey, offset: int, data: bytes, time: int) -> int:
        await self._writable()
        log = self._log(key)
        size = len(log.data)
        new = data[max(size - offset, 0) :]
        if new and log.final:
            raise Refused(f"the log is final with {size} bytes; nothing can be added")
        if offset > size or offset < 0:
            raise Refused(f"the log has {size} bytes; {offset} would leave a gap")
        if new:
            log.times.append((size, time))
            log.data += new
            log.wake()
        if self.lose_answers:
            self.lose_answers -= 1
            raise StoreUnavailable("the answer was lost on purpose")
        return len(log.data)

    async def finish(self, key: LogKey, missing: int = 0) -> LogInfo:
        await self._writable()
        log = self._log(key)
        if not log.final:
            log.final, log.missing = True, missing
            log.wake()
        return log.info()

    async def info(self, key: LogKey) -> LogInfo:
        log = self.logs.get(key)
        return LogInfo(size=0, final=False, digest="") if log is None else log.info()

    async def read(self, key: LogKey, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        log = self.logs.get(key)
        data = b"" if log is None else bytes(log.data)
        stop = len(data) if end is None else min(end, len(data))
        for at in range(max(start, 0), stop, CHUNK):
            yield data[at : min(at + CHUNK, stop)]

    async def changed(self, key: LogKey, size: int) -> None:
        log = self._log(key)
        while not (log.final or len(log.data) > size or self.logs.get(key) is not log):
            await log.news.wait()

    async def delete_run(self, run_id: RunId) -> int:
        gone = [key for key in self.logs if key.run_id == run_id]
        freed = 0
        for key in gone:
            log = self.logs.pop(key)
            freed += len(log.data)
            log.wake()
        return freed

    async def usage(self) -> dict[RunId, int]:
        sizes: dict[RunId, int] = {}
        for key, log in self.logs.items():
            sizes[key.run_id] = sizes.get(key.run_id, 0) + len(log.data)
        return sizes

    async def close(self) -> None:
        self.available = False
        for log in self.logs.values():
            log.wake()

    async def _writable(self) -> None:
        await self._flowing.wait()
        if not self.available:
            raise StoreUnavailable("the log store is switched off")

    def _log(self, key: LogKey) -> MemoryLog:
        return self.logs.setdefault(key, MemoryLog())
