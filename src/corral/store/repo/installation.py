# SPDX-License-Identifier: Apache-2.0
"""Facts of the installation: cluster id, coordinator id, the lease with its epoch."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from corral.model.errors import Conflict
from corral.store.tables import db_now, lease, meta

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


def epoch_of(connection: Connection, name: str) -> tuple[int, int] | None:
    """Of the current term; None: there never was one."""
    row = connection.execute(select(lease.c.generation, lease.c.counter).where(lease.c.name == name)).first()
    return None if row is None else (row.generation, row.counter)


def raise_generation(connection: Connection, name: str) -> int:
    """End the current term: the next one's epoch is above every one that this installation can have used before. The
    new generation, 0 where there never was a term."""
    row = connection.execute(select(lease.c.generation).where(lease.c.name == name)).first()
    if row is None:
        return 0
    generation: int = max(row.generation + 1, now(connection) // 1_000_000)
    connection.execute(update(lease).where(lease.c.name == name).values(generation=generation))
    return generation


def take_lease(connection: Connection, name: str, holder: str) -> tuple[int, int]:
    """Begin a term as the only holder there can be (the file lock is the fence); the epoch (generation, counter)."""
    row = connection.execute(select(lease.c.generation, lease.c.counter).where(lease.c.name == name)).first()
    if row is None:
        connection.execute(
            insert(lease).values(
                name=name, generation=1, counter=1, holder=holder, term_started_at=db_now(), renewed_at=db_now()
            )
        )
        return (1, 1)
    epoch = (row.generation, row.counter + 1)
    connection.execute(
        update(lease)
        .where(lease.c.name == name)
        .values(counter=epoch[1], holder=holder, term_started_at=db_now(), renewed_at=db_now())
    )
    return epoch


def fence(connection: Connection, name: str, holder: str, epoch: tuple[int, int]) -> None:
    """Begin a leader-only transaction. :raises Conflict: the term is over; the transaction commits nothing."""
    held = connection.execute(
        update(lease)
        .where(
            lease.c.name == name,
            lease.c.holder == holder,
            lease.c.generation == epoch[0],
            lease.c.counter == epoch[1],
        )
        .values(renewed_at=db_now())
    )
    if held.rowcount != 1:
        raise Conflict("the term of this leader is over")
