# SPDX-License-Identifier: Apache-2.0
"""A database carried elsewhere: backup, restore, and the move from SQLite to PostgreSQL.

Whatever continues from a copy begins a new generation of the lease: epochs that were used after the copy was taken are
never used again, so a provisioner that saw them does not take the restored installation for a deposed leader's.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, func, insert, select
from sqlalchemy.pool import NullPool

from corral.model.errors import Refused, StoreMisconfigured
from corral.runtime.clock import SystemClock
from corral.store.repo.lease import LEASE, raise_generation
from corral.store.sqlite import FileLock
from corral.store.tables import SCHEMA_VERSION, meta, metadata

BATCH = 500
"""Rows of one INSERT."""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Rows by table, and the generation that goes on."""

    rows: dict[str, int]
    generation: int


def backup_sqlite(path: Path, target: Path) -> None:
    """A consistent copy of a database that may be in use, readable by its owner alone; ``target`` appears whole.

    :raises StoreMisconfigured: there is no database, or the copy cannot be written.
    :raises Refused: the target exists.
    """
    if not path.is_file():
        raise StoreMisconfigured(f"there is no database {path}")
    if target.exists():
        raise Refused(f"{target} exists; a backup replaces nothing")
    part = target.with_name(f".{target.name}.part")
    try:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        with (
            contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            contextlib.closing(sqlite3.connect(part)) as copy,
        ):
            source.backup(copy)
            # One file, not three: whoever copies it on need not know of a write-ahead log.
            copy.execute("PRAGMA journal_mode=DELETE")
        part.rename(target)
    except (sqlite3.Error, OSError) as error:
        part.unlink(missing_ok=True)
        raise StoreMisconfigured(f"the database cannot be copied to {target}: {error}") from error


def check_backup(path: Path) -> int:
    """Its schema version.

    :raises StoreMisconfigured: it is no database of ours, it is damaged, or it is of a newer release.
    """
    try:
        with _reading(path) as connection:
            (sound,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    except sqlite3.Error as error:
        raise StoreMisconfigured(f"{path} is no Corral database: {error}") from error
    if sound != "ok":
        raise StoreMisconfigured(f"{path} is damaged: {sound}")
    version = int(row[0]) if row is not None and str(row[0]).isdecimal() else 0
    if not 1 <= version <= SCHEMA_VERSION:
        raise StoreMisconfigured(f"{path} has schema version {version}; this Corral knows up to {SCHEMA_VERSION}")
    return version


def restore_sqlite(source: Path, path: Path, seconds: int) -> Path | None:
    """Put ``source`` in the place of the database at ``path``, as a new generation; where the former one is now.

    :raises StoreMisconfigured: a coordinator uses it, or ``source`` is not sound; nothing has changed.
    """
    check_backup(source)
    lock = FileLock(path)
    lock.acquire()
    try:
        part = path.with_name(f".{path.name}.restoring")
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        with _reading(source) as reading, contextlib.closing(sqlite3.connect(part)) as copy:
            reading.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
        with _engine(part).begin() as connection:
            raise_generation(connection, LEASE, seconds)
        kept = _put_aside(path)
        part.rename(path)
        return kept
    except (sqlite3.Error, OSError) as error:
        raise StoreMisconfigured(f"{source} cannot be restored: {error}") from error
    finally:
        lock.release()


def _engine(path: Path) -> Engine:
    """For a file that this process alone uses; its clock is ours."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path)
        connection.create_function("corral_now", 0, SystemClock().now)
        return connection

    return create_engine("sqlite://", creator=connect, poolclass=NullPool)


def _put_aside(path: Path) -> Path | None:
    """The database that is there, folded into one file under the next free name."""
    if not path.exists():
        return None
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
    number = 1
    while (kept := path.with_name(f"{path.name}.replaced-{number}")).exists():
        number += 1
    path.rename(kept)
    return kept


@contextlib.contextmanager
def held_sqlite(path: Path) -> Iterator[Engine]:
    """The embedded database for reading, while no coordinator can begin to use it.

    :raises StoreMisconfigured: one uses it.
    """
    lock = FileLock(path)
    lock.acquire()
    engine = _engine(path)
    try:
        yield engine
    finally:
        engine.dispose()
        lock.release()


def copy_database(source: Engine, target: Engine, seconds: int) -> Moved:
    """Every row of an embedded database into an empty one with our schema, in one transaction.

    :raises Refused: the target holds runs, agents or an identity already.
    :raises StoreMisconfigured: the source is of another schema version.
    """
    with source.connect() as reading, target.connect() as writing, writing.begin():
        _check_versions(reading)
        held = [table.name for table in metadata.sorted_tables if table is not meta and _count(writing, table)]
        if held or _facts(writing) - {"schema_version"}:
            raise Refused(f"the target holds an installation already ({', '.join(held) or 'its identity'})")
        rows: dict[str, int] = {}
        for table in metadata.sorted_tables:
            rows[table.name] = _copy_table(reading, writing, table)
        return Moved(rows=rows, generation=raise_generation(writing, LEASE, seconds))


def _check_versions(reading: Connection) -> None:
    found = reading.execute(select(meta.c.value).where(meta.c.key == "schema_version")).scalar()
    if found != str(SCHEMA_VERSION):
        message = f"the embedded database has schema version {found}, this Corral {SCHEMA_VERSION}"
        raise StoreMisconfigured(f"{message}: start it once with this release first")


def _copy_table(reading: Connection, writing: Connection, table: Any) -> int:
    query = select(table)
    if table is meta:
        query = query.where(meta.c.key != "schema_version")
    count = 0
    result = reading.execution_options(stream_results=True).execute(query)
    for chunk in result.mappings().partitions(BATCH):
        writing.execute(insert(table), [dict(row) for row in chunk])
        count += len(chunk)
    return count


def _count(connection: Connection, table: Any) -> int:
    found: int = connection.execute(select(func.count()).select_from(table)).scalar_one()
    return found


def _facts(connection: Connection) -> set[str]:
    return set(connection.execute(select(meta.c.key)).scalars())


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise StoreMisconfigured(f"there is no file {path}")
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        yield connection
