# SPDX-License-Identifier: Apache-2.0
"""What the database engine itself promises: asked by diagnosis, decided upon by nobody."""

from __future__ import annotations

from msgspec import Struct
from sqlalchemy import Connection, insert, select, text, update

from corral.store.tables import SCHEMA_VERSION, db_now, lease, meta

_PROBE = "diagnosed_at"
_SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


class Durability(Struct, frozen=True, kw_only=True):
    """``lossy``: settings under which an acknowledged commit can be lost."""

    engine: str
    settings: tuple[str, ...]
    lossy: tuple[str, ...]


class Lease(Struct, frozen=True, kw_only=True):
    holder: str
    generation: int
    counter: int
    term_started_at: int


def probe(connection: Connection) -> None:
    """A write that reaches the disk: beginning a transaction alone would not."""
    values = {"value": str(connection.execute(select(db_now())).scalar_one())}
    if connection.execute(update(meta).where(meta.c.key == _PROBE).values(**values)).rowcount == 0:
        connection.execute(insert(meta).values(key=_PROBE, **values))


def schema_version(connection: Connection) -> tuple[int, int]:
    """(what the database has, what this release knows)."""
    found = connection.execute(select(meta.c.value).where(meta.c.key == "schema_version")).scalar()
    return int(found or 0), SCHEMA_VERSION


def held_lease(connection: Connection, name: str) -> Lease | None:
    row = connection.execute(
        select(lease.c.holder, lease.c.generation, lease.c.counter, lease.c.term_started_at).where(lease.c.name == name)
    ).first()
    return None if row is None else Lease(**row._mapping)


def durability(connection: Connection) -> Durability:
    """Of the connection that writes."""
    if connection.dialect.name == "sqlite":
        return _sqlite(connection)
    return _postgresql(connection)


def _sqlite(connection: Connection) -> Durability:
    journal = str(connection.execute(text("PRAGMA journal_mode")).scalar())
    synchronous = int(connection.execute(text("PRAGMA synchronous")).scalar() or 0)
    lossy = (f"synchronous={_SYNCHRONOUS[synchronous]}",) if synchronous < 2 else ()
    settings = (f"journal_mode={journal}", f"synchronous={_SYNCHRONOUS[synchronous]}")
    return Durability(engine="SQLite", settings=settings, lossy=lossy)


def _postgresql(connection: Connection) -> Durability:
    names = ("fsync", "synchronous_commit", "full_page_writes", "synchronous_standby_names")
    found = {name: str(connection.execute(text(f"SHOW {name}")).scalar()) for name in names}
    lossy = [f"{name}={found[name]}" for name in names[:3] if found[name] in ("off", "local")]
    standbys: int = connection.execute(text("SELECT count(*) FROM pg_stat_replication")).scalar_one()
    if standbys and not found["synchronous_standby_names"]:
        lossy.append("every standby is asynchronous")
    return Durability(engine="PostgreSQL", settings=tuple(f"{k}={v}" for k, v in found.items()), lossy=tuple(lossy))
