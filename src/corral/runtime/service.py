# SPDX-License-Identifier: Apache-2.0
"""One shape for everything long-lived: idempotent start and stop, one pass apart from the loop.

A :class:`Service` is level-triggered: it runs a pass when woken and at the latest every ``interval`` seconds,
so a lost wake-up costs time, never correctness. A pass that fails is logged and repeated with a growing pause;
it never ends the loop, and never means that anything should be destroyed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

from corral.model.errors import CorralError
from corral.runtime.clock import Clock

log = logging.getLogger(__name__)

FAILURE_PAUSE_MAX = 30.0
"""Seconds: the longest pause after repeatedly failing passes; short enough to notice a recovered database."""


class Service(ABC):
    """A loop with a name. Subclasses write :meth:`run_once`."""

    name: str = "service"
    interval: float = 1.0
    """Seconds between passes when nobody wakes it."""
    rest: float = 0.0
    """How long it rests after a pass, in units of what the pass took: 4 keeps a loop that is woken all the time to a
    fifth of the processor."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.last_pass: float | None = None
        """Monotonic second of the last completed pass: the progress watchdog reads it."""
        self.on_pass: Callable[[str, float, bool], None] | None = None
        """Told after each pass: the service's name, seconds, whether it succeeded."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._turn = asyncio.Lock()

    @abstractmethod
    async def run_once(self) -> None:
        """One pass over the whole current state. Running it twice in a row does nothing the second time."""

    async def on_start(self) -> None:
        """What has to be there before the first pass. An error here is the caller's."""

    async def on_stop(self) -> None:
        """Give back what the service holds; called once, after the loop has ended."""

    def wake(self) -> None:
        """Make the next pass start now instead of at the interval."""
        self._wake.set()

    async def start(self) -> None:
        """Start the loop; a second call does nothing. Calls from many sides take turns, with those of :meth:`stop`."""
        async with self._turn:
            if self._task is None:
                self._stopping = False
                await self.on_start()
                self._task = asyncio.create_task(self._loop(), name=self.name)

    async def stop(self, grace: float = 5.0) -> None:
        """End the loop after the pass in hand, at the latest after ``grace`` seconds; a second call does nothing."""
        async with self._turn:
            task, self._task = self._task, None
            if task is None:
                return
            self._stopping = True
            self._wake.set()
            done, _ = await asyncio.wait({task}, timeout=grace)
            if not done:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await self.on_stop()

    async def _loop(self) -> None:
        failures = 0
        while not self._stopping:
            self._wake.clear()
            began = self.clock.monotonic()
            try:
                await self.run_once()
                self.last_pass = self.clock.monotonic()
                failures = 0
            except CorralError as error:
                failures += 1
                log.warning("%s: %s (%d passes failed in a row; repeated)", self.name, error, failures)
            except Exception:
                failures += 1
                log.exception("%s: a pass failed (%d in a row); repeated", self.name, failures)
            if self.on_pass is not None:
                self.on_pass(self.name, self.clock.monotonic() - began, not failures)
            await self._rest(began)
            await self._pause(failures)

    async def _rest(self, began: float) -> None:
        pause = min(self.rest * (self.clock.monotonic() - began), self.interval)
        if pause > 0 and not self._stopping:
            await self.clock.sleep(pause)

    async def _pause(self, failures: int) -> None:
        if self._stopping:
            return
        pause = self.interval
        if failures:
            pause = min(max(self.interval, 0.1) * 2 ** min(failures, 16), FAILURE_PAUSE_MAX)
            self._wake.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), pause)
