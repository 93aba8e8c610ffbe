# SPDX-License-Identifier: Apache-2.0
"""Failed provisions of the last day: rows survive a restart, the tracker in memory follows them."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, insert, select

from corral.model.failures import BackendKind, Failure
from corral.store.tables import db_now, failures

_MILLISECOND = 1000
"""Microseconds."""


def add(connection: Connection, *, pool: str, backend: BackendKind, bound: bool, detail: str) -> None:
    connection.execute(
        insert(failures).values(pool=pool, backend=str(backend), bound=bound, detail=detail, at=db_now())
    )


def after(connection: Connection, position: int, limit: int) -> tuple[tuple[int, Failure], ...]:
    """The newest ``limit`` rows beyond ``position``, in the order in which they were written, with their positions."""
    query = select(failures).where(failures.c.id > position).order_by(failures.c.id.desc()).limit(limit)
    rows = [
        (
            int(row.id),
            Failure(
                pool=row.pool,
                backend=BackendKind(row.backend) if row.backend in set(BackendKind) else BackendKind.UNKNOWN,
                bound=row.bound,
                detail=row.detail,
                at=row.at // _MILLISECOND,
            ),
        )
        for row in connection.execute(query)
    ]
    return tuple(reversed(rows))


def last_position(connection: Connection) -> int:
    found: int | None = connection.execute(select(func.max(failures.c.id))).scalar()
    return found or 0


def purge(connection: Connection, older_than: int, keep: int) -> int:
    """Delete rows older than this (microseconds) and all but the newest ``keep``.

    The newest row stays, whatever its age: SQLite gives its number to the next row once it is deleted, and whoever
    follows by position would take that one for known.
    """
    last = last_position(connection)
    doomed = (failures.c.at < db_now() - older_than) | (failures.c.id <= last - keep)
    return connection.execute(delete(failures).where(doomed, failures.c.id < last)).rowcount
