# SPDX-License-Identifier: Apache-2.0
"""The stores that outlive a coordinator, and one coordinator's way to them: it takes a moment and dies with it.

The SQL is the real one. A call's way there and back is a place to be interrupted: before it, nothing was written;
after it, everything was and the caller does not know.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from corral.model.ids import RunId
from corral.runtime.clock import Clock
from corral.sim.actors import Actor
from corral.store.inline import InlineDatabase
from corral.store.interface import LogInfo, LogKey, LogStore

T = TypeVar("T")


@dataclass(frozen=True)
class Change:
    """A row came to be, or one of the watched columns changed. ``old`` and ``new`` as stored."""

    table: str
    key: str
    column: str
    old: str | None
    new: str | None


_WATCHED = {
    "runs": ("id", ("state",)),
    "jobs": ("id", ("state",)),
    "attempts": ("job_id || '#' || {row}.number", ("state",)),
    "steps": ("job_id || '#' || {row}.attempt || '/' || {row}.number", ("state",)),
    "agents": ("id", ("state", "assignment", "cordon_reason")),
    "provisions": ("agent_id", ("state",)),
    "claims": ("digest", ("key_digest",)),
}


def _watch(connection: sqlite3.Connection, note: Callable[[Change], None]) -> None:
    def changed(table: str, key: str, column: str, old: str | None, new: str | None) -> None:
        note(Change(table, key, column, old, new))

    connection.create_function("sim_changed", 5, changed)
    for table, (key, columns) in _WATCHED.items():
        fresh = _key(key, "NEW")
        for column in columns:
            connection.execute(
                f"CREATE TEMP TRIGGER {table}_{column}_new AFTER INSERT ON {table} WHEN NEW.{column} IS NOT NULL "
                f"BEGIN SELECT sim_changed('{table}', {fresh}, '{column}', NULL, NEW.{column}); END"
            )
            connection.execute(
                f"CREATE TEMP TRIGGER {table}_{column}_set AFTER UPDATE OF {column} ON {table} "
                f"WHEN OLD.{column} IS NOT NEW.{column} "
                f"BEGIN SELECT sim_changed('{table}', {fresh}, '{column}', OLD.{column}, NEW.{column}); END"
            )


def _key(expression: str, row: str) -> str:
    return f"{row}.{expression.format(row=row)}"


class SharedDatabase:
    """One database that survives every coordinator. ``committed`` is told what each transaction changed."""

    def __init__(self, clock: Clock, committed: Callable[[list[Change]], None]) -> None:
        self._pending: list[Change] = []
        self._committed = committed
        self.inline = InlineDatabase(clock, prepare=lambda connection: _watch(connection, self._pending.append))

    def look(self, fn: Callable[[Connection], T]) -> T:
        """Read past an outage."""
        return self.inline.look(fn)

    async def write(self, fn: Callable[[Connection], T]) -> T:
        self._pending.clear()
        result = await self.inline.write(fn)
        if self._pending:
            changes = self._pending.copy()
            self._pending.clear()
            self._committed(changes)
        return result

    async def read(self, fn: Callable[[Connection], T]) -> T:
        return await self.inline.read(fn)


class DatabaseWay:
    """A coordinator's :class:`~corral.store.interface.Database`. ``latency()``: seconds of one way."""

    def __init__(self, shared: SharedDatabase, actor: Actor, latency: Callable[[], float]) -> None:
        self._shared = shared
        self._actor = actor
        self._latency = latency

    async def write(self, fn: Callable[[Connection], T]) -> T:
        await self._travel()
        result = await self._shared.write(fn)
        await self._travel()
        return result

    async def read(self, fn: Callable[[Connection], T]) -> T:
        await self._travel()
        result = await self._shared.read(fn)
        await self._travel()
        return result

    async def _travel(self) -> None:
        self._actor.check()
        await asyncio.sleep(self._latency())
        self._actor.check()

    async def close(self) -> None:
        """The database stays."""


class LogsWay:
    """A coordinator's :class:`~corral.store.interface.LogStore`."""

    def __init__(self, shared: LogStore, actor: Actor, latency: Callable[[], float]) -> None:
        self._shared = shared
        self._actor = actor
        self._latency = latency

    async def _travel(self) -> None:
        self._actor.check()
        await asyncio.sleep(self._latency())
        self._actor.check()

    async def append(self, key: LogKey, offset: int, data: bytes, time: int) -> int:
        await self._travel()
        size = await self._shared.append(key, offset, data, time)
        await self._travel()
        return size

    async def finish(self, key: LogKey, missing: int = 0) -> LogInfo:
        await self._travel()
        info = await self._shared.finish(key, missing)
        await self._travel()
        return info

    async def info(self, key: LogKey) -> LogInfo:
        await self._travel()
        return await self._shared.info(key)

    def read(self, key: LogKey, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        return self._shared.read(key, start, end)

    async def changed(self, key: LogKey, size: int) -> None:
        await self._shared.changed(key, size)

    async def delete_run(self, run_id: RunId) -> int:
        self._actor.check()
        return await self._shared.delete_run(run_id)

    async def usage(self) -> dict[RunId, int]:
        return await self._shared.usage()

    async def close(self) -> None:
        """The store stays."""
