# SPDX-License-Identifier: Apache-2.0
"""Clocks over virtual time: one per host, so that hosts can disagree."""

from __future__ import annotations

import asyncio

from corral.runtime.clock import SECOND, Micros

EPOCH: Micros = 1_735_689_600 * SECOND
"""Wall time at virtual second 0: 2025-01-01T00:00:00Z."""


class VirtualClock:
    """A :class:`~corral.runtime.clock.Clock`. ``skew``: seconds by which this host's wall clock is ahead;
    ``started``: what its monotonic clock showed at virtual second 0."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, skew: float = 0.0, started: float = 0.0) -> None:
        self._loop = loop
        self._skew = skew
        self._started = started

    def monotonic(self) -> float:
        return self._loop.time() + self._started

    def now(self) -> Micros:
        return EPOCH + round((self._loop.time() + self._skew) * SECOND)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))
