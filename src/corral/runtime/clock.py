# SPDX-License-Identifier: Apache-2.0
"""The one reader of time. Durations are monotonic seconds, moments microseconds since the Unix epoch."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

Micros = int
SECOND: Micros = 1_000_000


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that only go forward and count a suspended machine's sleep where the system can tell."""
        ...

    def now(self) -> Micros:
        """Wall time, microseconds since the Unix epoch (UTC). For display and for rows, never for durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` of this clock."""
        ...


class SystemClock:
    """The machine's clocks: ``CLOCK_BOOTTIME`` where there is one."""

    def __init__(self) -> None:
        self._source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def monotonic(self) -> float:
        return time.clock_gettime(self._source)

    def now(self) -> Micros:
        return time.time_ns() // 1000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def rfc3339(moment: Micros) -> str:
    """``2025-01-31T10:00:00.000000Z``."""
    # Whole numbers throughout: a float of seconds is off by a microsecond from the next century on.
    seconds, micros = divmod(moment, SECOND)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339(text: str) -> Micros:
    """The inverse of :func:`rfc3339`. :raises ValueError: for any other form."""
    moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
