# SPDX-License-Identifier: Apache-2.0
"""What an operator would look at, looked at: a table of checks, run side by side.

Each is bounded, keeps its own name whatever becomes of it, and answers in one sentence with what to do. A check only
looks; nothing here repairs, and nothing is decided upon what it says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from corral.backends.interface import Backend
from corral.control import checks as look
from corral.control.failures import FailureTracker
from corral.control.findings import Row, Status
from corral.control.leaks import Ledger
from corral.model.errors import CorralError, NotFound
from corral.model.pools import Caps, Pool
from corral.model.views import DiagnoseRow, DiagnoseView
from corral.runtime.clock import Clock, rfc3339
from corral.runtime.redaction import redacted
from corral.runtime.service import Service
from corral.store.interface import Database, LogStore

TIMEOUT = 10.0
"""Seconds of one check."""
_WORST = (Status.FAILED, Status.WARNING, Status.OK)


class Group(StrEnum):
    """In the order in which they are shown."""

    DATABASE = "database"
    STORAGE = "storage"
    SERVER = "server"
    QUEUE = "queue"
    POOLS = "pools"
    GIVING_BACK = "giving back"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is diagnosed. ``began``, ``started_at``: monotonic seconds and wall microseconds of one moment.
    ``offline``: a state directory that no server holds."""

    clock: Clock
    database: Database
    logs: LogStore
    backends: Mapping[str, Backend]
    pools: tuple[Pool, ...]
    caps: Caps
    services: Sequence[Service]
    failures: FailureTracker
    ledger: Ledger
    holder: str
    epoch: tuple[int, int]
    began: float
    started_at: int
    directories: Mapping[str, Path]
    changed: tuple[tuple[str, str, str], ...]
    certificate: Path | None
    offline: bool


@dataclass(frozen=True, kw_only=True)
class Check:
    """``run`` gives at least one row; a row without a name takes the check's."""

    group: Group
    name: str
    run: Callable[[], Awaitable[Iterable[Row]]]


def checks(s: Subject) -> tuple[Check, ...]:
    """The table, in the order of its rows."""
    d = s.database
    return (
        Check(group=Group.DATABASE, name="database", run=lambda: look.database(d, s.clock)),
        Check(group=Group.DATABASE, name="schema", run=lambda: look.schema(d)),
        Check(group=Group.DATABASE, name="durability", run=lambda: look.durability(d)),
        Check(group=Group.DATABASE, name="clock", run=lambda: look.clocks(d, s.clock, s.began, s.started_at)),
        Check(group=Group.STORAGE, name="disk", run=lambda: look.disk(s.directories)),
        Check(group=Group.STORAGE, name="log store", run=lambda: look.log_store(s.logs, s.clock)),
        Check(group=Group.SERVER, name="lease", run=lambda: look.lease(d, s.holder, s.epoch, offline=s.offline)),
        Check(group=Group.SERVER, name="services", run=lambda: look.services(s.services, s.clock, offline=s.offline)),
        Check(group=Group.SERVER, name="settings", run=lambda: look.settings(s.changed, offline=s.offline)),
        Check(group=Group.SERVER, name="tls", run=lambda: look.certificate(s.certificate, s.clock)),
        Check(group=Group.QUEUE, name="queue", run=lambda: look.queue(d)),
        Check(group=Group.QUEUE, name="unroutable", run=lambda: look.unroutable(d)),
        *(
            Check(group=Group.POOLS, name=f"backend {kind}", run=lambda backend=backend: look.backend(backend))  # type: ignore[misc]
            for kind, backend in s.backends.items()
        ),
        Check(group=Group.POOLS, name="pools", run=lambda: look.pools(d, s.pools, s.caps, offline=s.offline)),
        Check(
            group=Group.POOLS,
            name="failures",
            run=lambda: look.failures(s.failures, d, s.clock, () if s.offline else s.pools),
        ),
        Check(group=Group.GIVING_BACK, name="outbox", run=lambda: look.outbox(s.ledger)),
        Check(group=Group.GIVING_BACK, name="provisioners", run=lambda: look.provisioners(s.ledger)),
        Check(group=Group.GIVING_BACK, name="leaks", run=lambda: look.leaks(s.ledger)),
        Check(group=Group.GIVING_BACK, name="releases", run=lambda: look.releases(d)),
    )


async def run(table: Sequence[Check], clock: Clock, only: str = "", *, timeout: float = TIMEOUT) -> DiagnoseView:
    """All of the table, or those whose name (or group) begins with ``only``; rows in the table's order.

    :raises NotFound: ``only`` names nothing.
    """
    wanted = [check for check in table if check.name.startswith(only) or check.group == only]
    if not wanted:
        raise NotFound(f"no check is called {only!r}; there are {', '.join(check.name for check in table)}")
    found = await asyncio.gather(*(_bounded(check, clock, timeout) for check in wanted))
    rows = tuple(row for rows in found for row in rows)
    status = next((status for status in _WORST if any(row.status == status for row in rows)), Status.OK)
    return DiagnoseView(status=status, at=rfc3339(clock.now()), rows=rows)


async def _bounded(check: Check, clock: Clock, timeout: float) -> tuple[DiagnoseRow, ...]:
    began = clock.monotonic()
    task = asyncio.ensure_future(check.run())
    try:
        # Not wait_for: a check that ignores its cancellation must not hold up the others.
        done, _ = await asyncio.wait({task}, timeout=timeout)
    finally:
        task.cancel()
    if not done:
        # Whenever it does end, nobody asks for its outcome any more.
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
        message = f"no answer within {timeout:g} s"
        remedy = "look at what it asks: a disk, a socket or a program that hangs"
        rows: tuple[Row, ...] = (Row(status=Status.FAILED, message=message, remedy=remedy),)
    else:
        rows = _outcome(task)
    seconds = round(clock.monotonic() - began, 3)
    return tuple(
        DiagnoseRow(
            group=check.group,
            name=row.name or check.name,
            status=row.status,
            message=redacted(row.message),
            remedy=redacted(row.remedy),
            seconds=seconds,
        )
        for row in rows
    )


def _outcome(task: asyncio.Future[Iterable[Row]]) -> tuple[Row, ...]:
    error = task.exception() if not task.cancelled() else asyncio.CancelledError("it was cancelled")
    if error is None:
        return tuple(task.result())
    sentence = error.message if isinstance(error, CorralError) else f"{type(error).__name__}: {error}"
    return (Row(status=Status.FAILED, message=sentence),)
