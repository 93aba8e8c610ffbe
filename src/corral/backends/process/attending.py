# SPDX-License-Identifier: Apache-2.0
"""What every warden does: wait for its children and for signals, and end all that is left. Standard library only."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

from . import killing

LONGEST_POLL = 5.0
"""Seconds. poll() does not count a suspended machine's sleep, a deadline does: look at the clock this often."""
REAP_PAUSE = 0.02
"""Seconds between two rounds of killing when something needs more than one."""


class Wakeups:
    """``fd`` becomes readable when a child ends or a signal comes; SIGTERM is told to ``on_term``, what a terminal
    sends is ignored: of a terminal it reaches only the coordinator's session, but may also be sent by hand."""

    def __init__(self, on_term: Callable[[], None]) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        self._on_term = on_term

    def listen(self) -> None:
        """From now on, in the main thread."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._on_term())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def drain(self) -> None:
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass

    def wait(self, seconds: float) -> None:
        select.select([self.fd], [], [], seconds)
        self.drain()


def end_everything(wakeups: Wakeups, reap: Callable[[], bool], also: Callable[[], None] = lambda: None) -> None:
    """Kill until nothing is left; what cannot die yet (uninterruptible) is waited for. ``reap`` collects the dead and
    tells whether a living child is left; ``also`` kills by another way first."""
    while True:
        also()
        killing.freeze_and_kill(os.getpid())
        if not reap():
            return
        wakeups.wait(REAP_PAUSE)
        if not reap():
            return


def boottime() -> float:
    """Seconds that count a suspended machine's sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
