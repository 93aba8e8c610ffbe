# SPDX-License-Identifier: Apache-2.0
"""A directory of entries that outlive jobs, shared by agents: bounded, the longest unused go first.

Each entry has a lock file beside the directory: whoever uses the entry holds it shared, whoever makes or removes it
alone. The file's time is when the entry was last used, its content the entry's size in bytes. The kernel gives a
lock back when its holder dies, so nothing here outlives a crash. Jobs can write to the directory: nothing in it is
trusted, and nothing that they do to it makes more than a slower job.

What is being made lies beside the entries under a name with :data:`PART` before it, held by whoever makes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import NamedTuple

from corral.agent.workdir import remove

PART = ".part-"


class Held:
    """One entry's lock."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def record(self, size: int) -> None:
        """The entry is whole and has this many bytes."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(size).encode(), 0)

    def recorded(self) -> int | None:
        """The size that the entry had when it was whole."""
        text = os.pread(self._fd, 32, 0)
        return int(text) if text.isdigit() else None

    def used(self) -> None:
        """It is used now."""
        os.utime(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Entry(NamedTuple):
    name: str
    last_used: int
    size: int


class Cache:
    """:param limit: bytes that all entries may have together. :param count: how many there may be."""

    def __init__(self, directory: Path, *, limit: int, count: int) -> None:
        self.directory = directory
        self._locks = directory.parent / ".locks" / directory.name
        self._limit = limit
        self._count = count

    def path(self, name: str) -> Path:
        return self.directory / name

    def hold(self, name: str, *, alone: bool = False) -> Held | None:
        """The entry's lock, whether or not the entry is there; None: somebody else has it. Never waits.

        :param alone: nobody else shall use, make or remove the entry.
        :raises OSError: the disk does not take it.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._locks.mkdir(parents=True, exist_ok=True)
        file = self._locks / name
        while True:
            fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            if _same(fd, file):
                return Held(fd)
            # It was removed with its entry between opening and locking: another one has taken its place.
            os.close(fd)

    def forget_lock(self, name: str) -> None:
        """The lock file is not needed any more; only for a holder that is alone."""
        (self._locks / name).unlink(missing_ok=True)

    def discard(self, name: str) -> None:
        """Remove the entry; only for a holder that is alone."""
        path = self.path(name)
        if path.is_dir() and not path.is_symlink():
            remove(path)
        else:
            path.unlink(missing_ok=True)

    def trim(self) -> tuple[str, ...]:
        """Remove entries until the rest is within the bounds, and what was half made by somebody who died; the names
        of the entries. One that is in use stays, and counts."""
        self._sweep()
        entries = sorted(self._entries(), key=lambda entry: entry.last_used)
        total, count = sum(entry.size for entry in entries), len(entries)
        gone = []
        for entry in entries:
            if total <= self._limit and count <= self._count:
                break
            if self._remove(entry.name):
                gone.append(entry.name)
                total, count = total - entry.size, count - 1
        return tuple(gone)

    def _sweep(self) -> None:
        with contextlib.suppress(OSError):
            for path in self.directory.glob(f"{PART}*"):
                self._remove(path.name)

    def _entries(self) -> list[_Entry]:
        found = []
        with contextlib.suppress(OSError):
            for path in self.directory.iterdir():
                if not path.name.startswith(PART):
                    with contextlib.suppress(OSError):
                        found.append(self._entry(path))
        return found

    def _entry(self, path: Path) -> _Entry:
        lock = self._locks / path.name
        try:
            text, used = lock.read_bytes()[:32], lock.stat().st_mtime_ns
        except OSError:
            # Nobody's: a remainder, or something that a job put there.
            text, used = b"", 0
        return _Entry(path.name, used, int(text) if text.isdigit() else size_of(path))

    def _remove(self, name: str) -> bool:
        with contextlib.suppress(OSError):
            held = self.hold(name, alone=True)
            if held is not None:
                try:
                    self.discard(name)
                    self.forget_lock(name)
                    return True
                finally:
                    held.close()
        return False


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files of a tree but compiled Python, which comes by use. Links are not followed."""
    status = path.lstat()
    if not path.is_dir() or path.is_symlink():
        return status.st_size
    total, waiting = 0, [path]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        waiting.append(Path(entry.path))
                else:
                    with contextlib.suppress(OSError):
                        total += entry.stat(follow_symlinks=False).st_size
    return total


def _same(fd: int, file: Path) -> bool:
    try:
        there, ours = file.lstat(), os.fstat(fd)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
