# SPDX-License-Identifier: Apache-2.0
"""The file behind the path: opened so that a hostile directory cannot misdirect it, read by offset.

Nothing is opened before it is known to be a regular file: an ``O_PATH`` handle has no side effects (no FIFO
partner wakes, no device is touched), and the file is then opened through that same handle, so no swap comes
between.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath

from corral.backends.tail.errors import TailRefused

# Bytes before the offset that are compared at each read: what an append-only file never changes. A shorter
# anchor meets equal text by chance more often, a longer one costs a copy.
ANCHOR_BYTES = 64
# Owner only: the caller widens it for a guest's user where it wants to.
NEW_FILE_MODE = 0o600

_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


@dataclass(frozen=True, kw_only=True)
class FileId:
    device: int
    inode: int

    def is_of(self, status: os.stat_result) -> bool:
        return status.st_ino == self.inode and status.st_dev == self.device


@dataclass(frozen=True, kw_only=True)
class Place:
    """A path to follow. Below ``beneath``, where given, no component may be a symbolic link."""

    path: str
    beneath: str | None = None

    def __post_init__(self) -> None:
        if self.beneath is not None and not PurePath(self.path).is_relative_to(self.beneath):
            raise ValueError(f"{self.path} does not lie beneath {self.beneath}")

    @contextmanager
    def parent(self) -> Iterator[tuple[int | None, str]]:
        """``(dir_fd, name)`` to hand to a system call; ``OSError`` where a component is missing or
        refused."""
        if self.beneath is None:
            yield None, self.path
            return
        *folders, name = PurePath(self.path).relative_to(self.beneath).parts
        fd = os.open(self.beneath, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for folder in folders:
                flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                inner = os.open(folder, flags, dir_fd=fd)
                os.close(fd)
                fd = inner
            yield fd, name
        finally:
            os.close(fd)

    def status(self) -> os.stat_result | None:
        """What stands at the path now, links not followed; ``None`` where nothing does."""
        try:
            if self.beneath is None:
                return os.stat(self.path, follow_symlinks=False)  # noqa: PTH116 - a Path costs more than the call
            with self.parent() as (folder, name):
                return os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _translated(error, self.path) from None

    def open(self, *, create: bool) -> int | None:
        """A descriptor to read the regular file; ``None`` where there is none (and none could be made).

        :raises TailRefused: it is something else, or may not be read.
        :raises OSError: the system could not, this time.
        """
        try:
            with self.parent() as (folder, name):
                if create:
                    _create(folder, name)
                handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                try:
                    require_regular(os.fstat(handle), self.path)
                    return _open_same(handle, folder, name)
                finally:
                    os.close(handle)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _translated(error, self.path) from None


def _create(folder: int | None, name: str) -> None:
    flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(name, flags, NEW_FILE_MODE, dir_fd=folder))
    except FileExistsError:
        pass


def _open_same(handle: int, folder: int | None, name: str) -> int:
    """A descriptor that reads what ``handle`` stands for."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(f"/proc/self/fd/{handle}", flags)
    except OSError:
        # No /proc, or one closed to a process that changed its user: by name, and checked afterwards.
        fd = os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
    if os.path.sameopenfile(fd, handle):
        return fd
    os.close(fd)
    raise FileNotFoundError(name)


def require_regular(status: os.stat_result, path: str) -> None:
    """:raises TailRefused: naming what stands there instead."""
    if stat.S_ISREG(status.st_mode):
        return
    kind = next((text for test, text in _KINDS if test(status.st_mode)), "no regular file")
    raise TailRefused(
        f"{path} is {kind}; only a regular file is followed. Remove it and let the writer make a plain file."
    )


def _translated(error: OSError, path: str) -> Exception:
    match error.errno:
        case errno.ELOOP | errno.ENOTDIR:
            return TailRefused(
                f"{path} leads through a symbolic link or something that is no directory; "
                "make every folder of the path a real one."
            )
        case errno.EACCES | errno.EPERM:
            return TailRefused(f"{path} may not be opened ({error.strerror}); give this user the right to it.")
        case errno.ENAMETOOLONG:
            return TailRefused(f"{path} is longer than the system allows; choose a shorter path.")
        case _:
            return error


class Look(Enum):
    """What a read found when it found no bytes."""

    END = "nothing more at present"
    REWRITTEN = "what was read no longer stands there"


class OpenFile:
    """An open regular file that is read forward. The offset moves by bytes read, never by a fresh stat."""

    def __init__(self, *, fd: int, offset: int = 0) -> None:
        status = os.fstat(fd)
        self.fd = fd
        self.id = FileId(device=status.st_dev, inode=status.st_ino)
        self.offset = offset
        self._anchor = b""

    def size(self) -> int:
        """Bytes at present. A seek costs a third of a stat, and reads go by offset anyway."""
        return os.lseek(self.fd, 0, os.SEEK_END)

    def has_news(self) -> bool:
        """True where the size is not what was read."""
        return self.size() != self.offset

    def rewind(self) -> None:
        self.offset = 0
        self._anchor = b""

    def read(self, limit: int) -> tuple[bytes, int] | Look:
        """``(data, start)``: fresh bytes are ``data[start:]``, at most ``limit`` bytes in all, and not
        empty."""
        size = self.size()
        if size < self.offset:
            return Look.REWRITTEN
        back = len(self._anchor)
        wanted = back + min(max(limit - back, 1), size - self.offset)
        data = os.pread(self.fd, wanted, self.offset - back) if wanted else b""
        if len(data) < back:
            return Look.REWRITTEN
        if back and not data.startswith(self._anchor):
            return Look.REWRITTEN
        if len(data) == back:
            return Look.END
        self.offset += len(data) - back
        self._anchor = data[-ANCHOR_BYTES:]
        return data, back

    def skip_hole(self) -> int:
        """Jump over a hole that begins at the offset; how many bytes it has, 0 where there is none.

        Otherwise a guest could keep a reader busy for years with a sparse file that costs it nothing.
        """
        size = self.size()
        if size <= self.offset:
            return 0
        try:
            data_at = os.lseek(self.fd, self.offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                return 0
            # A hole up to the end. The size was taken before: what was appended since lies behind it.
            data_at = size
        skipped = data_at - self.offset
        if skipped > 0:
            self.offset = data_at
            self._anchor = b""
        return max(skipped, 0)

    def close(self) -> None:
        os.close(self.fd)
