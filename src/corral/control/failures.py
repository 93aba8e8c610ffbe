# SPDX-License-Identifier: Apache-2.0
"""Which pools failed lately, with what: for whoever asks why there are no agents.

:func:`note` writes the row in the transaction that counts the failure, so that neither is there without the other; the
:class:`FailureTracker` follows the rows. Nothing is decided upon what it holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec
from sqlalchemy import Connection

from corral.model.failures import Failure, PoolFailures, backend_kind
from corral.model.records import Provision
from corral.runtime.redaction import redacted
from corral.store.interface import Database
from corral.store.repo import failures as failure_rows

LIMIT = 1000
"""Records in memory, and rows in the database."""
DETAIL_LIMIT = 2048
"""Bytes of a detail in UTF-8."""
RETENTION = 24 * 3600 * 1_000_000
"""Microseconds for which rows are kept."""
WINDOW = 5 * 60 * 1000
"""Milliseconds that count as recent where nobody says otherwise."""


def note(connection: Connection, provision: Provision, detail: str) -> None:
    """Record that this provision failed, in the caller's transaction."""
    failure_rows.add(
        connection,
        pool=provision.pool,
        backend=backend_kind(provision.backend),
        bound=provision.job_id is not None,
        detail=presentable(detail),
    )


def presentable(detail: str, known: Iterable[str] = ()) -> str:
    """Masked, then cut: cut first, half a credential would pass for an ordinary word."""
    whole = redacted(detail, known).encode("utf-8", "replace")
    return whole[:DETAIL_LIMIT].decode("utf-8", "ignore")


class FailureTracker:
    """Bounded memory of failures. Moments are milliseconds; they come in any order."""

    def __init__(self, limit: int = LIMIT, known: Iterable[str] = ()) -> None:
        self._records: deque[Failure] = deque()
        self._limit = limit
        self._known = tuple(known)
        self._position = 0
        self.dropped = 0
        """Records that had to go for newer ones."""

    def record(self, failure: Failure) -> None:
        """Remember one more, masked and cut; the one recorded first goes when there is no room."""
        while len(self._records) >= self._limit:
            self._records.popleft()
            self.dropped += 1
        self._records.append(msgspec.structs.replace(failure, detail=presentable(failure.detail, self._known)))

    def recent_by_pool(self, window: int, now: int) -> dict[str, PoolFailures]:
        """Failures at or after ``now - window`` by pool. Of two at the same moment the later recorded one is the
        latest."""
        found: dict[str, PoolFailures] = {}
        for each in self._records:
            if each.at >= now - window:
                found[each.pool] = _with(found.get(each.pool), each)
        return found

    async def follow(self, database: Database) -> tuple[Failure, ...]:
        """Take over what was written since the last call (the first time: everything kept); what came."""
        rows = await database.read(lambda c: failure_rows.after(c, self._position, self._limit))
        # Two callers may have read the same rows.
        news = [(position, failure) for position, failure in rows if position > self._position]
        for position, failure in news:
            self._position = position
            self.record(failure)
        return tuple(failure for _, failure in news)


def _with(so_far: PoolFailures | None, failure: Failure) -> PoolFailures:
    bound = (so_far.bound if so_far else 0) + failure.bound
    unbound = (so_far.unbound if so_far else 0) + (not failure.bound)
    latest = failure if so_far is None or failure.at >= so_far.at else so_far
    return PoolFailures(backend=latest.backend, bound=bound, unbound=unbound, detail=latest.detail, at=latest.at)
