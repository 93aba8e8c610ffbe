# SPDX-License-Identifier: Apache-2.0
"""One step's output on its way from the pipe through the masker into the spool: a thread per running step.

A thread, because the spool waits (for room, for the disk) and because masking and hashing megabytes must not delay
the event loop, which answers heartbeats.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import threading
import time
from collections.abc import Callable

from corral.agent.masking import Masker
from corral.agent.spool import StepSpool

READ = 256 * 1024
"""Bytes per read: large enough that masking is not dominated by its fixed cost."""
PIPE_SIZE = 1024 * 1024
"""Bytes the pipe holds: fewer switches between a step that prints a lot and us."""
SURVIVOR_PATIENCE = 1.0
"""Seconds to wait for the pipe's end once the step's own processes are gone."""


class Pump:
    """Reads ``fd`` (owned from here on) to its end.

    :param learn: called before each piece is masked; may add secrets that the step registered meanwhile.
    :param done: called from the pump's thread when everything is in the spool.
    """

    def __init__(
        self,
        fd: int,
        *,
        masker: Masker,
        spool: StepSpool,
        learn: Callable[[], None],
        done: Callable[[], None],
    ) -> None:
        self._fd = fd
        self._masker = masker
        self._spool = spool
        self._learn = learn
        self._done = done
        self._ended_at: float | None = None
        self._owed = 0
        self.held_open = False
        """A process that outlived the step kept the pipe open."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(fd, False)
        self._thread = threading.Thread(target=self._run, name="corral-pump", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def process_ended(self) -> None:
        """The step's processes are gone: what the pipe holds is still read, then at most a moment waited."""
        os.write(self._wake_write, b"x")

    def join(self) -> None:
        """Wait for the thread's end, a moment after ``done``."""
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        try:
            while self._step():
                pass
            self._learn()
            self._put(self._masker.flush())
        finally:
            os.close(self._fd)
            self._done()

    def _step(self) -> bool:
        """Wait for something and take it; False at the end."""
        watched = [self._fd] if self._ended_at is not None else [self._fd, self._wake_read]
        ready, _, _ = select.select(watched, [], [], self._patience())
        if self._wake_read in ready:
            self._note_end()
        if self._fd in ready:
            return self._take()
        if self._ended_at is not None and self._patience() == 0.0:
            self.held_open = True
            return False
        return True

    def _patience(self) -> float | None:
        # Real time in a thread of its own: waiting for a foreign process, not a decision.
        if self._ended_at is None:
            return None
        return max(0.0, self._ended_at + SURVIVOR_PATIENCE - time.monotonic())

    def _note_end(self) -> None:
        self._ended_at = time.monotonic()
        # What was printed before the end is in the pipe now; what comes later is a survivor's.
        count = fcntl.ioctl(self._fd, termios.FIONREAD, struct.pack("i", 0))
        self._owed = struct.unpack("i", count)[0]

    def _take(self) -> bool:
        try:
            data = os.read(self._fd, READ)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._learn()
        self._put(self._masker.feed(data))
        if self._ended_at is None:
            return True
        self._owed -= len(data)
        if self._owed > 0:
            # Slow to store is not slow to end: the patience counts from the last byte that was owed.
            self._ended_at = time.monotonic()
        elif self._patience() == 0.0:
            self.held_open = True
            return False
        return True

    def _put(self, data: bytes) -> None:
        if data:
            self._spool.append(data)


def widen(fd: int) -> None:
    """Make the pipe as large as allowed; a system that refuses keeps its default."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    except OSError:
        return
