# SPDX-License-Identifier: Apache-2.0
"""Token buckets by database time: how often something may be done, whoever does it."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from corral.store.repo.installation import now
from corral.store.tables import buckets


def available(connection: Connection, name: str, *, rate: float, burst: float) -> float:
    """Tokens there are now: ``rate`` a second since it was last taken from, at the most ``burst``. A new one is full; a
    clock that was set back fills nothing and takes nothing away."""
    row = connection.execute(select(buckets.c.tokens, buckets.c.filled_at).where(buckets.c.name == name)).first()
    if row is None:
        return float(burst)
    passed = max(0, now(connection) - row.filled_at) / 1_000_000
    return float(min(burst, row.tokens + passed * rate))


def leave(connection: Connection, name: str, tokens: float) -> None:
    """So many are left from now on."""
    values = {"tokens": tokens, "filled_at": now(connection)}
    done = connection.execute(update(buckets).where(buckets.c.name == name).values(**values))
    if done.rowcount == 0:
        connection.execute(insert(buckets).values(name=name, **values))
