# SPDX-License-Identifier: Apache-2.0
"""Facts of the installation, and the database's time."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from corral.store.tables import db_now, meta

_NOW = select(db_now())


def now(connection: Connection) -> int:
    """Database time, microseconds."""
    value: int = connection.execute(_NOW).scalar_one()
    return value


def fact(connection: Connection, key: str, made: str) -> str:
    """The stored fact, or ``made`` stored as it from now on."""
    found: str | None = connection.execute(select(meta.c.value).where(meta.c.key == key)).scalar()
    if found is None:
        connection.execute(insert(meta).values(key=key, value=made))
        return made
    return found


def set_fact(connection: Connection, key: str, value: str) -> None:
    if connection.execute(update(meta).where(meta.c.key == key).values(value=value)).rowcount == 0:
        connection.execute(insert(meta).values(key=key, value=value))
