# SPDX-License-Identifier: Apache-2.0
"""Source archives in memory, with a failure switch: for tests and the simulator."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator

from corral.model.errors import NotFound, Refused, StoreUnavailable, TooLarge
from corral.model.ids import SourceHash
from corral.runtime.clock import Clock

CHUNK = 256 * 1024
_HASH = re.compile(r"[0-9a-f]{64}\Z")


class MemorySources:
    """A :class:`~corral.store.interface.SourceStore`. ``available = False`` makes every call fail. ``clock``: without
    one, everything here is as old as time."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.available = True
        self.archives: dict[SourceHash, bytes] = {}
        self._clock = clock
        self._stored: dict[SourceHash, int] = {}

    async def put(self, hash: SourceHash, chunks: AsyncIterator[bytes], limit: int) -> int:
        self._check(hash)
        data = bytearray()
        async for chunk in chunks:
            data += chunk
            if len(data) > limit:
                raise TooLarge(f"the source archive has more than {limit} bytes; leave large files out of the tree")
        if hashlib.sha256(data).hexdigest() != hash:
            raise Refused(f"the archive's bytes do not have the hash {hash}; send it again")
        self._check(hash)
        self.archives[hash] = bytes(data)
        self._stored[hash] = 0 if self._clock is None else self._clock.now()
        return len(data)

    async def size(self, hash: SourceHash) -> int | None:
        self._check(hash)
        data = self.archives.get(hash)
        return None if data is None else len(data)

    async def stored_at(self, hash: SourceHash) -> int | None:
        self._check(hash)
        return self._stored.get(hash) if hash in self.archives else None

    async def read(self, hash: SourceHash) -> AsyncIterator[bytes]:
        self._check(hash)
        if hash not in self.archives:
            raise NotFound("no such source archive here")
        data = self.archives[hash]
        for at in range(0, len(data), CHUNK):
            yield data[at : at + CHUNK]

    async def delete(self, hash: SourceHash) -> None:
        self._check(hash)
        self.archives.pop(hash, None)

    async def list(self) -> dict[SourceHash, int]:
        if not self.available:
            raise StoreUnavailable("the source store is switched off")
        return {hash: len(data) for hash, data in self.archives.items()}

    def _check(self, hash: SourceHash) -> None:
        if not _HASH.match(hash):
            raise Refused(f"{hash[:80]!r} is no SHA-256: 64 lower-case hex digits")
        if not self.available:
            raise StoreUnavailable("the source store is switched off")
