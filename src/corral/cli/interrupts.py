# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM: the first asks to end well, the second ends at once. Nothing is left behind either way."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from corral.cli.exits import ExitCode

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupts:
    """Signals of this process while a run is followed. ``count``: how many came."""

    def __init__(self) -> None:
        self.count = 0
        self.exit_code = ExitCode.INTERRUPTED
        self._came = asyncio.Event()

    @contextlib.contextmanager
    def watched(self) -> Iterator[Interrupts]:
        """Take the signals over, for as long as the context lasts."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, *_ENDING):
            loop.add_signal_handler(number, self._note, number)
        try:
            yield self
        finally:
            for number in (signal.SIGINT, *_ENDING):
                loop.remove_signal_handler(number)

    def _note(self, number: signal.Signals) -> None:
        self.count += 1
        if number != signal.SIGINT:
            self.exit_code = ExitCode.TERMINATED
        self._came.set()

    async def after(self, seen: int) -> None:
        """Return when more than ``seen`` signals have come."""
        while self.count <= seen:
            self._came.clear()
            await self._came.wait()


@contextlib.contextmanager
def ending_cleanly() -> Iterator[None]:
    """Outside of a loop: SIGTERM and SIGHUP unwind as Ctrl-C does, so that what was made is removed."""
    before = {number: signal.signal(number, _exit) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(ExitCode.TERMINATED)
