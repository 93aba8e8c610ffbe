# SPDX-License-Identifier: Apache-2.0
"""``diagnose``: bounded, side by side, every row under its own name (reference section 7 and its traps)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from corral.backends.fake import FakeBackend
from corral.backends.interface import Finding
from corral.control import checks as look
from corral.control import diagnose
from corral.control.checks import DISK_FAILED, DISK_WARNING
from corral.control.diagnose import Check, Group
from corral.control.failures import FailureTracker
from corral.control.findings import Row, Status, failed, ok, skipped, warning
from corral.control.scaler import note_failure
from corral.model.errors import NotFound, StoreUnavailable
from corral.model.ids import AgentId, RunId
from corral.model.pools import Backoff, Caps, Pool
from corral.model.views import DiagnoseView
from corral.runtime.clock import SystemClock
from corral.runtime.service import Service
from corral.store.logmemory import MemoryLogs
from corral.store.repo import provisions as provisions_rows
from tests.clocks import ManualClock
from tests.control.rig import Rig, job, virtual
from tests.control.worlds import World

Run = Callable[[], Awaitable[Sequence[Row]]]


def check(name: str, run: Run, group: Group = Group.SERVER) -> Check:
    return Check(group=group, name=name, run=run)


async def well() -> Sequence[Row]:
    return [ok("fine")]


def run(*table: Check, only: str = "", timeout: float = 5.0) -> DiagnoseView:
    return asyncio.run(diagnose.run(table, SystemClock(), only, timeout=timeout))


# --- the runner --------------------------------------------------------------------------------------------


def test_a_check_that_hangs_keeps_its_name_is_cancelled_and_holds_nobody_up() -> None:
    ended = asyncio.Event()

    async def hang() -> Sequence[Row]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
            raise
        return []

    async def whole() -> DiagnoseView:
        table = (check("before", well), check("slow socket", hang), check("after", well))
        found = await diagnose.run(table, SystemClock(), timeout=0.05)
        await asyncio.wait_for(ended.wait(), 5)
        return found

    view = asyncio.run(whole())
    assert [(row.name, row.status) for row in view.rows] == [
        ("before", "ok"),
        ("slow socket", "failed"),
        ("after", "ok"),
    ]
    assert "0.05 s" in view.rows[1].message
    assert view.rows[1].remedy


def test_a_check_that_ignores_its_cancellation_does_not_hold_up_the_answer() -> None:
    release = asyncio.Event()

    async def stubborn() -> Sequence[Row]:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return []

    async def whole() -> DiagnoseView:
        table = (check("stubborn", stubborn), check("after", well))
        view = await asyncio.wait_for(diagnose.run(table, SystemClock(), timeout=0.05), 5)
        release.set()
        return view

    assert [row.status for row in asyncio.run(whole()).rows] == ["failed", "ok"]


def test_a_check_that_raises_is_failed_under_its_own_name_and_shows_no_credential() -> None:
    claim = "claim_" + "ab" * 32

    async def broken() -> Sequence[Row]:
        raise ValueError(f"cannot parse {claim}")

    async def refused() -> Sequence[Row]:
        raise StoreUnavailable("the disk is full")

    view = run(check("parser", broken), check("store", refused), check("after", well))
    assert [(row.name, row.status) for row in view.rows[:2]] == [("parser", "failed"), ("store", "failed")]
    assert claim not in view.rows[0].message
    assert view.rows[1].message == "the disk is full"
    assert view.rows[2].status == "ok"


def test_checks_run_side_by_side_and_show_in_the_order_of_the_table() -> None:
    """Each waits for the other: one after another neither would end."""
    first, second = asyncio.Event(), asyncio.Event()

    async def one() -> Sequence[Row]:
        first.set()
        await second.wait()
        return [ok("1")]

    async def two() -> Sequence[Row]:
        await first.wait()
        second.set()
        return [ok("2")]

    assert [row.message for row in run(check("one", one), check("two", two)).rows] == ["1", "2"]


@pytest.mark.parametrize(
    ("rows", "status"),
    [
        ([ok("a"), skipped("b")], "ok"),
        ([ok("a"), warning("b"), skipped("c")], "warning"),
        ([warning("a"), failed("b"), ok("c")], "failed"),
        ([skipped("a")], "ok"),
    ],
)
def test_the_whole_is_as_bad_as_its_worst_row(rows: list[Row], status: str) -> None:
    async def several() -> Sequence[Row]:
        return rows

    assert run(check("x", several)).status == status


def test_only_takes_a_name_the_beginning_of_one_or_a_group() -> None:
    table = (check("disk", well, Group.STORAGE), check("log store", well, Group.STORAGE), check("lease", well))
    assert [row.name for row in run(*table, only="dis").rows] == ["disk"]
    assert [row.name for row in run(*table, only="storage").rows] == ["disk", "log store"]
    with pytest.raises(NotFound, match="disk, log store, lease"):
        run(*table, only="nothing")


# --- the checks --------------------------------------------------------------------------------------------


def one(world: World, work: Awaitable[Sequence[Row]]) -> Row:
    (row,) = world.runner.run(_list(work))
    return row


async def _list(work: Awaitable[Sequence[Row]]) -> list[Row]:
    return list(await work)


def test_a_database_that_cannot_be_written_is_seen_though_it_can_be_read(world: World) -> None:
    world.database.read_only = True  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable):
        one(world, look.database(world.database, world.clock))


def test_a_migration_level_of_another_release_is_named(world: World) -> None:
    assert one(world, look.schema(world.database)).status is Status.OK
    world.write(lambda c: c.execute(text("UPDATE meta SET value = '7' WHERE key = 'schema_version'")))
    assert "version 7" in one(world, look.schema(world.database)).message


def test_commits_that_can_be_lost_are_a_warning(world: World) -> None:
    connection = world.database._connection.connection.dbapi_connection  # type: ignore[attr-defined]
    connection.execute("PRAGMA synchronous=OFF")
    row = one(world, look.durability(world.database))
    assert (row.status, "synchronous=OFF" in row.message) == (Status.WARNING, True)
    connection.execute("PRAGMA synchronous=FULL")
    assert one(world, look.durability(world.database)).status is Status.OK


@pytest.mark.parametrize(("jump", "status"), [(0.0, Status.OK), (-600.0, Status.WARNING), (600.0, Status.WARNING)])
def test_a_clock_that_was_set_is_seen(world: World, jump: float, status: Status) -> None:
    began, started = world.clock.monotonic(), world.clock.now()
    world.clock.pass_time(50)

    class Stepped(ManualClock):
        def monotonic(self) -> float:
            return world.clock.monotonic()

        def now(self) -> int:
            return world.clock.now() + int(jump * 1_000_000)

    rows = world.runner.run(_list(look.clocks(world.database, Stepped(), began, started)))
    assert [(row.name, row.status) for row in rows] == [("clock offset", status), ("clock steps", status)]


@pytest.mark.parametrize(
    ("free", "status"),
    [
        (DISK_FAILED - 1, Status.FAILED),
        (DISK_FAILED, Status.WARNING),
        (DISK_WARNING - 1, Status.WARNING),
        (DISK_WARNING, Status.OK),
    ],
)
def test_disk_space_is_judged_at_its_bounds(free: int, status: Status, tmp_path: Path) -> None:
    assert look.space("state", tmp_path, free).status is status


def test_every_directory_the_server_writes_to_is_looked_at(tmp_path: Path) -> None:
    """Not the root file system: the reference looked only there."""
    places = {"state": tmp_path, "work": tmp_path / "not" / "made yet"}
    rows = asyncio.run(_list(look.disk(places)))
    assert [row.name for row in rows] == ["disk state", "disk work"]
    assert all("free in" in row.message for row in rows)


def test_the_log_store_is_tried_and_left_as_it_was(world: World) -> None:
    logs = MemoryLogs()
    assert one(world, look.log_store(logs, world.clock)).status is Status.OK
    assert one(world, look.log_store(logs, world.clock)).status is Status.OK
    assert world.runner.run(logs.usage()) == {}


def test_a_service_without_progress_is_failed_though_its_process_lives() -> None:
    """Q18."""
    clock = ManualClock()

    class Loop(Service):
        name = "loop"

        async def run_once(self) -> None: ...

    loop = Loop(clock)
    assert asyncio.run(_list(look.services([loop], clock, offline=False)))[0].status is Status.FAILED
    loop.last_pass = clock.monotonic()
    clock.pass_time(29)
    assert asyncio.run(_list(look.services([loop], clock, offline=False)))[0].status is Status.OK
    clock.pass_time(1)
    (row,) = asyncio.run(_list(look.services([loop], clock, offline=False)))
    assert (row.status, row.name, row.message) == (Status.FAILED, "service loop", "no pass for 30 s")


@pytest.mark.parametrize(
    ("levels", "status", "message"),
    [
        ((), Status.OK, "works here"),
        (("ok", "ok"), Status.OK, "0"),
        (("ok", "warning", "warning"), Status.WARNING, "1 (and 1 more)"),
        (("warning", "ok", "failed"), Status.FAILED, "2 (and 1 more)"),
    ],
)
def test_a_backend_shows_its_worst_finding(levels: tuple[str, ...], status: Status, message: str) -> None:
    class Checked(FakeBackend):
        async def check(self) -> tuple[Finding, ...]:
            return tuple(Finding(level=level, message=str(n)) for n, level in enumerate(levels))

    backend = Checked.__new__(Checked)
    (row,) = asyncio.run(_list(look.backend(backend)))
    assert (row.status, row.message) == (status, message)


def pool(name: str, **more: object) -> Pool:
    values = {"backend": "process", "labels": frozenset({name}), "max_agents": 2, **more}
    return Pool(name=name, **values)  # type: ignore[arg-type]


def fail(world: World, agent: str, name: str, job_id: str | None) -> None:
    world.claim(agent, f"code-{agent}", pool=name, job_id=job_id)
    provision = world.read(provisions_rows.get, AgentId(agent))
    assert provision is not None
    world.write(note_failure, provision, "no room\n" + "x" * 300, Backoff())


def test_failures_are_a_warning_until_a_job_waited_for_one(world: World) -> None:
    fail(world, "agent_1", "warm", None)
    fail(world, "agent_2", "both", None)
    fail(world, "agent_3", "both", "job_1")
    known = (pool("calm"), pool("warm"), pool("both"))
    rows = world.runner.run(_list(look.failures(FailureTracker(), world.database, world.clock, known)))
    assert [(row.name, row.status) for row in rows] == [
        ("failures calm", Status.OK),
        ("failures warm", Status.WARNING),
        ("failures both", Status.FAILED),
    ]
    assert "2 instances failed" in rows[2].message
    assert "(1 for a job, 1 to keep the pool warm)" in rows[2].message
    assert rows[2].message.endswith("…")
    assert "\n" not in rows[2].message


def test_a_removed_pool_that_failed_still_shows(world: World) -> None:
    fail(world, "agent_1", "removed", "job_1")
    rows = world.runner.run(_list(look.failures(FailureTracker(), world.database, world.clock, (pool("left"),))))
    assert [(row.name, row.status) for row in rows][1] == ("failures removed", Status.FAILED)
    assert "not configured any more" in rows[1].message


def test_failures_are_recent_for_five_minutes(world: World) -> None:
    fail(world, "agent_1", "p", "job_1")
    world.clock.pass_time(300)
    tracker = FailureTracker()
    assert one(world, look.failures(tracker, world.database, world.clock, (pool("p"),))).status is Status.FAILED
    world.clock.pass_time(1)
    assert one(world, look.failures(tracker, world.database, world.clock, (pool("p"),))).status is Status.OK


def test_a_pool_that_backs_off_says_until_when_and_why(world: World) -> None:
    fail(world, "agent_1", "p", "job_1")
    rows = world.runner.run(_list(look.pools(world.database, (pool("p"),), Caps(), offline=False)))
    assert [row.status for row in rows] == [Status.WARNING, Status.OK]
    assert "creates again in 30 s" in rows[0].message
    assert "no room" in rows[0].remedy


@pytest.mark.parametrize(("days", "status"), [(-2, Status.FAILED), (10, Status.WARNING), (90, Status.OK)])
def test_a_certificate_is_judged_by_its_end(days: int, status: Status, tmp_path: Path, world: World) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    moment = datetime.fromtimestamp(world.clock.now() / 1_000_000, UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "corral")])
    made = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(1)
        .not_valid_before(moment - timedelta(days=100))
        .not_valid_after(moment + timedelta(days=days, hours=1))
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "server.pem"
    from cryptography.hazmat.primitives.serialization import Encoding

    path.write_bytes(made.public_bytes(Encoding.PEM))
    assert one(world, look.certificate(path, world.clock)).status is status
    path.write_text("no certificate")
    assert one(world, look.certificate(path, world.clock)).status is Status.FAILED
    path.unlink()
    assert one(world, look.certificate(path, world.clock)).status is Status.FAILED
    assert one(world, look.certificate(None, world.clock)).status is Status.SKIPPED


# --- through the real wiring -------------------------------------------------------------------------------


def test_a_coordinator_answers_with_every_group_and_its_metrics_tell_of_a_job() -> None:
    async def scenario(rig: Rig) -> None:
        view = await rig.coordinator.diagnose()
        assert {row.group for row in view.rows} == {str(group) for group in Group}
        by_name = {row.name: row for row in view.rows}
        assert by_name["lease"].status == "ok"
        assert by_name["service scaler"].status in ("ok", "failed")
        page = (await rig.coordinator.metrics()).decode()
        assert 'corral_jobs{state="queued"} 0.0' in page
        assert "corral_database_write_seconds_count" in page

    virtual(scenario, pools=(pool("p"),))


def test_metrics_are_still_shown_while_the_database_is_away() -> None:
    async def scenario(rig: Rig) -> None:
        rig.database.away = True
        page = (await rig.coordinator.metrics()).decode()
        rig.database.away = False
        assert "corral_service_last_pass_age_seconds{" in page
        assert "corral_jobs{" not in page

    virtual(scenario, pools=(pool("p"),))


def test_jobs_that_end_in_any_way_are_counted_once() -> None:
    async def scenario(rig: Rig) -> None:
        from corral.control import measures as m

        made = await rig.run(job("a", label="nowhere"), job("b", label="nowhere"))
        await rig.coordinator.cancel_run(RunId(made.id))
        assert rig.coordinator.counters.counted(m.JOBS_ENDED, result="cancelled") == 2

    virtual(scenario)
