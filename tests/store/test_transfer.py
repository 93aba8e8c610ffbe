# SPDX-License-Identifier: Apache-2.0
"""Backup under load, restore as a new generation, and the move to PostgreSQL, row by row."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.pool import NullPool

from corral.model.errors import Refused, StoreMisconfigured
from corral.model.ids import AgentId, JobId, RunId
from corral.runtime.clock import SystemClock
from corral.store.repo import agents, installation, jobs, runs
from corral.store.repo import lease as lease_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.sqlite import SqliteDatabase
from corral.store.tables import SCHEMA_VERSION, metadata
from corral.store.transfer import backup_sqlite, check_backup, copy_database, held_sqlite, restore_sqlite
from tests.postgres import driver_url, server
from tests.store.databases import AGENT, JOB, RUN, a_spec, add_agent, add_job
from tests.waiting import eventually_async

T = TypeVar("T")
SOON = 4_000_000_000
"""Unix seconds after every real one."""


def opened(path: Path, use: Callable[[SqliteDatabase], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        database = SqliteDatabase.open(path, SystemClock())
        try:
            return await use(database)
        finally:
            await database.close()

    return asyncio.run(run())


async def fill(database: SqliteDatabase) -> None:
    await database.write(lambda c: installation.fact(c, "cluster_id", "cluster_1"))
    await database.write(lambda c: lease_rows.take(c, "leader", "one"))
    await database.write(lambda c: add_job(c, a_spec()))
    await database.write(add_agent)


def titles(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return {row[0] for row in connection.execute("SELECT key FROM meta")}


# --- backup ------------------------------------------------------------------------------------------------


def test_a_backup_under_load_is_whole_and_private(tmp_path: Path) -> None:
    path, target = tmp_path / "corral.db", tmp_path / "copy.db"

    async def use(database: SqliteDatabase) -> tuple[int, int]:
        done = 0

        async def write() -> None:
            nonlocal done
            while not target.exists():
                # Two rows in one transaction: a copy has both or neither.
                number = done

                def pair(connection: Any, number: int = number) -> None:
                    for side in ("a", "b"):
                        connection.execute(text("INSERT INTO meta VALUES (:k, '')"), {"k": f"{side}{number}"})

                await database.write(pair)
                done += 1

        writing = asyncio.ensure_future(write())
        await eventually_async(lambda: done >= 20)
        before = done
        await asyncio.to_thread(backup_sqlite, path, target)
        await writing
        return before, done

    before, after = opened(path, use)
    kept = titles(target)
    a, b = ({int(key[1:]) for key in kept if key[0] == side and key[1:].isdigit()} for side in "ab")
    assert a == b and before <= len(a) <= after
    assert check_backup(target) == SCHEMA_VERSION
    assert target.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.glob("*copy*")] == ["copy.db"]


def test_a_backup_replaces_nothing_and_names_what_is_missing(tmp_path: Path) -> None:
    path, target = tmp_path / "corral.db", tmp_path / "copy.db"
    with pytest.raises(StoreMisconfigured, match="there is no database"):
        backup_sqlite(path, target)
    opened(path, fill)
    target.write_text("precious")
    with pytest.raises(Refused, match="replaces nothing"):
        backup_sqlite(path, target)
    assert target.read_text() == "precious"
    with pytest.raises(StoreMisconfigured, match="cannot be copied"):
        backup_sqlite(path, tmp_path / "nowhere" / "copy.db")


# --- restore -----------------------------------------------------------------------------------------------


def test_a_restored_database_is_the_copy_in_a_generation_of_its_own(tmp_path: Path) -> None:
    path, copy = tmp_path / "corral.db", tmp_path / "copy.db"
    opened(path, fill)
    backup_sqlite(path, copy)
    opened(path, lambda database: database.write(lambda c: installation.fact(c, "later", "x")))
    kept = restore_sqlite(copy, path, SOON)
    assert kept is not None and "later" in titles(kept)

    async def look(database: SqliteDatabase) -> tuple[Any, tuple[int, int]]:
        found = await database.read(lambda c: runs.get(c, RunId(RUN)))
        return found, await database.write(lambda c: lease_rows.take(c, "leader", "one"))

    found, epoch = opened(path, look)
    assert found is not None and "later" not in titles(path)
    assert epoch[0] == SOON and epoch[1] > 1
    # A second restore of the same copy, within the same second or with a clock set back, is newer all the same.
    backup_sqlite(path, tmp_path / "again.db")
    restore_sqlite(tmp_path / "again.db", path, 5)
    assert opened(path, lambda d: d.write(lambda c: lease_rows.take(c, "leader", "one")))[0] == SOON + 1


def test_a_restore_is_refused_while_a_coordinator_uses_the_database(tmp_path: Path) -> None:
    path, copy = tmp_path / "corral.db", tmp_path / "copy.db"
    opened(path, fill)
    backup_sqlite(path, copy)

    async def use(database: SqliteDatabase) -> None:
        with pytest.raises(StoreMisconfigured, match="in use by process"):
            await asyncio.to_thread(restore_sqlite, copy, path, SOON)

    opened(path, use)
    assert [each.name for each in tmp_path.glob("*replaced*")] == []


@pytest.mark.parametrize("what", ["absent", "text", "cut", "newer"])
def test_what_is_no_sound_copy_changes_nothing(tmp_path: Path, what: str) -> None:
    path, copy = tmp_path / "corral.db", tmp_path / "copy.db"
    opened(path, fill)
    backup_sqlite(path, copy)
    if what == "absent":
        copy.unlink()
    elif what == "text":
        copy.write_text("no database at all, but long enough to look like one" * 100)
    elif what == "cut":
        copy.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2])
    else:
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
            connection.commit()
    before, files = path.read_bytes(), set(tmp_path.iterdir())
    with pytest.raises(StoreMisconfigured):
        restore_sqlite(copy, path, SOON)
    assert path.read_bytes() == before and set(tmp_path.iterdir()) == files


# --- the move ----------------------------------------------------------------------------------------------


def test_every_row_moves_and_the_generation_goes_on_above(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    opened(path, fill)
    target = create_engine(driver_url(server().database()), poolclass=NullPool)
    with held_sqlite(path) as source:
        moved = copy_database(source, target, SOON)
        with source.connect() as old, target.connect() as new:
            for table in metadata.sorted_tables:
                if table.name in ("lease", "meta"):
                    continue
                order = list(table.primary_key.columns)
                theirs, ours = (list(c.execute(select(table).order_by(*order))) for c in (old, new))
                assert theirs == ours and len(ours) == moved.rows[table.name], table.name
            assert runs.get(new, RunId(RUN)) is not None
            assert jobs.get(new, JobId(JOB)) is not None
            assert agents.get(new, AgentId(AGENT)) == agents.get(old, AgentId(AGENT))
            assert provisions_rows.get(new, AgentId(AGENT)) is not None
            assert installation.fact(new, "cluster_id", "?") == "cluster_1"
            assert new.execute(text("SELECT generation, counter FROM lease")).all() == [(SOON, 2)]
        with pytest.raises(Refused, match="holds an installation already"):
            copy_database(source, target, SOON)
    target.dispose()


def test_a_move_that_fails_in_the_middle_leaves_the_target_empty(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    opened(path, fill)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        # A row that only the other engine refuses.
        connection.execute("INSERT INTO buckets VALUES ('b', 'no number', 'at all')")
        connection.commit()
    target = create_engine(driver_url(server().database()), poolclass=NullPool)
    with held_sqlite(path) as source, pytest.raises(Exception, match="number"):
        copy_database(source, target, SOON)
    with target.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM runs")).scalar_one() == 0
    target.dispose()
