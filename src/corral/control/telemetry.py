# SPDX-License-Identifier: Apache-2.0
"""One coordinator's metrics: what its loops count, and what it sees of itself when it is scraped."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from corral import __version__
from corral.control import levels
from corral.control import measures as m
from corral.control.bell import Bell, ended_topic
from corral.control.failures import FailureTracker
from corral.control.leaks import Ledger
from corral.control.scaler import Reasons
from corral.control.sessions import Sessions
from corral.decide.scaling import NotDone
from corral.model.errors import TemporaryError
from corral.model.pools import Caps, Pool
from corral.runtime.clock import SECOND, Clock
from corral.runtime.metrics import Level, Metrics
from corral.runtime.service import Service
from corral.store.interface import Database

log = logging.getLogger(__name__)


class Telemetry:
    """``directories``: where the server keeps things, by the place's name."""

    def __init__(
        self,
        metrics: Metrics,
        clock: Clock,
        *,
        epoch: Callable[[], tuple[int, int]],
        directories: Mapping[str, Path],
        pools: Callable[[], tuple[Pool, ...]],
        caps: Callable[[], Caps],
        failures: FailureTracker,
    ) -> None:
        self.metrics = metrics
        self._clock = clock
        self._epoch = epoch
        self._directories = directories
        self._pools = pools
        self._caps = caps
        self._failures = failures
        self._began = clock.monotonic()
        self._started_at = clock.now()

    def watch(self, services: Sequence[Service], bell: Bell) -> None:
        """Count the passes of these services, and the jobs whose end is rung."""
        for service in services:
            service.on_pass = self._passed
        for result in m.JOBS_ENDED.labels[0].values:
            bell.listen(ended_topic(result), lambda result=result: self.metrics.count(m.JOBS_ENDED, result=result))  # type: ignore[misc]

    def _passed(self, name: str, seconds: float, succeeded: bool) -> None:
        self.metrics.count(m.SERVICE_PASSES, service=name, outcome="succeeded" if succeeded else "failed")
        self.metrics.observe(m.SERVICE_SECONDS, seconds, service=name)

    async def follow_failures(self, database: Database, *, counted: bool = True) -> None:
        """``counted``: False for what was there before this coordinator started."""
        for failure in await self._failures.follow(database):
            if counted:
                bound = "true" if failure.bound else "false"
                self.metrics.count(m.FAILURES, pool=failure.pool, backend=failure.backend, bound=bound)

    async def render(
        self,
        database: Database,
        sessions: Sessions,
        reasons: Reasons,
        services: Sequence[Service],
        ask: Ledger,
    ) -> bytes:
        """Text for Prometheus. A database that is away takes its gauges along, never the rest: then one looks here."""
        shown = [*self._own(sessions, reasons, services), *await self._disk()]
        try:
            await self.follow_failures(database)
            found, ledger = await database.read(levels.take), await ask()
        except TemporaryError as error:
            log.warning("metrics without what the database knows: %s", error)
        else:
            shown += levels.levels(found, ledger, self._pools(), self._caps())
        return self.metrics.render(shown)

    def _own(self, sessions: Sessions, reasons: Reasons, services: Sequence[Service]) -> Iterator[Level]:
        yield Level(metric=m.BUILD_INFO, values=(__version__,), value=1)
        yield Level(metric=m.START_TIME, value=self._started_at / SECOND)
        generation, counter = self._epoch()
        yield Level(metric=m.EPOCH_GENERATION, value=generation)
        yield Level(metric=m.EPOCH_COUNTER, value=counter)
        yield Level(metric=m.FAILURES_DROPPED, value=self._failures.dropped)
        yield Level(metric=m.SESSIONS, value=len(sessions.all()))
        yield Level(metric=m.LOGS_STALLED, value=sum(session.log_stalled for session in sessions.all()))
        now = self._clock.monotonic()
        for service in services:
            last = service.last_pass if service.last_pass is not None else self._began
            yield Level(metric=m.SERVICE_AGE, values=(service.name,), value=max(0.0, now - last))
        waiting = [item.reason for item in reasons.unplaced.values()]
        for reason in NotDone:
            yield Level(metric=m.JOBS_WAITING, values=(reason,), value=waiting.count(reason))

    async def _disk(self) -> list[Level]:
        """In a thread: a network disk that is away answers after minutes."""
        if not self._directories:
            return []
        found = await asyncio.to_thread(lambda: {place: free_bytes(path) for place, path in self._directories.items()})
        return [
            Level(metric=m.DISK_FREE, values=(place,), value=free) for place, free in found.items() if free is not None
        ]


def free_bytes(directory: Path) -> int | None:
    """What an ordinary user may still write there; None: it cannot be asked."""
    try:
        space = os.statvfs(directory)
    except OSError:
        return None
    return space.f_bavail * space.f_frsize
