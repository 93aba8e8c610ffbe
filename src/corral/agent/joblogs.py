# SPDX-License-Identifier: Apache-2.0
"""The logs of one job's steps, and the way from the pumps' threads to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from corral.agent.interface import Reports
from corral.agent.spool import Budget, Digest, StepSpool


class JobLogs:
    """A :class:`~corral.agent.interface.LogSource`."""

    def __init__(self, directory: Path, budget: Budget, limit: int, reports: Reports) -> None:
        self._directory = directory
        self._budget = budget
        self._limit = limit
        self._reports = reports
        self._spools: dict[int, StepSpool] = {}

    def spool(self, step: int) -> StepSpool:
        """The step's, made at its first use."""
        if step not in self._spools:
            grew = self._notifier(step)
            self._spools[step] = StepSpool(self._directory, self._budget, self._limit, grew=grew)
        return self._spools[step]

    def read(self, step: int, offset: int, limit: int) -> bytes:
        spool = self._spools.get(step)
        return spool.read(offset, limit) if spool is not None else b""

    def stored(self, step: int, offset: int) -> None:
        spool = self._spools.get(step)
        if spool is not None:
            spool.stored(offset)

    def mark(self, step: int, sentence: str) -> None:
        """A line of Corral's own."""
        self.spool(step).mark(sentence)

    def close(self, step: int) -> Digest:
        """The step will print no more."""
        digest = self.spool(step).close()
        self._reports.log_grew(step, digest.size, closed=True)
        return digest

    def abandon(self) -> None:
        """Nobody will read them any more."""
        for spool in self._spools.values():
            spool.abandon()

    def _notifier(self, step: int) -> Callable[[], None]:
        """To be called from any thread after the step's spool grew; many calls become one report."""
        loop = asyncio.get_running_loop()
        pending = threading.Event()

        def report() -> None:
            pending.clear()
            self._reports.log_grew(step, self._spools[step].end)

        def grew() -> None:
            if not pending.is_set() and not loop.is_closed():
                pending.set()
                loop.call_soon_threadsafe(report)

        return grew
