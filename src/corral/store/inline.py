# SPDX-License-Identifier: Apache-2.0
"""SQLite in memory, run inline: real SQL without threads, for the simulator and for tests of repositories."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar, cast

from sqlalchemy import Connection, create_engine, event, insert
from sqlalchemy.pool import StaticPool

from corral.model.errors import StoreUnavailable
from corral.runtime.clock import Clock
from corral.store.tables import SCHEMA_VERSION, meta, metadata
from corral.store.translation import translated

T = TypeVar("T")


class InlineDatabase:
    """Deterministic: each function runs at once and alone. ``away`` makes every call fail as an outage does,
    ``read_only`` every write as a full disk does.

    ``prepare``: given the open connection once, with the schema in place, to add what watches it.
    """

    def __init__(
        self, clock: Clock, *, prepare: Callable[[sqlite3.Connection], None] = lambda connection: None
    ) -> None:
        self.away = False
        self.read_only = False
        self.refused = 0
        """Writes that failed so."""
        self.writes = 0

        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            connection.create_function("corral_now", 0, clock.now)
            connection.execute("PRAGMA foreign_keys=ON")
            return connection

        engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool)

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        self._connection = engine.connect()
        with self._connection.begin():
            metadata.create_all(self._connection)
            self._connection.execute(insert(meta).values(key="schema_version", value=str(SCHEMA_VERSION)))
        prepare(cast(sqlite3.Connection, self._connection.connection.dbapi_connection))

    async def write(self, fn: Callable[[Connection], T]) -> T:
        if self.away or self.read_only:
            self.refused += 1
            raise StoreUnavailable("the database is away" if self.away else "the database cannot be written")
        self.writes += 1
        with translated(), self._connection.begin():
            return fn(self._connection)

    async def read(self, fn: Callable[[Connection], T]) -> T:
        if self.away:
            raise StoreUnavailable("the database is away")
        with self._connection.begin():
            return fn(self._connection)

    def look(self, fn: Callable[[Connection], T]) -> T:
        """A read that an outage does not stop: for whoever checks from outside, also from inside a transaction."""
        if self._connection.in_transaction():
            return fn(self._connection)
        with self._connection.begin():
            return fn(self._connection)

    async def close(self) -> None:
        """The memory is kept: a simulated coordinator restarts on the same database."""
