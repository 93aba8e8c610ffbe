# SPDX-License-Identifier: Apache-2.0
"""Source archives in a directory, each under its SHA-256: ``ROOT/HASH.tar.gz``, mode 0600.

An archive comes in under another name and gets its own only when its bytes have the hash and are on disk, so what
has the name is whole. One process per directory: unfinished files of an earlier one are removed at the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from corral.model.errors import NotFound, Refused, StoreUnavailable, TooLarge
from corral.model.ids import SourceHash

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

T = TypeVar("T")

CHUNK = 256 * 1024
"""Bytes read, and at least gathered before a write, per hop to a thread."""
_SUFFIX = ".tar.gz"
_HASH = re.compile(r"[0-9a-f]{64}\Z")


class SourceDirectory:
    """A :class:`~corral.store.interface.SourceStore`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._numbers = itertools.count()
        self._prepared = False

    async def put(self, hash: SourceHash, chunks: AsyncIterator[bytes], limit: int) -> int:
        path = self._path(hash)
        await _in_thread(self._prepare)
        incoming = _Incoming(self.root / f".incoming-{next(self._numbers)}")
        try:
            await _in_thread(incoming.open)
            async for chunk in chunks:
                incoming.gather(chunk)
                if incoming.size > limit:
                    raise TooLarge(f"the source archive has more than {limit} bytes; leave large files out of the tree")
                if incoming.gathered >= CHUNK:
                    await _in_thread(incoming.write)
            await _in_thread(incoming.write)
            if incoming.digest() != hash:
                raise Refused(f"the archive's bytes have the hash {incoming.digest()}, not {hash}; send it again")
            await _in_thread(lambda: incoming.keep_as(path))
            return incoming.size
        finally:
            # Not by another hop: it has to happen also when this task is being cancelled.
            incoming.discard()

    async def size(self, hash: SourceHash) -> int | None:
        path = self._path(hash)
        try:
            return (await _in_thread(path.stat)).st_size
        except NotFound:
            return None

    async def stored_at(self, hash: SourceHash) -> int | None:
        path = self._path(hash)
        try:
            return (await _in_thread(path.stat)).st_mtime_ns // 1000
        except NotFound:
            return None

    async def read(self, hash: SourceHash) -> AsyncIterator[bytes]:
        path = self._path(hash)
        file = await _in_thread(lambda: open(path, "rb", buffering=0))  # noqa: SIM115 (closed below)
        try:
            while chunk := await _in_thread(lambda: file.read(CHUNK)):
                yield chunk
        finally:
            file.close()

    async def delete(self, hash: SourceHash) -> None:
        path = self._path(hash)
        await _in_thread(lambda: path.unlink(missing_ok=True))

    async def list(self) -> dict[SourceHash, int]:
        return await _in_thread(self._list)

    def _list(self) -> dict[SourceHash, int]:
        if not self.root.is_dir():
            return {}
        return {
            SourceHash(entry.name.removesuffix(_SUFFIX)): entry.stat(follow_symlinks=False).st_size
            for entry in os.scandir(self.root)
            if _HASH.match(entry.name.removesuffix(_SUFFIX)) and entry.name.endswith(_SUFFIX)
        }

    def _prepare(self) -> None:
        if self._prepared:
            return
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in self.root.glob(".incoming-*"):
            leftover.unlink(missing_ok=True)
        self._prepared = True

    def _path(self, hash: SourceHash) -> Path:
        if not _HASH.match(hash):
            raise Refused(f"{hash[:80]!r} is no SHA-256: 64 lower-case hex digits")
        return self.root / f"{hash}{_SUFFIX}"


class _Incoming:
    """An archive on its way in. ``size``: bytes so far; ``gathered``: of these not written yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._hash: Hash = hashlib.sha256()
        self._parts: list[bytes] = []
        self.size = 0
        self.gathered = 0

    def open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def gather(self, chunk: bytes) -> None:
        self._parts.append(chunk)
        self.size += len(chunk)
        self.gathered += len(chunk)

    def write(self) -> None:
        data = memoryview(b"".join(self._parts))
        self._parts, self.gathered = [], 0
        self._hash.update(data)
        while data:
            data = data[os.write(self._fd, data) :]

    def digest(self) -> str:
        return self._hash.hexdigest()

    def keep_as(self, path: Path) -> None:
        os.fsync(self._fd)
        self._path.rename(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def discard(self) -> None:
        """Close; remove what did not get its own name."""
        if self._fd >= 0:
            os.close(self._fd)
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


async def _in_thread(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except FileNotFoundError:
        raise NotFound("no such source archive here") from None
    except OSError as error:
        raise StoreUnavailable(
            f"the source store cannot be used now: {error.strerror or 'unknown'}", internal=repr(error)
        ) from None
