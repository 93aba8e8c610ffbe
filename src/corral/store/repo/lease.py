# SPDX-License-Identifier: Apache-2.0
"""The lease: one row, conditional writes, the database's own time.

Every change of holder raises the counter, which is part of a unique key: so on PostgreSQL it waits for the
transactions that are fenced by the former one (``FOR KEY SHARE``), while a renewal, which touches no key, passes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, insert, select, update

from corral.decide.leasing import Lease
from corral.model.errors import Conflict
from corral.store.tables import db_now, lease

LEASE = "leader"
"""Whose holder runs the services of which there is one."""


def take(connection: Connection, name: str, holder: str) -> tuple[int, int]:
    """Begin a term as the only holder there can be (the file lock is the fence); the epoch (generation, counter)."""
    found, _ = read(connection, name)
    if found is None:
        return _first(connection, name, holder, 1)
    return _next(connection, name, holder, found, found.epoch[0])


def epoch_of(connection: Connection, name: str) -> tuple[int, int] | None:
    """Of the current term; None: there never was one."""
    found, _ = read(connection, name)
    return None if found is None else found.epoch


def raise_generation(connection: Connection, name: str, seconds: int) -> int:
    """End the current term: the next one's epoch is above every one that this installation can have used before.
    ``seconds``: Unix time. The new generation, 0 where there never was a term."""
    before = epoch_of(connection, name)
    if before is None:
        return 0
    generation = max(before[0] + 1, seconds)
    values = {"generation": generation, "counter": before[1] + 1, "renewed_at": 0}
    connection.execute(update(lease).where(lease.c.name == name).values(values))
    return generation


def read(connection: Connection, name: str) -> tuple[Lease | None, int]:
    """The row, and the database's time."""
    moment: int = connection.execute(select(db_now())).scalar_one()
    row = connection.execute(select(lease).where(lease.c.name == name)).mappings().first()
    return (None if row is None else _lease(row)), moment


def acquire(
    connection: Connection, name: str, holder: str, *, ttl: float, generation: int = 1, dead: Lease | None = None
) -> Lease | None:
    """Take it where it has run out, is our own, or is still just ``dead``, which we saw unchanged for a whole term by
    our own clock. None: somebody holds it.

    ``generation``: the least that the epoch may have; a number once used never comes back.
    """
    found, moment = read(connection, name)
    if found is None:
        # Two may see no row; the primary key lets one of them in.
        _first(connection, name, holder, max(1, generation))
        return read(connection, name)[0]
    ran_out = found.renewed_at < moment - int(ttl * 1_000_000)
    if not (ran_out or found.holder == holder or found == dead):
        return None
    try:
        _next(connection, name, holder, found, max(found.epoch[0], generation))
    except Conflict:
        return None
    return read(connection, name)[0]


def _first(connection: Connection, name: str, holder: str, generation: int) -> tuple[int, int]:
    values = {"name": name, "holder": holder, "generation": generation, "counter": 1}
    connection.execute(insert(lease).values(**values, term_started_at=db_now(), renewed_at=db_now()))
    return generation, 1


def _next(connection: Connection, name: str, holder: str, found: Lease, generation: int) -> tuple[int, int]:
    """:raises Conflict: it was renewed or taken since ``found`` was read: what is compared here is compared again after
    waiting for the row."""
    epoch = generation, found.epoch[1] + 1
    done = connection.execute(
        update(lease)
        .where(lease.c.name == name, lease.c.counter == found.epoch[1], lease.c.renewed_at == found.renewed_at)
        .values(holder=holder, generation=generation, counter=epoch[1], term_started_at=db_now(), renewed_at=db_now())
    )
    if done.rowcount != 1:
        raise Conflict("another took or renewed the lease meanwhile")
    return epoch


def renew(connection: Connection, name: str, mine: Lease) -> int | None:
    """The database's time of the renewal; None: the term is over."""
    done = connection.execute(update(lease).where(*_held(name, mine.holder, mine.epoch)).values(renewed_at=db_now()))
    if done.rowcount != 1:
        return None
    moment: int = connection.execute(select(lease.c.renewed_at).where(lease.c.name == name)).scalar_one()
    return moment


def resign(connection: Connection, name: str, mine: Lease) -> None:
    """The next may take it at once. Nothing where the term is over anyway."""
    connection.execute(update(lease).where(*_held(name, mine.holder, mine.epoch)).values(renewed_at=0))


def fence(connection: Connection, name: str, holder: str, epoch: tuple[int, int]) -> None:
    """Begin a leader-only transaction: until it ends, nobody else becomes the holder.

    :raises Conflict: the term is over; the transaction commits nothing.
    """
    held = select(lease.c.name).where(*_held(name, holder, epoch)).with_for_update(read=True, key_share=True)
    if connection.execute(held).first() is None:
        raise Conflict("the term of this leader is over")


def _held(name: str, holder: str, epoch: tuple[int, int]) -> tuple[ColumnElement[bool], ...]:
    return (
        lease.c.name == name,
        lease.c.holder == holder,
        lease.c.generation == epoch[0],
        lease.c.counter == epoch[1],
    )


def _lease(row: Mapping[str, Any] | Any) -> Lease:
    return Lease(holder=row["holder"], epoch=(row["generation"], row["counter"]), renewed_at=row["renewed_at"])
