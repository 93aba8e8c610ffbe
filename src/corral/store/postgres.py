# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL: READ COMMITTED transactions on a bounded pool, each with limits that roll a frozen one back.

A write runs in a thread, on a connection of its own, and is run again where the server chose it as the victim of a
deadlock. A read is one REPEATABLE READ snapshot that cannot write. Whoever waits too long for a connection is told to
come back later, instead of waiting without end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import QueuePool

from corral.model.errors import StoreMisconfigured, StoreUnavailable
from corral.store.translation import run_again, translated

T = TypeVar("T")

DRIVER = "postgresql+psycopg"
TRIES = 5
"""Runs of one transaction that keeps being chosen as the victim."""


@dataclass(frozen=True, kw_only=True)
class PostgresLimits:
    """``connections``: at the same time. Seconds: ``connect`` for a new one; ``statement``, ``lock`` and ``idle``
    (between two statements of one transaction) are enforced by the server, so that also a frozen coordinator's
    transaction is rolled back; ``wait`` for a free connection."""

    connections: int = 8
    connect: float = 5.0
    statement: float = 30.0
    lock: float = 3.0
    idle: float = 10.0
    wait: float = 5.0


class PostgresDatabase:
    """A database that several coordinators share. Make one with :meth:`open`."""

    def __init__(self, url: str, limits: PostgresLimits) -> None:
        self.limits = limits
        self.engine = open_engine(url, limits)
        self._threads = ThreadPoolExecutor(limits.connections, thread_name_prefix="postgres")
        self._closed = False

    @classmethod
    def open(cls, url: str, limits: PostgresLimits | None = None) -> PostgresDatabase:
        """Connect, and look whether the schema is this release's; nothing is changed.

        :raises StoreMisconfigured: the URL is none, it refuses us, or the schema is of another release.
        :raises StoreUnavailable: it cannot be reached now.
        """
        from corral.store.upgrade import check_postgres

        database = cls(url, limits or PostgresLimits())
        try:
            with translated():
                check_postgres(database.engine)
        except BaseException:
            database.engine.dispose()
            raise
        return database

    async def write(self, fn: Callable[[Connection], T]) -> T:
        return await self._run(self._write, fn)

    async def read(self, fn: Callable[[Connection], T]) -> T:
        return await self._run(self._read, fn)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        self.engine.dispose()

    async def _run(self, how: Callable[[Callable[[Connection], T]], T], fn: Callable[[Connection], T]) -> T:
        """In a thread, once one is free. A caller that is cancelled leaves its transaction to end by itself."""
        if self._closed:
            raise StoreUnavailable("the database is closed")
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()

        def work() -> T:
            loop.call_soon_threadsafe(begun.set)
            return how(fn)

        future = loop.run_in_executor(self._threads, work)
        try:
            async with asyncio.timeout(self.limits.wait):
                await begun.wait()
        except TimeoutError:
            if future.cancel():
                message = f"all {self.limits.connections} connections to the database are in use"
                raise StoreUnavailable(message, retry_after=1) from None
        return await asyncio.shield(future)

    # --- in a thread ---

    def _write(self, fn: Callable[[Connection], T]) -> T:
        with translated():
            for _ in range(TRIES - 1):
                try:
                    with self.engine.connect() as connection, connection.begin():
                        return fn(connection)
                except DBAPIError as error:
                    if not run_again(error):
                        raise
            with self.engine.connect() as connection, connection.begin():
                return fn(connection)

    def _read(self, fn: Callable[[Connection], T]) -> T:
        with translated(), self.engine.connect() as connection:
            connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                return fn(connection)


def open_engine(url: str, limits: PostgresLimits | None = None) -> Engine:
    """:raises StoreMisconfigured: the URL is none of PostgreSQL's; nothing is connected yet."""
    limits = limits or PostgresLimits()
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreMisconfigured("the database's URL cannot be read: postgresql://USER@HOST/NAME") from error
    if parsed.drivername not in ("postgresql", "postgres", DRIVER):
        raise StoreMisconfigured(f"{parsed.drivername} is no database for a cluster: postgresql://USER@HOST/NAME")
    options = " ".join(
        f"-c {name}={int(seconds * 1000)}"
        for name, seconds in (
            ("statement_timeout", limits.statement),
            ("lock_timeout", limits.lock),
            ("idle_in_transaction_session_timeout", limits.idle),
        )
    )
    engine = create_engine(
        parsed.set(drivername=DRIVER),
        poolclass=QueuePool,
        pool_size=limits.connections,
        max_overflow=0,
        pool_timeout=limits.wait,
        pool_pre_ping=True,
        isolation_level="READ COMMITTED",
        connect_args={
            "connect_timeout": max(2, round(limits.connect)),
            "options": options,
            "application_name": "corral",
            # A half-open connection is noticed in about 20 s, not in two hours.
            "keepalives_idle": 10,
            "keepalives_interval": 3,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
        },
    )

    @event.listens_for(engine, "handle_error")
    def _lost(context: Any) -> None:
        """What the server ends by itself (57P01 and its like) is a lost connection, not one to be used again."""
        state = getattr(context.original_exception, "sqlstate", None) or ""
        if state.startswith(("57P", "08")) or state == "25P03":
            context.is_disconnect = True

    return engine
