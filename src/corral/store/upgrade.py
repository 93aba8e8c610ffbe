# SPDX-License-Identifier: Apache-2.0
"""Bring a database to this release's schema, after taking a copy; refuse one of a newer release.

A new database is created straight from ``tables``; Alembic (0.35 s to import) is used only for one that exists
with an older version.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, insert, text

from corral import __version__
from corral.model.errors import StoreMisconfigured
from corral.store.tables import SCHEMA_VERSION, meta, metadata

if TYPE_CHECKING:
    from alembic.operations import Operations

Revisions = Mapping[int, Callable[["Operations"], None]]


def upgrade_sqlite(
    path: Path, engine: Engine, *, version: int = SCHEMA_VERSION, revisions: Revisions | None = None
) -> None:
    """Create or upgrade to ``version`` by ``revisions`` (None: this release's). Holding the file lock is the caller's
    business.

    :raises StoreMisconfigured: the file is of a newer release; the message names both versions.
    """
    with engine.connect() as connection:
        found = _version(connection)
        connection.rollback()
        if found == version:
            return
        if found > version:
            raise StoreMisconfigured(
                f"{path} has schema version {found}; this Corral ({__version__}) knows {version}: "
                f"use a newer Corral, or restore the copy made before the upgrade"
            )
        if found == 0:
            with connection.begin():
                metadata.create_all(connection)
                connection.execute(insert(meta).values(key="schema_version", value=str(version)))
            return
    _copy(path, path.with_name(f"{path.name}.before-{version}"))
    _migrate(engine, found, version, revisions)


def _version(connection: Connection) -> int:
    if connection.execute(text("SELECT 1 FROM sqlite_master WHERE name = 'meta'")).first() is None:
        return 0
    row = connection.execute(text("SELECT value FROM meta WHERE key = 'schema_version'")).first()
    text_ = str(row[0]) if row else "0"
    if not text_.isdecimal():
        raise StoreMisconfigured(f"the database names {text_!r} as its schema version; restore a copy")
    return int(text_)


def _copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(source)) as old, contextlib.closing(sqlite3.connect(target)) as new:
        old.backup(new)
    target.chmod(0o600)


def _migrate(engine: Engine, found: int, version: int, revisions: Revisions | None) -> None:
    """Run the revisions above ``found``, all or none; Alembic's operations, our own one-number version."""
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    from corral.store.migrations import REVISIONS

    steps = REVISIONS if revisions is None else revisions
    with engine.connect() as connection, connection.begin():
        operations = Operations(MigrationContext.configure(connection))
        for number in range(found + 1, version + 1):
            steps[number](operations)
        connection.execute(text("UPDATE meta SET value = :v WHERE key = 'schema_version'"), {"v": str(version)})


# --- PostgreSQL --------------------------------------------------------------------------------------------


def check_postgres(engine: Engine) -> None:
    """:raises StoreMisconfigured: the schema is missing, older or newer than this release's."""
    with engine.connect() as connection:
        found = _postgres_version(connection)
    if found == SCHEMA_VERSION:
        return
    if found > SCHEMA_VERSION:
        raise StoreMisconfigured(
            f"the database has schema version {found}; this Corral ({__version__}) knows {SCHEMA_VERSION}: "
            f"use a newer Corral"
        )
    what = f"has schema version {found}" if found else "has no Corral schema yet"
    raise StoreMisconfigured(f"the database {what}; run: corral db upgrade")


def upgrade_postgres(engine: Engine) -> tuple[int, int]:
    """Create or upgrade the schema; (version before, version now). Two at once wait for one another.

    :raises StoreMisconfigured: it is of a newer release.
    """
    with engine.connect() as connection, connection.begin():
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('corral schema'))"))
        found = _postgres_version(connection)
        if found > SCHEMA_VERSION:
            raise StoreMisconfigured(
                f"the database has schema version {found}; this Corral ({__version__}) knows {SCHEMA_VERSION}"
            )
        if found == 0:
            connection.execute(text(_POSTGRES_NOW))
            metadata.create_all(connection)
            connection.execute(insert(meta).values(key="schema_version", value=str(SCHEMA_VERSION)))
        return found, SCHEMA_VERSION


def describe_postgres(engine: Engine) -> dict[str, str]:
    """Where it is, by name and as an operator wants to read it; durability included."""
    query = """
        SELECT current_database() AS place, current_setting('server_version') AS server,
               pg_database_size(current_database())::text AS bytes, current_setting('fsync') AS fsync,
               current_setting('synchronous_commit') AS synchronous_commit,
               CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE 'primary' END AS role
    """
    with engine.connect() as connection:
        found = dict(connection.execute(text(query)).mappings().one())
        version = _postgres_version(connection)
    return {**found, "schema_version": str(version), "known_version": str(SCHEMA_VERSION)}


_POSTGRES_NOW = """
CREATE OR REPLACE FUNCTION corral_now() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$
"""


def _postgres_version(connection: Connection) -> int:
    if connection.execute(text("SELECT to_regclass('meta')")).scalar() is None:
        return 0
    row = connection.execute(text("SELECT value FROM meta WHERE key = 'schema_version'")).first()
    return int(row[0]) if row and str(row[0]).isdecimal() else 0
