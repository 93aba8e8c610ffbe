# SPDX-License-Identifier: Apache-2.0
"""Log bytes on disk until they are acknowledged: one :class:`StepSpool` per step, one :class:`Budget` per agent.

A writer (the step's pump, a thread) appends; the event loop reads from any offset that is not acknowledged yet and
says what is stored. When the budget is used up, ``append`` waits, the pipe is not read, and the step is slowed:
nothing is lost; or, where somebody decided so, what does not fit is dropped, counted and marked. Bytes are kept in
segments whose files have no name, so nothing is left of them after a crash (a spool is of no use to another process:
the coordinator asks a new one for nothing).

Threads: every public method may be called from any thread.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SEGMENT = 4 * 1024 * 1024
"""Bytes of one segment: small enough that disk space comes back soon, large enough for few files."""
SEGMENTS_OF_LIMIT = 8
"""A segment is at most this fraction of the budget, so that acknowledging can always free some."""
RESUME_AT = 4
"""Where bytes are dropped, this part of the budget has to be free again before more are kept: long gaps with one
marker each, not thousands of short ones."""
FULL_DISK_PATIENCE = 3.0
"""Seconds an append waits for the disk to take bytes again before it drops them and says so: acknowledged log frees
some within a second, and a job that filled the disk itself shall end, not hang."""
FULL_DISK_LOOK = 0.25
"""Seconds between two tries on a full disk."""


class Budget:
    """Bytes that all spools of one agent may hold together. ``drop``: nobody waits for room, what does not fit is
    lost."""

    def __init__(self, limit: int, *, drop: bool = False) -> None:
        self.limit = limit
        self.drop = drop
        self.segment = max(1, min(SEGMENT, limit // SEGMENTS_OF_LIMIT))
        self.used = 0
        self._changed = threading.Condition()
        self._closed = False

    def take(self, wanted: int, *, urgent: bool = False) -> int:
        """Wait for room; how many bytes (at least one, at most ``wanted``) are granted; 0: none, because it is closed
        or what does not fit is dropped. ``urgent``: all of them now, above the limit if need be."""
        with self._changed:
            if urgent:
                self.used += wanted
                return wanted
            while self.used >= self.limit and not self._closed and not self.drop:
                self._changed.wait()
            if self._closed or self.used >= self.limit:
                return 0
            granted = min(wanted, self.limit - self.used)
            self.used += granted
            return granted

    def roomy(self) -> bool:
        """There is room for more than a few bytes: worth going on after something was dropped."""
        with self._changed:
            return self.used <= self.limit - self.limit // RESUME_AT

    def give(self, count: int) -> None:
        with self._changed:
            self.used -= count
            self._changed.notify_all()

    def close(self) -> None:
        """Let every waiting writer go, with nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Digest(NamedTuple):
    """What a whole log is. ``dropped``: printed bytes that are not in it."""

    size: int
    sha256: str
    dropped: int


class _Segment:
    __slots__ = ("fd", "size", "start")

    def __init__(self, fd: int, start: int) -> None:
        self.fd = fd
        self.start = start
        self.size = 0


class StepSpool:
    """One step's log. ``limit``: bytes kept of it; what is printed beyond is counted, and a marker says so.

    One writer at a time. Offsets count from the log's first byte. ``grew`` is called in the writer's thread after each
    write, also in the middle of an append that waits for room: only what was announced can be acknowledged.
    """

    def __init__(
        self,
        directory: Path,
        budget: Budget,
        limit: int,
        *,
        grew: Callable[[], None] = lambda: None,
        patience: float = FULL_DISK_PATIENCE,
    ) -> None:
        self._directory = directory
        self._budget = budget
        self._limit = limit
        self._grew = grew
        self._patience = patience
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []
        self._sha256 = hashlib.sha256()
        self._dropped = 0
        self._unmarked = 0
        self._why = ""
        self._overflowed = False
        self._printed = 0
        self._limited = False
        self._abandoned = threading.Event()
        self._stored = 0
        self._closed = False
        self.end = 0

    def append(self, data: bytes) -> None:
        """Keep ``data``; waits while the budget is used up. Never raises: what cannot be kept is counted."""
        room = max(0, self._limit - self._printed)
        self._printed += len(data)
        if room < len(data):
            kept, over = data[:room], len(data) - room
            self._keep(kept)
            if not self._limited:
                self._limited = True
                self._keep(f"\n[corral: log limit of {self._limit} bytes reached; what follows is not kept]\n".encode())
            self._dropped += over
            return
        self._keep(data)

    def mark(self, sentence: str) -> None:
        """A line of Corral's own in the log, beyond any limit. Never waits: it is called in the event loop, which
        must be free to hear what would make room."""
        self._keep(f"[corral: {sentence}]\n".encode(), urgent=True)

    def close(self) -> Digest:
        """Nothing more will be appended; what the whole log is."""
        if self._unmarked:
            self._keep(b"", urgent=True)
        self._closed = True
        self.stored(self._stored)
        return Digest(self.end, self._sha256.hexdigest(), self._dropped)

    def read(self, offset: int, limit: int) -> bytes:
        """At most ``limit`` bytes from ``offset``; empty at the end and below what was acknowledged."""
        with self._lock:
            for segment in self._segments:
                if segment.start <= offset < segment.start + segment.size:
                    within = offset - segment.start
                    return os.pread(segment.fd, min(limit, segment.size - within), within)
        return b""

    def stored(self, offset: int) -> None:
        """Bytes below ``offset`` are on the coordinator's stable storage."""
        with self._lock:
            self._stored = max(self._stored, offset)
            done = [segment for segment in self._segments if self._is_done(segment)]
            self._segments = [segment for segment in self._segments if segment not in done]
        self._free(done)

    def _is_done(self, segment: _Segment) -> bool:
        # The one being filled stays while the step runs, or a chatty step would make a file per chunk.
        full = segment.size >= self._budget.segment or self._closed
        return full and segment.start + segment.size <= self._stored

    def abandon(self) -> None:
        """Nobody will read it any more; appends from here on go nowhere."""
        self._abandoned.set()
        with self._lock:
            segments, self._segments = self._segments, []
        self._free(segments)

    def _free(self, segments: list[_Segment]) -> None:
        for segment in segments:
            os.close(segment.fd)
            self._budget.give(segment.size)

    def _keep(self, data: bytes, *, urgent: bool = False) -> None:
        if self._overflowed and not urgent and not self._budget.roomy():
            self._lose(len(data))
            return
        self._overflowed = False
        marker = b""
        if self._unmarked:
            marker = f"\n[corral: {self._unmarked} bytes were not kept: {self._why}]\n".encode()
        view = memoryview(marker + data)
        while view and not self._abandoned.is_set():
            written = self._write_some(view, urgent)
            if written == 0:
                # A marker that could not be written whole is told again, with what is lost now.
                self._lose(min(len(view), len(data)))
                return
            view = view[written:]
            if marker and len(view) <= len(data):
                marker, self._unmarked = b"", 0

    def _lose(self, count: int) -> None:
        self._dropped += count
        self._unmarked += count

    def _write_some(self, view: memoryview, urgent: bool) -> int:
        """Write at least one byte and return how many; 0: it cannot be kept."""
        granted = self._budget.take(min(len(view), self._room()), urgent=urgent)
        if granted == 0:
            self._overflowed = True
            self._why = f"the coordinator had not taken {self._budget.limit} bytes before them"
            return 0
        written = self._write_patiently(view[:granted], 0.0 if urgent else self._patience)
        if written == 0:
            self._why = "the agent's disk is full"
        if written < granted:
            self._budget.give(granted - written)
        self._sha256.update(view[:written])
        self.end += written
        self._grew()
        return written

    def _room(self) -> int:
        with self._lock:
            used = self._segments[-1].size if self._segments else 0
        return self._budget.segment - used if used < self._budget.segment else self._budget.segment

    def _write_patiently(self, view: memoryview, patience: float) -> int:
        # The pump's own thread waits for a disk, not for anything that a clock is injected for.
        give_up = time.monotonic() + patience
        while True:
            try:
                return self._write(view)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO) or time.monotonic() >= give_up:
                    return 0
            if self._abandoned.wait(FULL_DISK_LOOK):
                return 0

    def _write(self, view: memoryview) -> int:
        with self._lock:
            if self._abandoned.is_set():
                return 0
            if not self._segments or self._segments[-1].size >= self._budget.segment:
                self._segments.append(_Segment(_nameless(self._directory), self.end))
            segment = self._segments[-1]
            written = os.pwrite(segment.fd, view, segment.size)
            segment.size += written
            return written


def _nameless(directory: Path) -> int:
    """A file without a name in ``directory``, readable and writable."""
    with contextlib.suppress(OSError):
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fd, name = tempfile.mkstemp(dir=directory)
    Path(name).unlink()
    return fd
