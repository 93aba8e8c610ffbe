# SPDX-License-Identifier: Apache-2.0
"""The embedded database on a real disk: what it groups, refuses, survives, and says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection, inspect, text

from corral.model.errors import Conflict, CorralError, StoreMisconfigured, StoreUnavailable
from corral.runtime.clock import SystemClock
from corral.store.sqlite import SqliteDatabase
from corral.store.tables import SCHEMA_VERSION
from corral.store.upgrade import upgrade_sqlite
from tests.waiting import eventually

T = TypeVar("T")
ROOT = os.geteuid() == 0


def opened(path: Path, use: Callable[[SqliteDatabase], Coroutine[Any, Any, T]]) -> T:
    """Open the database, use it, close it."""

    async def main() -> T:
        database = SqliteDatabase.open(path, SystemClock())
        try:
            return await use(database)
        finally:
            await database.close()

    return asyncio.run(main())


def put(connection: Connection, key: str, value: object) -> None:
    connection.execute(
        text("INSERT INTO meta VALUES (:k, :v) ON CONFLICT (key) DO UPDATE SET value = :v"), {"k": key, "v": str(value)}
    )


def get(connection: Connection, key: str) -> str | None:
    found: str | None = connection.execute(text("SELECT value FROM meta WHERE key = :k"), {"k": key}).scalar()
    return found


def outside(path: Path, statement: str) -> list[Any]:
    """What another process would see."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(statement).fetchall()


# --- groups ------------------------------------------------------------------------------------------------


def test_waiting_transactions_share_one_commit_and_each_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    statements: list[str] = []

    async def use(database: SqliteDatabase) -> list[object]:
        entered, go = threading.Event(), threading.Event()

        def hold(connection: Connection) -> None:
            driver = connection.connection.dbapi_connection
            assert driver is not None
            driver.set_trace_callback(statements.append)
            entered.set()
            assert go.wait(20)

        def fail(connection: Connection) -> None:
            put(connection, "k3", "half done")
            raise Conflict("not this one")

        first = asyncio.ensure_future(database.write(hold))
        await asyncio.to_thread(entered.wait, 20)
        writes = [
            asyncio.ensure_future(database.write(fail if n == 3 else lambda c, n=n: put(c, f"k{n}", n)))
            for n in range(8)
        ]
        await asyncio.sleep(0)
        go.set()
        await first
        return await asyncio.gather(*writes, return_exceptions=True)

    answers = opened(path, use)
    assert [type(answer) for n, answer in enumerate(answers) if n != 3] == [type(None)] * 7
    assert isinstance(answers[3], Conflict) and str(answers[3]) == "not this one"
    assert outside(path, "SELECT key FROM meta WHERE key LIKE 'k%' ORDER BY key") == [
        (f"k{n}",) for n in range(8) if n != 3
    ]
    assert statements.count("COMMIT") == 2, "one for the first, one for the eight that waited"


def test_success_is_told_only_when_others_can_see_it(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"

    async def use(database: SqliteDatabase) -> None:
        for number in range(20):
            await database.write(lambda c, n=number: put(c, "n", n))
            assert outside(path, "SELECT value FROM meta WHERE key = 'n'") == [(str(number),)]

    opened(path, use)


def test_an_error_of_one_statement_is_translated_and_leaks_into_no_other(tmp_path: Path) -> None:
    async def use(database: SqliteDatabase) -> None:
        def broken(connection: Connection) -> None:
            put(connection, "half", 1)
            connection.execute(text("INSERT INTO meta VALUES ('cluster', NULL)"))

        answers = await asyncio.gather(
            database.write(broken), database.write(lambda c: put(c, "whole", 1)), return_exceptions=True
        )
        assert isinstance(answers[0], CorralError) and "NULL" not in str(answers[0])
        assert answers[1] is None
        assert await database.read(lambda c: (get(c, "half"), get(c, "whole"))) == (None, "1")

    opened(tmp_path / "corral.db", use)


def test_readers_see_whole_transactions_only(tmp_path: Path) -> None:
    """Money is moved between two accounts; whoever looks counts the same sum."""

    async def use(database: SqliteDatabase) -> None:
        await database.write(lambda c: (put(c, "a", 1000), put(c, "b", 0)))

        def move(connection: Connection) -> None:
            put(connection, "a", int(get(connection, "a") or 0) - 1)
            put(connection, "b", int(get(connection, "b") or 0) + 1)

        def total(connection: Connection) -> int:
            return int(get(connection, "a") or 0) + int(get(connection, "b") or 0)

        work = [database.write(move) if n % 3 else database.read(total) for n in range(300)]
        sums = [answer for answer in await asyncio.gather(*work) if answer is not None]
        assert set(sums) == {1000}
        assert await database.read(lambda c: get(c, "b")) == "200"

    opened(tmp_path / "corral.db", use)


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    async def use(database: SqliteDatabase) -> None:
        with pytest.raises(CorralError):
            await database.read(lambda c: put(c, "k", 1))
        assert await database.read(lambda c: get(c, "k")) is None

    opened(tmp_path / "corral.db", use)


def test_a_caller_that_leaves_disturbs_nobody(tmp_path: Path) -> None:
    async def use(database: SqliteDatabase) -> None:
        entered, go = threading.Event(), threading.Event()

        def hold(connection: Connection) -> None:
            entered.set()
            assert go.wait(20)

        first = asyncio.ensure_future(database.write(hold))
        await asyncio.to_thread(entered.wait, 20)
        leaving = asyncio.ensure_future(database.write(lambda c: put(c, "left", 1)))
        staying = asyncio.ensure_future(database.write(lambda c: put(c, "stayed", 1)))
        await asyncio.sleep(0)
        leaving.cancel()
        go.set()
        await asyncio.gather(first, staying)
        assert await database.read(lambda c: get(c, "stayed")) == "1"

    opened(tmp_path / "corral.db", use)


def test_closing_finishes_what_is_queued(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"

    async def main() -> None:
        database = SqliteDatabase.open(path, SystemClock())
        writes = [asyncio.ensure_future(database.write(lambda c, n=n: put(c, f"k{n}", n))) for n in range(50)]
        await asyncio.sleep(0)
        await database.close()
        await asyncio.gather(*writes)

    asyncio.run(main())
    assert not path.with_name("corral.db-wal").exists(), "checkpointed"
    assert outside(path, "SELECT count(*) FROM meta WHERE key LIKE 'k%'") == [(50,)]


# --- one process, one version ------------------------------------------------------------------------------

HOLDER = """
import asyncio, sys
from pathlib import Path
from sqlalchemy import text
from corral.runtime.clock import SystemClock
from corral.store.sqlite import SqliteDatabase

async def main():
    database = SqliteDatabase.open(Path(sys.argv[1]), SystemClock())
    print("open", flush=True)
    for number in range(10**9):
        value = {"k": f"n{number}"}
        await database.write(lambda c: c.execute(text("INSERT INTO meta VALUES (:k, 'x')"), value) and None)
        print(number, flush=True)

asyncio.run(main())
"""


@contextlib.contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


def test_a_second_process_is_told_who_holds_it_and_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    with holder(path) as process:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        with pytest.raises(StoreMisconfigured, match=f"in use by process {process.pid};"):
            SqliteDatabase.open(path, SystemClock())
        acknowledged = [process.stdout.readline() for _ in range(30)][-1]
        process.kill()
        acknowledged = [acknowledged, *(line for line in process.stdout if line.endswith("\n"))][-1]

    async def count(database: SqliteDatabase) -> set[str]:
        return set(await database.read(lambda c: c.execute(text("SELECT key FROM meta")).scalars().all()))

    assert opened(path, count) >= {f"n{number}" for number in range(int(acknowledged) + 1)}


def test_a_newer_schema_is_refused_naming_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    opened(path, lambda database: database.write(lambda c: put(c, "schema_version", 99)))
    with pytest.raises(StoreMisconfigured, match=rf"schema version 99; this Corral .* knows {SCHEMA_VERSION}"):
        SqliteDatabase.open(path, SystemClock())
    with pytest.raises(StoreMisconfigured, match="99"):
        SqliteDatabase.open(path, SystemClock())


def test_a_version_that_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    opened(path, lambda database: database.write(lambda c: put(c, "schema_version", "two")))
    with pytest.raises(StoreMisconfigured, match="'two'"):
        SqliteDatabase.open(path, SystemClock())


def test_an_upgrade_takes_a_copy_first_and_happens_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"

    async def nothing(database: SqliteDatabase) -> None:
        await database.write(lambda c: put(c, "kept", "yes"))

    opened(path, nothing)
    database = SqliteDatabase(path, SystemClock())
    engine = database._writer_engine

    def add_column(operations: Any) -> None:
        operations.execute("ALTER TABLE runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 7")

    def fail(operations: Any) -> None:
        operations.execute("ALTER TABLE runs ADD COLUMN half INTEGER")
        raise StoreMisconfigured("it cannot be done")

    had, next_, later = SCHEMA_VERSION, SCHEMA_VERSION + 1, SCHEMA_VERSION + 2
    with pytest.raises(StoreMisconfigured, match="it cannot be done"):
        upgrade_sqlite(path, engine, version=later, revisions={next_: add_column, later: fail})
    assert {column["name"] for column in inspect(engine).get_columns("runs")}.isdisjoint({"priority", "half"})
    assert outside(path, "SELECT value FROM meta WHERE key = 'schema_version'") == [(str(had),)]

    upgrade_sqlite(path, engine, version=next_, revisions={next_: add_column})
    upgrade_sqlite(path, engine, version=next_, revisions={})
    assert outside(path, "SELECT value FROM meta WHERE key IN ('schema_version', 'kept') ORDER BY key") == [
        ("yes",),
        (str(next_),),
    ]
    assert "priority" in {column["name"] for column in inspect(engine).get_columns("runs")}
    copy = tmp_path / f"corral.db.before-{next_}"
    assert outside(copy, "SELECT value FROM meta WHERE key IN ('schema_version', 'kept') ORDER BY key") == [
        ("yes",),
        (str(had),),
    ]
    assert copy.stat().st_mode & 0o777 == 0o600
    engine.dispose()


def shape(path: Path) -> dict[str, set[str]]:
    """Every column and index of a database file, as the engine describes it."""
    found = {}
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
            rows = {f"{name} {type_} {notnull} {key}" for _, name, type_, notnull, _, key in columns}
            for _, name, unique, _, _ in connection.execute(f"PRAGMA index_list({table})").fetchall():
                over = [row[2] for row in connection.execute(f"PRAGMA index_info({name})").fetchall()]
                rows.add(f"index {unique} {over}")
            found[table] = rows
    return found


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_a_database_of_every_earlier_version_becomes_what_a_new_one_is(tmp_path: Path, version: int) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    with contextlib.closing(sqlite3.connect(old)) as connection:
        connection.executescript((Path(__file__).parent / "schemas" / f"{version}.sql").read_text())
        connection.execute("INSERT INTO meta VALUES ('schema_version', ?), ('kept', 'yes')", (str(version),))
        connection.commit()
    assert opened(old, lambda database: database.read(lambda c: get(c, "kept"))) == "yes"
    opened(new, lambda database: database.write(lambda c: put(c, "kept", "yes")))
    assert shape(old) == shape(new)


# --- files -------------------------------------------------------------------------------------------------


def test_only_the_owner_reads_the_files(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    before = os.umask(0)
    try:

        async def use(database: SqliteDatabase) -> dict[str, int]:
            await database.write(lambda c: put(c, "k", 1))
            return {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}

        modes = opened(path, use)
    finally:
        os.umask(before)
    assert set(modes) == {"corral.db", "corral.db-wal", "corral.db-shm", "corral.db.lock"}
    assert set(modes.values()) == {0o600}


@contextlib.contextmanager
def ordinary_user() -> Iterator[Path]:
    """A directory of an ordinary user, who we are meanwhile: root may write everywhere."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        path = Path(place)
        if not ROOT:
            yield path
            return
        os.chown(path, 65534, 65534)
        os.setegid(65534)
        os.seteuid(65534)
        try:
            yield path
        finally:
            os.seteuid(0)
            os.setegid(0)


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    with ordinary_user() as place:
        place.chmod(0o500)
        with pytest.raises(StoreMisconfigured, match=r"cannot open .*corral\.db\.lock: Permission denied") as caught:
            SqliteDatabase.open(place / "corral.db", SystemClock())
        place.chmod(0o700)
    assert "writable" in str(caught.value)


def test_a_database_that_cannot_be_written(tmp_path: Path) -> None:
    with ordinary_user() as place:
        path = place / "corral.db"
        opened(path, lambda database: database.write(lambda c: put(c, "k", 1)))
        path.chmod(0o400)
        with pytest.raises(StoreMisconfigured, match=r"cannot write the database .*: Permission denied"):
            SqliteDatabase.open(path, SystemClock())


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreMisconfigured, match="No such file or directory"):
        SqliteDatabase.open(tmp_path / "none" / "corral.db", SystemClock())


@pytest.mark.parametrize("content", [b"this is no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_what_is_no_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "corral.db"
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(StoreMisconfigured, match="damaged"):
            SqliteDatabase.open(path, SystemClock())
    assert path.read_bytes() == content


def test_a_damaged_page_is_named_when_it_is_met(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    opened(path, lambda database: database.write(lambda c: [put(c, f"k{n}", "x" * 500) for n in range(200)]))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * (size - 8192))

    def everything(connection: Connection) -> None:
        connection.execute(text("SELECT * FROM meta ORDER BY value")).all()
        connection.execute(text("SELECT * FROM runs")).all()

    with pytest.raises(StoreMisconfigured, match=r"damaged.*restore a copy"):
        opened(path, lambda database: database.read(everything))


# --- a full disk -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def tiny_disk(where: Path) -> Iterator[Path]:
    where.mkdir()
    if not ROOT:
        pytest.skip("mounting a small disk needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(where)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield where
    finally:
        eventually(lambda: subprocess.run(["umount", str(where)], capture_output=True).returncode == 0, "unmounted")


def test_a_full_disk_refuses_writes_and_takes_them_again_when_there_is_room(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as disk:
        path = disk / "corral.db"

        async def use(database: SqliteDatabase) -> None:
            await database.write(lambda c: put(c, "before", 1))
            filler = disk / "filler"
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
            writes = [database.write(lambda c, n=n: put(c, f"big{n}", "x" * 100_000)) for n in range(3)]
            for answer in await asyncio.gather(*writes, return_exceptions=True):
                assert isinstance(answer, StoreUnavailable), answer
                assert "disk" in str(answer) and "free some space" in str(answer)
            assert await database.read(lambda c: get(c, "before")) == "1"
            filler.unlink()
            await database.write(lambda c: put(c, "after", 1))

        opened(path, use)
        keys = outside(path, "SELECT key FROM meta WHERE key IN ('before', 'after') OR key LIKE 'big%' ORDER BY key")
        assert keys == [("after",), ("before",)]


LIMITED = """
import asyncio, resource, sys
from pathlib import Path
from sqlalchemy import text
from corral.model.errors import StoreUnavailable
from corral.runtime.clock import SystemClock
from corral.store.sqlite import SqliteDatabase

async def main():
    database = SqliteDatabase.open(Path(sys.argv[1]), SystemClock())
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    written = 0
    try:
        while written < 100:
            value = {"k": f"n{written}", "v": "x" * 20_000}
            await database.write(lambda c: c.execute(text("INSERT INTO meta VALUES (:k, :v)"), value) and None)
            written += 1
    except StoreUnavailable as error:
        print(written, error)

    def spill(c):
        for number in range(1000):
            c.execute(text("INSERT INTO meta VALUES (:k, :v)"), {"k": f"huge{number}", "v": "x" * 20_000})

    try:
        await database.write(spill)
    except StoreUnavailable as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await database.write(lambda c: c.execute(text("INSERT INTO meta VALUES ('after', '')")) and None)
    await database.close()

asyncio.run(main())
"""


def test_a_file_that_may_not_grow_refuses_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    written, _, message = first.partition(" ")
    assert "the disk cannot take more" in message
    assert "the disk cannot take more" in second, "also where SQLite took the transaction back by itself"
    assert 0 < int(written) < 100
    assert outside(path, "SELECT count(*) FROM meta WHERE key LIKE 'n%'") == [(int(written),)]
    assert outside(path, "SELECT key FROM meta WHERE key = 'after' OR key LIKE 'huge%'") == [("after",)]
