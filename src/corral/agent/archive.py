# SPDX-License-Identifier: Apache-2.0
"""Unpacking a source archive that somebody hostile may have written: nothing outside the target is ever touched.

Files and directories come first, links last, so that nothing is written through a link; every link is then checked
where it really leads. Modes are kept (without set-uid bits), owners are not.
"""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from corral.model.errors import PermanentError

UNPACKED_LIMIT = 4 * 1024**3
"""Bytes of all files: four times what an archive may have."""
MEMBERS_LIMIT = 1_000_000
COPY = 1024 * 1024


class BadArchive(PermanentError):
    """It is no archive, is damaged, is too large, or wants out of its directory. The message names the member."""

    code = "bad_archive"


def unpack(archive: BinaryIO, target: Path, *, stopped: Callable[[], bool] = lambda: False) -> None:
    """Unpack a ``tar.gz`` into the existing, empty directory ``target``.

    :raises BadArchive: see there; ``target`` then holds a part and is to be removed.
    :raises OSError: the disk does not take it.
    """
    try:
        with tarfile.open(fileobj=archive, mode="r|gz") as tar:
            _Unpacking(target, stopped).run(tar)
    # Of a truncated header the library says TypeError, ValueError or IndexError.
    except (tarfile.TarError, EOFError, zlib.error, TypeError, ValueError, LookupError) as error:
        raise BadArchive(f"the source archive is damaged: {error}") from None


class _Unpacking:
    def __init__(self, target: Path, stopped: Callable[[], bool]) -> None:
        self._target = target
        self._stopped = stopped
        self._links: list[tuple[Path, str]] = []
        self._modes: list[tuple[Path, tarfile.TarInfo]] = []
        self._bytes = 0

    def run(self, tar: tarfile.TarFile) -> None:
        for count, member in enumerate(tar):
            if count >= MEMBERS_LIMIT:
                raise BadArchive(f"the source archive has more than {MEMBERS_LIMIT} members")
            if self._stopped():
                raise BadArchive("stopped")
            self._take(tar, member)
        for path, to in self._links:
            self._link(path, to)
        for path, _ in self._links:
            self._check(path)
        # Directories last and deepest first: one that may not be written to could not be filled.
        for path, member in reversed(self._modes):
            _stamp(path, member)

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = self._target / inside(member.name)
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
            self._modes.append((path, member))
        elif member.issym():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._links.append((path, member.linkname))
        elif member.islnk():
            self._hard_link(path, member)
        elif member.isreg():
            self._file(tar, member, path)
        else:
            raise BadArchive(
                f"{member.name} in the source archive is a device or pipe; only files, directories and links"
            )

    def _file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        self._bytes += max(0, member.size)
        if self._bytes > UNPACKED_LIMIT:
            raise BadArchive(f"the source archive unpacks to more than {UNPACKED_LIMIT} bytes (at {member.name})")
        path.parent.mkdir(parents=True, exist_ok=True)
        source = tar.extractfile(member)
        if source is None:
            raise BadArchive(f"{member.name} in the source archive cannot be read")
        # A later member of the same name replaces the earlier one, as tar does.
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            while block := source.read(COPY):
                file.write(block)
            os.fchmod(fd, member.mode & 0o777)
        os.utime(path, (member.mtime, member.mtime))

    def _hard_link(self, path: Path, member: tarfile.TarInfo) -> None:
        to = self._target / inside(member.linkname)
        if not to.is_file() or to.is_symlink():
            raise BadArchive(
                f"{member.name} in the source archive links to {member.linkname}, which is no file before it"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.link(to, path)

    def _link(self, path: Path, to: str) -> None:
        if PurePosixPath(to).is_absolute():
            raise BadArchive(f"{self._shown(path)} in the source archive is a link to the absolute path {to}")
        if path.is_dir() and not path.is_symlink():
            raise BadArchive(f"{self._shown(path)} in the source archive is both a directory and a link")
        path.unlink(missing_ok=True)
        path.symlink_to(to)

    def _check(self, path: Path) -> None:
        root = os.path.realpath(self._target)
        real = os.path.realpath(path)
        if real != root and not real.startswith(root + "/"):
            raise BadArchive(f"{self._shown(path)} in the source archive is a link that leaves the tree")

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._target))


def inside(name: str) -> PurePosixPath:
    """The member's path below the target.

    :raises BadArchive: it is absolute, goes up, or is not a path.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise BadArchive(f"{name!r} in the source archive is no path inside the tree")
    return path


def _stamp(path: Path, member: tarfile.TarInfo) -> None:
    path.chmod((member.mode & 0o777) | 0o700)
    os.utime(path, (member.mtime, member.mtime))
