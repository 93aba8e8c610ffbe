# SPDX-License-Identifier: Apache-2.0
"""What only a server can do: refuse, wait, fall over, choose a victim. Real ones, real transactions."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from corral.model.errors import Conflict, CorralError, StoreMisconfigured, StoreUnavailable
from corral.store.postgres import PostgresDatabase, PostgresLimits
from corral.store.tables import SCHEMA_VERSION
from corral.store.translation import translated
from corral.store.upgrade import upgrade_postgres
from tests.postgres import Server, driver_url, server
from tests.waiting import eventually_async

T = TypeVar("T")
WITHIN = 30


def using(url: str, use: Callable[[PostgresDatabase], Coroutine[Any, Any, T]], **limits: Any) -> T:
    async def run() -> T:
        database = PostgresDatabase.open(url, PostgresLimits(**limits))
        try:
            async with asyncio.timeout(WITHIN):
                return await use(database)
        finally:
            await database.close()

    return asyncio.run(run())


def put(connection: Connection, key: str, value: object) -> None:
    statement = "INSERT INTO meta VALUES (:k, :v) ON CONFLICT (key) DO UPDATE SET value = :v"
    connection.execute(text(statement), {"k": key, "v": str(value)})


def get(connection: Connection, key: str) -> str | None:
    found: str | None = connection.execute(text("SELECT value FROM meta WHERE key = :k"), {"k": key}).scalar()
    return found


def lock(connection: Connection, key: str) -> None:
    connection.execute(text("SELECT * FROM meta WHERE key = :k FOR UPDATE"), {"k": key})


# --- opening -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense", "postgresql://USER@HOST/NAME"),
        ("mysql://u@h/n", "mysql is no database for a cluster"),
    ],
)
def test_a_url_that_is_none_is_refused_with_the_form_of_one(url: str, says: str) -> None:
    with pytest.raises(StoreMisconfigured, match=says):
        PostgresDatabase.open(url)


def test_a_database_that_is_not_there_is_named() -> None:
    with pytest.raises(StoreUnavailable, match=r"cannot be reached: .*nowhere.* does not exist"):
        PostgresDatabase.open(server().url("nowhere"))


def test_nobody_listening_may_pass() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        PostgresDatabase.open("postgresql://corral@127.0.0.1:1/corral")


def test_a_database_without_our_schema_names_the_command_and_the_command_helps() -> None:
    url = server().empty()
    with pytest.raises(StoreMisconfigured, match="no Corral schema yet; run: corral db upgrade"):
        PostgresDatabase.open(url)
    engine = create_engine(driver_url(url), poolclass=NullPool)
    assert upgrade_postgres(engine) == (0, SCHEMA_VERSION)
    assert upgrade_postgres(engine) == (SCHEMA_VERSION, SCHEMA_VERSION)
    assert using(url, lambda database: database.read(lambda c: get(c, "schema_version"))) == str(SCHEMA_VERSION)


def test_a_newer_schema_is_refused_naming_both_versions() -> None:
    url = server().database()
    using(url, lambda database: database.write(lambda c: put(c, "schema_version", 99)))
    with pytest.raises(StoreMisconfigured, match=rf"schema version 99; this Corral .* knows {SCHEMA_VERSION}"):
        PostgresDatabase.open(url)


def test_two_upgrades_at_once_make_one_schema() -> None:
    url = server().empty()
    engines = [create_engine(driver_url(url), poolclass=NullPool) for _ in range(4)]

    async def all_at_once() -> list[tuple[int, int]]:
        return await asyncio.gather(*(asyncio.to_thread(upgrade_postgres, engine) for engine in engines))

    found = asyncio.run(all_at_once())
    assert sorted(found) == [(0, SCHEMA_VERSION), *[(SCHEMA_VERSION, SCHEMA_VERSION)] * 3]


# --- transactions against each other -----------------------------------------------------------------------


def test_the_victim_of_a_deadlock_is_run_again() -> None:
    url = server().database()
    ready = threading.Barrier(2, timeout=WITHIN)
    runs: list[str] = []

    def cross(first: str, second: str) -> Callable[[Connection], None]:
        def fn(connection: Connection) -> None:
            runs.append(first)
            put(connection, first, first)
            if runs.count(first) == 1:
                ready.wait()
            put(connection, second, first)

        return fn

    async def use(database: PostgresDatabase) -> tuple[str | None, str | None]:
        await database.write(lambda c: put(c, "a", ""))
        await database.write(lambda c: put(c, "b", ""))
        await asyncio.gather(database.write(cross("a", "b")), database.write(cross("b", "a")))
        return await database.read(lambda c: (get(c, "a"), get(c, "b")))

    a, b = using(url, use, lock=WITHIN)
    assert a == b and a in ("a", "b"), "one transaction whole after the other"
    assert sorted(set(runs)) == ["a", "b"] and len(runs) >= 3, "one of them was run again"


def test_a_lock_that_is_not_had_in_time_is_given_up() -> None:
    url = server().database()
    held, go = threading.Event(), threading.Event()

    def hold(connection: Connection) -> None:
        lock(connection, "schema_version")
        held.set()
        assert go.wait(WITHIN)

    async def use(database: PostgresDatabase) -> None:
        holding = asyncio.ensure_future(database.write(hold))
        await asyncio.to_thread(held.wait, WITHIN)
        with pytest.raises(StoreUnavailable, match="could not lock a row in time"):
            await database.write(lambda c: lock(c, "schema_version"))
        go.set()
        await holding

    using(url, use, lock=0.2)


def test_a_statement_without_end_is_ended() -> None:
    async def use(database: PostgresDatabase) -> None:
        with pytest.raises(StoreUnavailable, match="took too long"):
            await database.write(lambda c: c.execute(text("SELECT pg_sleep(60)")) and None)

    using(server().database(), use, statement=0.2)


def test_a_frozen_transaction_is_rolled_back_by_the_server() -> None:
    """As a stopped coordinator's is: its row locks must not outlive its trust."""
    url = server().database()
    held, go = threading.Event(), threading.Event()

    def freeze(connection: Connection) -> None:
        put(connection, "frozen", "yes")
        held.set()
        assert go.wait(WITHIN)
        put(connection, "later", "yes")

    async def use(database: PostgresDatabase) -> None:
        frozen = asyncio.ensure_future(database.write(freeze))
        await asyncio.to_thread(held.wait, WITHIN)
        # Waits for the row, and gets it when the server has ended the transaction that had it.
        await database.write(lambda c: put(c, "frozen", "no"))
        go.set()
        with pytest.raises(StoreUnavailable, match="stood still for too long"):
            await frozen
        assert await database.read(lambda c: (get(c, "frozen"), get(c, "later"))) == ("no", None)

    using(url, use, idle=0.3, lock=20)


def test_a_read_is_one_snapshot_and_cannot_write() -> None:
    url = server().database()
    seen, go = threading.Event(), threading.Event()

    def twice(connection: Connection) -> tuple[str | None, str | None]:
        first = get(connection, "k")
        seen.set()
        assert go.wait(WITHIN)
        return first, get(connection, "k")

    async def use(database: PostgresDatabase) -> None:
        await database.write(lambda c: put(c, "k", 1))
        reading = asyncio.ensure_future(database.read(twice))
        await asyncio.to_thread(seen.wait, WITHIN)
        await database.write(lambda c: put(c, "k", 2))
        go.set()
        assert await reading == ("1", "1")
        with pytest.raises(StoreUnavailable, match="read-only"):
            await database.read(lambda c: put(c, "k", 3))
        assert await database.read(lambda c: get(c, "k")) == "2"

    using(url, use)


def test_our_own_errors_come_through_and_nothing_is_written() -> None:
    def fail(connection: Connection) -> None:
        put(connection, "k", 1)
        raise Conflict("not this one")

    async def use(database: PostgresDatabase) -> None:
        with pytest.raises(Conflict, match="not this one"):
            await database.write(fail)
        assert await database.read(lambda c: get(c, "k")) is None

    using(server().database(), use)


# --- too few, and away -------------------------------------------------------------------------------------


def test_who_waits_too_long_for_a_connection_is_told_when_to_come_back() -> None:
    go, held = threading.Event(), threading.Barrier(3, timeout=WITHIN)

    def hold(connection: Connection) -> None:
        held.wait()
        assert go.wait(WITHIN)

    async def use(database: PostgresDatabase) -> None:
        busy = [asyncio.ensure_future(database.write(hold)) for _ in range(2)]
        await asyncio.to_thread(held.wait)
        with pytest.raises(StoreUnavailable, match="all 2 connections to the database are in use") as caught:
            await database.read(lambda c: get(c, "k"))
        assert caught.value.retry_after == 1
        go.set()
        await asyncio.gather(*busy)
        assert await database.read(lambda c: get(c, "schema_version")) == str(SCHEMA_VERSION)

    using(server().database(), use, connections=2, wait=0.2)


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For what ends a server: nobody else's."""
    home = Path(tempfile.mkdtemp(prefix="pg"))
    home.chmod(0o755)
    made = Server(home)
    yield made
    made.stop("immediate")
    shutil.rmtree(home)


def test_a_server_that_is_killed_and_comes_back_loses_nothing_that_was_acknowledged(own_server: Server) -> None:
    url = own_server.database()

    async def use(database: PostgresDatabase) -> None:
        acknowledged, refused = set[str](), 0
        stop = asyncio.Event()

        async def write(worker: int) -> None:
            nonlocal refused
            number = 0
            while not stop.is_set():
                number += 1
                key = f"w{worker}-{number}"
                try:
                    await database.write(lambda c, key=key: put(c, key, "x"))
                except StoreUnavailable:
                    refused += 1
                    await asyncio.sleep(0.01)
                else:
                    acknowledged.add(key)

        writers = [asyncio.ensure_future(write(worker)) for worker in range(3)]
        await eventually_async(lambda: len(acknowledged) > 50)
        await asyncio.to_thread(own_server.stop, "immediate")
        await eventually_async(lambda: refused > 0)
        before = len(acknowledged)
        await asyncio.to_thread(own_server.start)
        await eventually_async(lambda: len(acknowledged) > before + 50)
        stop.set()
        await asyncio.gather(*writers)
        kept = await database.read(lambda c: set(c.execute(text("SELECT key FROM meta")).scalars().all()))
        assert acknowledged <= kept

    using(url, use)


@pytest.mark.parametrize("state", [None, "", "XX000", "58030", "0A000", "99999", "40003"])
def test_what_nobody_foresaw_counts_as_not_written_and_not_for_good(state: str | None) -> None:
    """F1: the default branch of the mapping is the safe one."""

    class Strange(Exception):
        sqlstate = state

    with pytest.raises(StoreUnavailable) as caught, translated():
        raise DBAPIError("SELECT 1", {}, Strange("what"))
    assert isinstance(caught.value, CorralError) and not isinstance(caught.value, StoreMisconfigured)
