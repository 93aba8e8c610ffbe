# SPDX-License-Identifier: Apache-2.0
"""SQLite: WAL, synchronous=FULL, one process per database file, one writer thread that groups commits.

Waiting transactions share one ``BEGIN IMMEDIATE … COMMIT`` and thus one sync to disk; each runs in a SAVEPOINT of
its own and fails alone. A caller hears of success only after the commit. Readers are separate ``query_only``
connections, so a long read never stops a write.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from corral.model.errors import CorralError, StoreMisconfigured, StoreUnavailable
from corral.runtime.clock import Clock
from corral.store.translation import as_ours, translated

log = logging.getLogger(__name__)

T = TypeVar("T")

GROUP_LIMIT = 256
"""Transactions in one commit: bounds how long the first waits for the last."""
BUSY_TIMEOUT = 5.0
"""Seconds to wait for a lock that somebody with a database shell holds."""
READERS = 2


class FileLock:
    """One process per database file. The lock file names the holder, so that a second start can say who it is.

    :raises StoreMisconfigured: another process holds it; the message names its pid.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        self._fd = -1

    def acquire(self) -> None:
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreMisconfigured(
                f"cannot open {self._path}: {error.strerror}; is the directory writable?"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise StoreMisconfigured(
                f"the database beside {self._path.name} in {self._path.parent} is in use by process {holder}; "
                f"stop it, or choose another --state-dir"
            ) from error
        self._fd = fd
        with contextlib.suppress(OSError):
            # On a full disk the lock holds all the same; only its holder is not named.
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _engine(path: str, clock: Clock, *, query_only: bool) -> Engine:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, uri=path.startswith("file:")
        )
        connection.create_function("corral_now", 0, clock.now)
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA cache_size=-8192")
        if query_only:
            cursor.execute("PRAGMA query_only=ON")
        cursor.close()
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    # SQLAlchemy's pysqlite dialect emits no BEGIN of its own with isolation_level=None; ours is explicit.
    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN DEFERRED" if query_only else "BEGIN IMMEDIATE")

    return engine


class _Job:
    """One waiting transaction."""

    __slots__ = ("fn", "future")

    def __init__(self, fn: Callable[[Connection], Any]) -> None:
        self.fn = fn
        self.future: Future[Any] = Future()


class SqliteDatabase:
    """The embedded database. Make one with :meth:`open`."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._lock = FileLock(path)
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._local = threading.local()
        self._reader_connections: list[Connection] = []
        self._writer_engine = _engine(str(path), clock, query_only=False)
        self._reader_engine = _engine(str(path), clock, query_only=True)
        self._writer: Connection | None = None
        self._closed = False

    @classmethod
    def open(cls, path: Path, clock: Clock) -> SqliteDatabase:
        """Lock, create or upgrade, and start the writer.

        :raises StoreMisconfigured: held by another process, newer than this release, damaged or not writable.
        """
        database = cls(path, clock)
        database._lock.acquire()
        try:
            from corral.store.upgrade import upgrade_sqlite

            _private_file(path)
            with translated():
                upgrade_sqlite(path, database._writer_engine)
                database._writer = database._writer_engine.connect()
        except BaseException as error:
            database._lock.release()
            if isinstance(error, StoreUnavailable):
                raise StoreMisconfigured(error.message, internal=error.internal) from error
            raise
        database._thread = threading.Thread(target=database._write_loop, name="sqlite-writer", daemon=True)
        database._thread.start()
        database._readers = ThreadPoolExecutor(READERS, thread_name_prefix="sqlite-reader")
        return database

    async def write(self, fn: Callable[[Connection], T]) -> T:
        if self._closed:
            raise StoreUnavailable("the database is closed")
        job = _Job(fn)
        self._queue.put(job)
        return await asyncio.shield(asyncio.wrap_future(job.future))

    async def read(self, fn: Callable[[Connection], T]) -> T:
        if self._closed or self._readers is None:
            raise StoreUnavailable("the database is closed")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, fn)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        if self._readers is not None:
            self._readers.shutdown(wait=True)
        for connection in self._reader_connections:
            connection.close()
        if self._writer is not None:
            with contextlib.suppress(sqlite3.Error, DBAPIError):
                self._writer.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
                self._writer.rollback()
            self._writer.close()
        self._lock.release()

    def backup(self, target: Path) -> None:
        """A consistent copy, made through its own connection; the writer goes on meanwhile."""
        with (
            contextlib.closing(sqlite3.connect(self.path)) as source,
            contextlib.closing(sqlite3.connect(target)) as to,
        ):
            source.backup(to)

    # --- reader threads ---

    def _read(self, fn: Callable[[Connection], T]) -> T:
        with translated():
            connection = getattr(self._local, "connection", None)
            if connection is None:
                connection = self._reader_engine.connect()
                self._local.connection = connection
                self._reader_connections.append(connection)
            try:
                return fn(connection)
            finally:
                connection.rollback()

    # --- writer thread ---

    def _write_loop(self) -> None:
        while True:
            group, ending = self._next_group()
            if group:
                self._commit(group)
            if ending:
                return

    def _next_group(self) -> tuple[list[_Job], bool]:
        first = self._queue.get()
        if first is None:
            return [], True
        group = [first]
        while len(group) < GROUP_LIMIT:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return group, True
            group.append(job)
        return group, False

    def _commit(self, group: list[_Job]) -> None:
        """All of the group in one transaction; each answer is given after the commit, errors at once."""
        done: list[tuple[_Job, Any]] = []
        try:
            assert self._writer is not None
            with translated(), self._writer.begin():
                for job in group:
                    self._attempt(self._writer, job, done)
        except BaseException as error:
            for job in group:
                if not job.future.done():
                    job.future.set_exception(error)
            if not isinstance(error, CorralError):
                log.exception("the database writer failed")
            return
        for job, value in done:
            if not job.future.cancelled():
                job.future.set_result(value)

    def _attempt(self, writer: Connection, job: _Job, done: list[tuple[_Job, Any]]) -> None:
        """One function in a SAVEPOINT of its own. Straight to the driver: SQLAlchemy's nested transactions cost more
        than the statements inside them."""
        driver = writer.connection.dbapi_connection
        assert driver is not None
        driver.execute("SAVEPOINT one")
        try:
            value = job.fn(writer)
        except BaseException as error:
            try:
                driver.execute("ROLLBACK TO one")
                driver.execute("RELEASE one")
            except sqlite3.Error:
                # A full disk: SQLite has taken the whole group back by itself, so all of it fails, for that reason.
                raise as_ours(error) from error
            job.future.set_exception(as_ours(error))
        else:
            driver.execute("RELEASE one")
            done.append((job, value))


def _private_file(path: Path) -> None:
    """Create the file readable by its owner alone; SQLite's own files beside it inherit the mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreMisconfigured(f"cannot write the database {path}: {error.strerror}") from error
