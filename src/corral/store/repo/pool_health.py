# SPDX-License-Identifier: Apache-2.0
"""How a pool has fared lately: failures in a row, and until when its next creation waits."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from corral.model.records import PoolHealth
from corral.store.repo.rows import columns, many
from corral.store.tables import db_now, pool_health

_SUCCEEDED = delete(pool_health).where(pool_health.c.pool == bindparam("pool"))
_HEALTH = select(*columns(pool_health, PoolHealth))


def every(connection: Connection) -> tuple[PoolHealth, ...]:
    return many(PoolHealth, connection.execute(_HEALTH))


def failed(connection: Connection, pool: str, error: str, pause: int) -> None:
    """One more failure in a row; creations wait ``pause`` microseconds."""
    values = {"backoff_began_at": db_now(), "backoff_until": db_now() + pause, "last_error": error}
    done = connection.execute(
        update(pool_health).where(pool_health.c.pool == pool).values(failures=pool_health.c.failures + 1, **values)
    )
    if done.rowcount == 0:
        connection.execute(insert(pool_health).values(pool=pool, failures=1, **values))


def error(connection: Connection, pool: str, error: str) -> None:
    """The latest error, without one more failure."""
    connection.execute(update(pool_health).where(pool_health.c.pool == pool).values(last_error=error))


def succeeded(connection: Connection, pool: str) -> None:
    connection.execute(_SUCCEEDED, {"pool": pool})
