# SPDX-License-Identifier: Apache-2.0
"""The adapters of the store room: database, log store, source store.

Repositories (``corral.store.repo``) are plain functions over a connection and belong to this interface: the same
SQL on every engine. Which engine runs is picked in ``cli/wiring.py`` alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from corral.model.ids import JobId, RunId, SourceHash

T = TypeVar("T")


class Database(Protocol):
    """Runs functions in transactions. A function may be run again after a conflict, so it has no other effect."""

    async def write(self, fn: Callable[[Connection], T]) -> T:
        """Run ``fn`` in a transaction and return after it is durable.

        :raises StoreUnavailable: it cannot be written now (locked, full, away); nothing was written.
        :raises CorralError: whatever ``fn`` raised; nothing was written.
        """
        ...

    async def read(self, fn: Callable[[Connection], T]) -> T:
        """Run ``fn`` against one consistent snapshot. ``fn`` must not write."""
        ...

    async def close(self) -> None:
        """Finish what is queued, checkpoint, let go of the file. Idempotent."""
        ...


@dataclass(frozen=True, kw_only=True, order=True)
class LogKey:
    """The log of one step of one attempt."""

    run_id: RunId
    job_id: JobId
    attempt: int
    step: int


@dataclass(frozen=True, kw_only=True)
class LogInfo:
    """``size``: bytes stored, from offset 0 without a gap. ``final``: nothing more will come.
    ``digest``: SHA-256 (hex) of the stored bytes, empty while not final."""

    size: int
    final: bool
    digest: str


class LogStore(Protocol):
    """Append-only logs in compressed chunks with an index."""

    async def append(self, key: LogKey, offset: int, data: bytes, time: int) -> int:
        """Store ``data`` at ``offset``; return the stored size after the bytes are durable.

        Bytes below the stored size are dropped (a replay). ``time`` is kept for the index (microseconds).
        :raises Refused: ``offset`` is above the stored size (a gap), or the log is final.
        :raises StoreUnavailable: cannot be written now; nothing was stored.
        """
        ...

    async def finish(self, key: LogKey, missing: int = 0) -> LogInfo:
        """Mark the log final, ``missing`` bytes stated as lost. Idempotent; one nobody wrote to is final and empty."""
        ...

    async def info(self, key: LogKey) -> LogInfo:
        """What is stored now; size 0 for a log nobody wrote to."""
        ...

    def read(self, key: LogKey, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Bytes ``start`` up to ``end`` (exclusive; None: what is stored now), in chunks of at most 1 MiB."""
        ...

    async def changed(self, key: LogKey, size: int) -> None:
        """Return when more than ``size`` bytes are stored or the log is final."""
        ...

    async def delete_run(self, run_id: RunId) -> int:
        """Remove all logs of a run; bytes freed. Idempotent."""
        ...

    async def usage(self) -> dict[RunId, int]:
        """Bytes on disk per run."""
        ...

    async def close(self) -> None: ...


class SourceStore(Protocol):
    """Source archives (tar.gz) by the SHA-256 of their bytes."""

    async def put(self, hash: SourceHash, chunks: AsyncIterator[bytes], limit: int) -> int:
        """Store; return the size. Idempotent.

        :raises TooLarge: more than ``limit`` bytes.
        :raises Refused: the bytes do not have this hash.
        :raises StoreUnavailable: cannot be written now.
        """
        ...

    async def size(self, hash: SourceHash) -> int | None:
        """Bytes, or None where it is not here."""
        ...

    def read(self, hash: SourceHash) -> AsyncIterator[bytes]:
        """The archive in chunks. :raises NotFound: not here."""
        ...

    async def delete(self, hash: SourceHash) -> None:
        """Idempotent."""
        ...

    async def stored_at(self, hash: SourceHash) -> int | None:
        """When it was stored last, microseconds since the epoch by the store's own clock; None: it is not here."""
        ...

    async def list(self) -> dict[SourceHash, int]:
        """Everything here with its size."""
        ...
