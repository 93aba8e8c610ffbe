# SPDX-License-Identifier: Apache-2.0
"""Writes the archive: the same tree always gives the same bytes, so it is uploaded once."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from corral.cli.scratch import scratch
from corral.cli.source.git import Git, NotATree
from corral.cli.source.history import History, history_of
from corral.cli.source.listing import Entry, entries
from corral.cli.source.repository import write_repository
from corral.model.errors import TooLarge
from corral.model.ids import SourceHash
from corral.model.spec import SourceRef

SOURCE_LIMIT = 1024**3
"""Bytes of one archive: what a server takes."""
_PIECE = 256 * 1024


class TreeChanged(NotATree):
    """A file changed while it was read: the snapshot would show a state that never was."""

    code = "tree_changed"


@dataclass(frozen=True, kw_only=True)
class Source:
    """An archive on disk, as long as its :func:`snapshot` is open."""

    path: Path
    hash: SourceHash
    size: int
    history: History

    @property
    def ref(self) -> SourceRef:
        return SourceRef(hash=self.hash, size=self.size)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The archive's bytes, in pieces."""
        with open(self.path, "rb") as file:
            while piece := file.read(_PIECE):
                yield piece


@contextlib.contextmanager
def snapshot(
    tree: Path, tell: Callable[[str], None] = lambda text: None, *, limit: int = SOURCE_LIMIT
) -> Iterator[Source]:
    """The git work tree that begins at ``tree``, uncommitted changes included, as an archive that is removed
    at the end.

    No code of the author's runs. ``tell`` is given what was left out, and why.

    :raises NotATree: it is none, has no commit, begins elsewhere, or changes while it is read.
    :raises TooLarge: above ``limit`` bytes, naming the largest files.
    """
    root = tree.resolve()
    git = Git(root, tell)
    _check_root(git, root)
    history = history_of(git)
    listed = entries(git, tell)
    with scratch("source") as place:
        write_repository(git, history, place / "git")
        path = place / "source.tar.gz"
        digest = _Digest()
        with open(path, "wb") as file:
            _write(digest.through(file, limit, listed), root, listed, place / "git", history.time)
        yield Source(path=path, hash=SourceHash(digest.hex), size=digest.size, history=history)


def _check_root(git: Git, root: Path) -> None:
    top = git.line("rev-parse", "--show-toplevel")
    if not top:
        raise NotATree(
            f"{root} is not in a git work tree; make it one: git init && git add -A && git commit -m 'Begin'"
        )
    if Path(top).resolve() != root:
        raise NotATree(f"the git work tree begins at {top}, not at {root}; the directory .corral belongs there")


class _Digest:
    """Counts and hashes what is written, and stops at the limit."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self.size = 0

    @property
    def hex(self) -> str:
        return self._sha256.hexdigest()

    def through(self, file: IO[bytes], limit: int, listed: Sequence[Entry]) -> _Bounded:
        return _Bounded(self, file, limit, listed)

    def add(self, data: bytes) -> None:
        self._sha256.update(data)
        self.size += len(data)


class _Bounded:
    """A file to write to."""

    def __init__(self, digest: _Digest, file: IO[bytes], limit: int, listed: Sequence[Entry]) -> None:
        self._digest = digest
        self._file = file
        self._limit = limit
        self._listed = listed

    def write(self, data: bytes) -> int:
        self._digest.add(bytes(data))
        if self._digest.size > self._limit:
            raise TooLarge(_too_large(self._limit, self._listed))
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _too_large(limit: int, listed: Sequence[Entry]) -> str:
    largest = sorted(listed, key=lambda entry: (-entry.size, entry.path))[:5]
    named = ", ".join(f"{entry.path} ({entry.size} bytes)" for entry in largest)
    return f"the tree makes an archive above {limit} bytes; ignore (.gitignore) what jobs do not need; largest: {named}"


def _write(file: _Bounded, root: Path, listed: Sequence[Entry], git: Path, time: int) -> None:
    # The file's name and time stay out of the header: they would make equal trees differ.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=3) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as tar,
    ):
        for entry in listed:
            _add(tar, root, entry, time)
        for path in sorted(git.rglob("*")):
            _add_git(tar, path, f".git/{path.relative_to(git)}", time)


def _member(name: str, time: int, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mtime, member.mode = time, mode
    return member


def _add(tar: tarfile.TarFile, root: Path, entry: Entry, time: int) -> None:
    member = _member(entry.path, time, entry.mode)
    if entry.link:
        member.type, member.linkname = tarfile.SYMTYPE, entry.link
        tar.addfile(member)
        return
    try:
        fd = os.open(root / entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise TreeChanged(f"{entry.path} cannot be read: {error.strerror}") from None
    with open(fd, "rb") as file:
        member.size = os.fstat(fd).st_size
        try:
            tar.addfile(member, file)
        except OSError as error:
            raise TreeChanged(f"{entry.path} changed while it was read ({error}); run it again") from None


def _add_git(tar: tarfile.TarFile, path: Path, name: str, time: int) -> None:
    if path.is_dir():
        member = _member(name, time, 0o755)
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
        return
    member = _member(name, time, 0o644)
    member.size = path.stat().st_size
    with open(path, "rb") as file:
        tar.addfile(member, file)
