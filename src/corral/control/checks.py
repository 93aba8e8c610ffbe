# SPDX-License-Identifier: Apache-2.0
"""The checks of ``corral diagnose``. Each asks one thing and says it in a sentence; its caller shows an error."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sqlalchemy import Connection

from corral.backends.interface import Backend
from corral.control.failures import WINDOW, FailureTracker
from corral.control.findings import Row, Status, failed, ok, skipped, warning
from corral.control.leaks import Ledger
from corral.control.levels import queued_by_pool, slots_by_pool
from corral.control.telemetry import free_bytes
from corral.model.failures import PoolFailures
from corral.model.ids import JobId, RunId
from corral.model.leaks import TargetView
from corral.model.pools import Caps, Pool
from corral.model.records import PoolHealth
from corral.runtime.clock import SECOND, Clock
from corral.runtime.service import Service
from corral.store.interface import Database, LogKey, LogStore
from corral.store.repo import census, engine
from corral.store.repo import pool_health as pool_health_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import now
from corral.store.repo.lease import LEASE

GIB = 1024**3
DISK_WARNING = GIB
DISK_FAILED = 100 * 1024**2
SLOW_WRITE = 1.0
"""Seconds of one commit beyond which every job's beginning and end waits noticeably."""
CLOCK_OFFSET = 2.0
"""Seconds between our clock and the database's that are worth a word."""
STALLED_AFTER = 30.0
"""Seconds without a completed pass after which a service counts as stalled, as readiness has it."""
QUEUE_LONG = 15 * 60.0
LAG_WARNING = 60.0
LAG_FAILED = 600.0
RELEASE_LONG = 15 * 60.0
DETAIL = 120
"""Characters of an error in a row."""
CERTIFICATE_WARNING = 30
CERTIFICATE_DAY = 86400 * SECOND


# --- database ----------------------------------------------------------------------------------------------


async def database(db: Database, clock: Clock) -> Sequence[Row]:
    began = clock.monotonic()
    await db.write(engine.probe)
    seconds = clock.monotonic() - began
    said = f"writable; a commit took {seconds * 1000:.0f} ms"
    if seconds >= SLOW_WRITE:
        return [warning(said, "find what keeps its disk busy, or move the state directory to a faster one")]
    return [ok(said)]


async def schema(db: Database) -> Sequence[Row]:
    found, known = await db.read(engine.schema_version)
    if found == known:
        return [ok(f"version {found}, as this release knows it")]
    return [failed(f"version {found}; this release knows {known}", "start the release that the database belongs to")]


async def durability(db: Database) -> Sequence[Row]:
    # On the writing side: what a reader's connection promises is beside the point.
    found = await db.write(engine.durability)
    said = f"{found.engine}: {', '.join(found.settings)}"
    if not found.lossy:
        return [ok(said)]
    message = f"{found.engine} may lose commits it acknowledged: {', '.join(found.lossy)}"
    return [warning(message, "job-once, cap and claim guarantees need durable commits: turn it on again")]


async def clocks(db: Database, clock: Clock, began: float, started_at: int) -> Sequence[Row]:
    before = clock.now()
    theirs = await db.read(now)
    offset = (theirs - (before + clock.now()) / 2) / SECOND
    step = (clock.now() - started_at) / SECOND - (clock.monotonic() - began)
    return [_offset(offset), _step(step)]


def _offset(offset: float) -> Row:
    if abs(offset) < CLOCK_OFFSET:
        return ok(f"the database's clock and ours are {abs(offset) * 1000:.0f} ms apart", "clock offset")
    message = f"the database's clock is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} ours"
    return warning(message, "let NTP set both; ages are counted by the database's clock", "clock offset")


def _step(step: float) -> Row:
    if abs(step) < CLOCK_OFFSET:
        return ok("this host's clock was not set since the server started", "clock steps")
    message = f"this host's clock was set {'forward' if step > 0 else 'back'} by {abs(step):.1f} s since the start"
    return warning(message, "let NTP slew instead of step; times shown around it are off", "clock steps")


# --- storage -----------------------------------------------------------------------------------------------


async def disk(directories: Mapping[str, Path]) -> Sequence[Row]:
    if not directories:
        return [skipped("this coordinator keeps nothing on a disk")]
    return await asyncio.to_thread(lambda: [_space(place, path) for place, path in directories.items()])


def _space(place: str, directory: Path) -> Row:
    existing = next((path for path in (directory, *directory.parents) if path.exists()), directory)
    return space(place, directory, free_bytes(existing))


def space(place: str, directory: Path, free: int | None) -> Row:
    """``free``: bytes; None: it could not be asked."""
    name = f"disk {place}"
    if free is None:
        return failed(f"{directory} cannot be looked at", "check that it is there and readable", name)
    said = f"{_size(free)} free in {directory}"
    if free < DISK_FAILED:
        return failed(said, "free some now: nothing can be written soon; `corral clean` removes old runs", name)
    if free < DISK_WARNING:
        return warning(said, "free some: `corral clean` removes old runs", name)
    return ok(said, name)


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count // 1024**2} MiB"


async def log_store(logs: LogStore, clock: Clock) -> Sequence[Row]:
    """By doing: a line is stored, read back and removed."""
    key = LogKey(run_id=RunId("run_diagnose"), job_id=JobId("job_diagnose"), attempt=1, step=0)
    line = b"diagnose\n"
    began = clock.monotonic()
    await logs.delete_run(key.run_id)
    try:
        await logs.append(key, 0, line, clock.now())
        found = b"".join([part async for part in logs.read(key)])
    finally:
        await logs.delete_run(key.run_id)
    if found != line:
        return [failed("what was stored is not what is read back", "check the disk and its file system")]
    return [ok(f"a line was stored, read back and removed in {(clock.monotonic() - began) * 1000:.0f} ms")]


# --- server ------------------------------------------------------------------------------------------------


async def lease(db: Database, holder: str, epoch: tuple[int, int], *, offline: bool) -> Sequence[Row]:
    found = await db.read(lambda c: engine.held_lease(c, LEASE))
    if offline:
        last = f"; the last term was {found.generation}.{found.counter}" if found else ""
        return [skipped(f"no server holds this state directory{last}")]
    if found is None or (found.holder, found.generation, found.counter) != (holder, *epoch):
        theirs = f"{found.holder} with epoch {found.generation}.{found.counter}" if found else "nobody"
        message = f"this coordinator does not lead: the lease is with {theirs}"
        return [failed(message, "find the other process that took it; only one may work on a database file")]
    return [ok(f"this coordinator leads, epoch {found.generation}.{found.counter}")]


async def services(running: Sequence[Service], clock: Clock, *, offline: bool) -> Sequence[Row]:
    """Q18: a loop that makes no progress is seen although its process lives."""
    if offline:
        return [skipped("no server runs on this state directory")]
    rows = [_service(service, clock.monotonic()) for service in running]
    return rows or [skipped("no service runs here")]


def _service(service: Service, moment: float) -> Row:
    name = f"service {service.name}"
    remedy = "see the server's log; restart it if this stays"
    if service.last_pass is None:
        return failed("has not completed a pass yet", remedy, name)
    quiet = moment - service.last_pass
    if quiet >= STALLED_AFTER:
        return failed(f"no pass for {quiet:.0f} s", remedy, name)
    return ok(f"last pass {quiet:.1f} s ago", name)


async def settings(changed: Sequence[tuple[str, str, str]], *, offline: bool) -> Sequence[Row]:
    if offline:
        return [skipped("settings are a running server's")]
    if not changed:
        return [ok("all settings have their defaults")]
    said = ", ".join(f"{name} {value} (default {default})" for name, value, default in changed)
    return [ok(f"{len(changed)} differ{'s' if len(changed) == 1 else ''} from the default: {said}")]


async def certificate(path: Path | None, clock: Clock) -> Sequence[Row]:
    if path is None:
        return [skipped("this server does not end TLS itself")]
    return [await asyncio.to_thread(_certificate, path, clock.now())]


def _certificate(path: Path, moment: int) -> Row:
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        return failed(
            f"{path} cannot be read: {error.strerror}", "name the certificate's file, readable for the server"
        )
    except ValueError:
        return failed(f"{path} holds no certificate in PEM", "name the certificate's file, not its key")
    left = (int(found.not_valid_after_utc.timestamp()) * SECOND - moment) // CERTIFICATE_DAY
    if left < 0:
        return failed(f"expired {-left} days ago", f"renew {path} and restart the server")
    if left < CERTIFICATE_WARNING:
        return warning(f"expires in {left} days", f"renew {path}")
    return ok(f"valid for {left} days")


# --- queue -------------------------------------------------------------------------------------------------


async def queue(db: Database) -> Sequence[Row]:
    found = await db.read(census.queue)
    if not found.queued:
        return [ok("no job waits")]
    oldest = found.oldest / SECOND
    said = f"{found.queued} job{_s(found.queued)} wait{_s(found.queued, '', 's')}, the first for {_age(oldest)}"
    if oldest >= QUEUE_LONG:
        return [warning(said, "`corral why RUN JOB` says what each waits for")]
    return [ok(said)]


async def unroutable(db: Database) -> Sequence[Row]:
    found = await db.read(census.queue)
    if not found.unroutable:
        return [ok("every queued job fits a pool or a known agent")]
    message = f"{found.unroutable} queued job{_s(found.unroutable)} fit{_s(found.unroutable, '', 's')} nothing here"
    return [warning(message, "`corral why RUN JOB` names the label that is missing")]


# --- pools -------------------------------------------------------------------------------------------------


async def backend(one: Backend) -> Sequence[Row]:
    found = await one.check()
    if not found:
        return [ok("works here")]
    worst = next((each for level in ("failed", "warning") for each in found if each.level == level), None)
    if worst is None:
        return [ok(found[0].message)]
    others = sum(1 for each in found if each.level != "ok") - 1
    more = f" (and {others} more)" if others else ""
    return [Row(status=Status(worst.level), message=worst.message + more, remedy=worst.remedy)]


async def pools(db: Database, known: Sequence[Pool], caps: Caps, *, offline: bool) -> Sequence[Row]:
    if offline:
        return [skipped("pools are a running server's")]
    if not known:
        return [warning("no pool is configured: only static agents run jobs", "add a pool to corral.yaml")]
    found = await db.read(_capacity)
    return [*_pool_rows(known, found), _cluster(found, caps)]


Capacity = tuple[Mapping[str, int], dict[str, PoolHealth], tuple[census.Demanded, ...], int]


def _capacity(connection: Connection) -> Capacity:
    health = {row.pool: row for row in pool_health_rows.every(connection)}
    slots = slots_by_pool(provisions_rows.held(connection))
    return slots, health, census.demanded(connection), now(connection)


def _pool_rows(known: Sequence[Pool], found: Capacity) -> Iterator[Row]:
    slots, health, demand, moment = found
    queued = queued_by_pool(demand, known)
    for pool in known:
        yield _pool(pool, slots.get(pool.name, 0), queued.get(pool.name, 0), health.get(pool.name), moment)


def _pool(pool: Pool, held: int, queued: int, health: PoolHealth | None, moment: int) -> Row:
    name = f"pool {pool.name}"
    said = f"{held} of {pool.max_agents} agents, {queued} job{_s(queued)} queued"
    until = health.backoff_until if health is not None else None
    if health is not None and until is not None and until > moment:
        message = f"{said}; creates again in {_age((until - moment) / SECOND)} after {health.failures} failures"
        return warning(message, f"last error: {_short(health.last_error)}", name)
    if pool.draining:
        return ok(f"{said}; draining", name)
    if held >= pool.max_agents and queued:
        return warning(f"{said}: full", "raise max_agents, or wait", name)
    return ok(said, name)


def _cluster(found: Capacity, caps: Caps) -> Row:
    held = sum(found[0].values())
    said = f"{held} of {caps.max_agents} agents in the whole cluster"
    if held >= caps.max_agents:
        return warning(f"{said}: full", "raise max_agents of the server, or wait", "cluster")
    return ok(said, "cluster")


async def failures(tracker: FailureTracker, db: Database, clock: Clock, known: Sequence[Pool]) -> Sequence[Row]:
    """Every pool, and pools that were removed but failed lately."""
    await tracker.follow(db)
    found = tracker.recent_by_pool(WINDOW, clock.now() // 1000)
    names = [pool.name for pool in known]
    rows = [_failures(name, found.get(name), removed=False) for name in names]
    rows += [_failures(name, each, removed=bool(known)) for name, each in sorted(found.items()) if name not in names]
    return rows or [ok(f"no instance failed in the last {WINDOW // 60_000} minutes")]


def _failures(pool: str, found: PoolFailures | None, *, removed: bool) -> Row:
    name = f"failures {pool}"
    where = " of this pool, which is not configured any more," if removed else ""
    if found is None:
        return ok(f"none in the last {WINDOW // 60_000} minutes", name)
    total = found.bound + found.unbound
    said = (
        f"{total} instance{_s(total)}{where} failed in the last {WINDOW // 60_000} minutes "
        f"({found.bound} for a job, {found.unbound} to keep the pool warm); last: {_short(found.detail)}"
    )
    remedy = f"`corral pools` shows what stops it; backend: {found.backend}"
    return failed(said, remedy, name) if found.bound else warning(said, remedy, name)


# --- giving back -------------------------------------------------------------------------------------------


async def outbox(ask: Ledger) -> Sequence[Row]:
    found = await ask()
    pending, lag = found.waiting, found.lag
    if not pending:
        return [ok("no event waits for a provisioner")]
    said = f"{pending} event{_s(pending)} wait{_s(pending, '', 's')}, the one due longest for {_age(lag)}"
    if lag >= LAG_FAILED:
        return [failed(said, "see whether the provisioner answers; what should be given back still costs money")]
    return [warning(said, "see whether the provisioner answers") if lag >= LAG_WARNING else ok(said)]


async def provisioners(ask: Ledger) -> Sequence[Row]:
    found = (await ask()).targets
    if not found:
        return [skipped("no pool has a provisioner")]
    return [_provisioner(each) for each in found]


def _provisioner(found: TargetView) -> Row:
    name = f"provisioner {found.key}"
    if found.stale:
        remedy = "a restored database? `corral cluster raise-epoch` puts ours above it"
        return failed("has seen a higher epoch than ours and refuses us", remedy, name)
    if found.error:
        return warning(f"its last answer: {_short(found.error)}", "see its own log", name)
    if found.told_at is None:
        return warning("has not answered this coordinator yet", "nothing is created there before it does", name)
    return ok("answers", name)


async def leaks(ask: Ledger) -> Sequence[Row]:
    found = await ask()
    kinds = Counter(leak.kind for leak in found.leaks)
    abandoned, strays, ghosts = kinds["abandoned"], kinds["stray"], kinds["ghost"]
    rows = []
    if abandoned:
        hourly = found.hourly("abandoned")
        cost = f", {hourly:g} per hour" if hourly else ""
        message = f"{abandoned} instance{_s(abandoned)} could not be confirmed gone{cost}"
        rows.append(failed(message, "look at the provider, then `corral provisions retry` or `forget`", "abandoned"))
    if strays:
        message = f"{strays} listed instance{_s(strays)} that nothing here wants"
        rows.append(warning(message, "they are given back after two listings; look at the provider if not", "strays"))
    if ghosts:
        message = f"{ghosts} agent{_s(ghosts)} whose instance the last listing lacked"
        rows.append(warning(message, "see whether the provisioner lists all it made", "ghosts"))
    return rows or [ok("every instance is accounted for")]


async def releases(db: Database) -> Sequence[Row]:
    """An instance on its way out for too long still costs what it costs."""
    count, age = await db.read(census.releasing)
    if not count:
        return [ok("nothing is being given back")]
    said = f"{count} instance{_s(count)} being given back, the first for {_age(age / SECOND)}"
    if age / SECOND >= RELEASE_LONG:
        return [warning(said, "`corral agents` shows which; see the backend's or the provisioner's errors")]
    return [ok(said)]


# --- words -------------------------------------------------------------------------------------------------


def _s(count: int, many: str = "s", one: str = "") -> str:
    return one if count == 1 else many


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= DETAIL else line[: DETAIL - 1] + "…"


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
