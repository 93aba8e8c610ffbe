# SPDX-License-Identifier: Apache-2.0
"""A clock that the test moves."""

from __future__ import annotations

from corral.runtime.clock import SECOND, Micros

START: Micros = 1_735_689_600 * SECOND
"""2025-01-01T00:00:00Z."""


class ManualClock:
    """A :class:`~corral.runtime.clock.Clock`; sleeping moves it."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def monotonic(self) -> float:
        return self._seconds

    def now(self) -> Micros:
        return START + round(self._seconds * SECOND)

    async def sleep(self, seconds: float) -> None:
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        self._seconds += seconds
