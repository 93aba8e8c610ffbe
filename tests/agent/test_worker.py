# SPDX-License-Identifier: Apache-2.0
"""The worker in virtual time: what it says when, and exactly when it gives up."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from corral.agent.ending import ExitCode
from corral.agent.grant import KILL_MARGIN
from corral.model.spec import JobOrder, JobSpec, OnLost, Reason, Result
from corral.wire import close
from corral.wire.messages import (
    Accept,
    Action,
    Decline,
    DeclineReason,
    Drain,
    FinishedAck,
    Heartbeat,
    HeartbeatAck,
    Hello,
    JobAnswer,
    JobFinished,
    JobStarted,
    Log,
    Offer,
    Refused,
    RefusedCode,
    Start,
)
from tests.agent.virtual import VirtualLoop, World, in_virtual_time


def order(job_id: str = "job_1", on_lost: OnLost | None = None) -> JobOrder:
    spec = JobSpec(name="j", steps=(), on_lost=on_lost)
    return JobOrder(run_id="run_1", job_id=job_id, attempt=1, name="j", workflow="w", spec=spec)


@contextlib.asynccontextmanager
async def working(world: World) -> AsyncIterator[asyncio.Task[Any]]:
    task = asyncio.create_task(world.worker.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(ready: Any) -> None:
    for _ in range(10_000):
        if ready():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("never")


async def begin(world: World, job: JobOrder) -> None:
    await until(lambda: world.links and any(isinstance(m, Hello) for m in world.link.sent))
    world.link.say(Offer(job_id=job.job_id, attempt=1, order=job))
    world.link.say(Start(job_id=job.job_id, attempt=1))
    await until(lambda: world.runner.jobs and world.runner.jobs[-1].order is not None)
    await until(lambda: any(isinstance(m, JobStarted) for m in world.link.sent))


def heard(world: World, kind: type) -> list[Any]:
    return [m for link in world.links for m in link.sent if isinstance(m, kind)]


def test_heartbeats_come_every_interval_and_are_answered() -> None:
    async def work(loop: VirtualLoop) -> None:
        world = World(loop)
        async with working(world):
            await asyncio.sleep(60.5)
            assert [m.number for m in heard(world, Heartbeat)] == [1, 2, 3]
            world.link.say(Heartbeat(number=77))
            await until(lambda: heard(world, HeartbeatAck))
            assert heard(world, HeartbeatAck)[0].number == 77

    in_virtual_time(work)


def test_R7_a_silent_coordinator_is_left_after_sixty_seconds() -> None:
    async def work(loop: VirtualLoop) -> None:
        world = World(loop)
        async with working(world):
            await until(lambda: world.links)
            await asyncio.sleep(1)
            world.answers = False
            before = loop.now
            await until_closed(world, 0)
            assert world.links[0].closed == close.SILENT
            assert 58.9 <= loop.now - before <= 61

    in_virtual_time(work)


async def until_closed(world: World, index: int) -> None:
    for _ in range(100_000):
        if len(world.links) > index and world.links[index].closed is not None:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never closed")


@pytest.mark.parametrize(("on_lost", "seconds"), [(OnLost.RETRY, 100.0), (OnLost.FAIL, 1800.0), (None, 1800.0)])
def test_a_job_is_dead_when_its_grant_is_over(on_lost: OnLost | None, seconds: float) -> None:
    async def work(loop: VirtualLoop) -> None:
        world = World(loop)
        async with working(world) as task:
            await begin(world, order(on_lost=on_lost))
            await asyncio.sleep(25)
            # The heartbeat of second 20 was answered; nothing after it is.
            world.answers = world.reachable = False
            sent_at = 1000.0 + 20.0
            ending = await task
            (job,) = world.runner.jobs
            ((killed, reason, force),) = job.cancelled[:1]
            assert (reason, force) == (Reason.AGENT_LOST, True)
            assert sent_at + seconds - KILL_MARGIN <= killed <= sent_at + seconds
            assert killed == pytest.approx(sent_at + seconds - KILL_MARGIN, abs=0.01)
            assert ending.code is ExitCode.UNANSWERED
            assert world.runner.closed

    in_virtual_time(work)


def test_an_unanswered_heartbeat_extends_nothing() -> None:
    async def work(loop: VirtualLoop) -> None:
        world = World(loop)
        async with working(world) as task:
            await begin(world, order(on_lost=OnLost.RETRY))
            start = loop.now
            world.answers = False
            # Other bytes keep the connection alive, and prove nothing about what was heard.
            feed = asyncio.create_task(feed_heartbeats(world))
            await asyncio.wait({task}, timeout=300.0)
            feed.cancel()
            assert task.done()
            assert loop.now - start <= 100.0

    in_virtual_time(work)


async def feed_heartbeats(world: World) -> None:
    while True:
        await asyncio.sleep(10)
        world.link.say(Heartbeat(number=1))


def test_the_warden_learns_every_deadline() -> None:
    async def work(loop: VirtualLoop) -> None:
        world = World(loop)
        async with working(world):
            await begin(world, order(on_lost=OnLost.RETRY))
            assert world.warden[-1] == pytest.approx(1000.0 + 100.0, abs=0.1)
            await asyncio.sleep(20.5)
            assert world.warden[-1] == pytest.approx(1020.0 + 100.0, abs=0.1)
            world.runner.jobs[0].end()
            await until(lambda: heard(world, JobFinished))
            assert world.warden[-1] == pytest.approx(1020.0 + 1800.0, abs=0.1)

    in_virtual_time(work)


def test_an_idle_agent_that_stays_dials_for_ever_and_a_single_use_one_gives_up() -> None:
    async def work(loop: VirtualLoop) -> None:
        staying = World(loop, single_use=False)
        staying.reachable = False
        once = World(loop)
        once.reachable = False
        async with working(staying) as stays, working(once) as ends:
            assert (await ends).code is ExitCode.UNANSWERED
            assert loop.now == pytest.approx(1000.0 + 1800.0 - KILL_MARGIN, abs=0.1)
            await asyncio.sleep(20_000)
            assert not stays.done()

    in_virtual_time(work)


def test_rounds_try_every_url_and_wait_longer_each_time() -> None:
    async def work(loop: VirtualLoop) -> None:
        world = World(loop, urls=("http://a:1", "http://b:1"), single_use=False)
        world.reachable = False
        async with working(world):
            await asyncio.sleep(1000)
            rounds = [moment for moment, url in world.dialled if url == "http://a:1"]
            assert [url for _, url in world.dialled][:4] == ["http://a:1", "http://b:1"] * 2
            gaps = [after - before for before, after in itertools.pairwise(rounds)]
            for number, gap in enumerate(gaps):
                assert gap <= min(2.0**number, 60.0)
            assert len(set(gaps)) == len(gaps), "jitter"
            assert max(gaps) > 20

    in_virtual_time(work)


def test_a_url_that_hangs_costs_five_seconds() -> None:
    async def work(loop: VirtualLoop) -> None:
        world = World(loop, urls=("http://a:1", "http://b:1"), single_use=False)
        world.hangs = True
        async with working(world):
            await asyncio.sleep(9)
            assert [moment for moment, _ in world.dialled] == [1000.0, 1005.0]

    in_virtual_time(work)


def test_retry_after_is_kept() -> None:
    async def work(loop: VirtualLoop) -> None:
        world = World(loop)
        world.answers = False
        async with working(world):
            await until(lambda: world.links and world.link.sent)
            world.link.say(Refused(code=RefusedCode.IN_USE, message="twice", retry_after=30.0))
            await until_closed(world, 0)
            assert world.links[0].closed == close.REFUSED_FOR_NOW
            await asyncio.sleep(29)
            assert len(world.links) == 1
            await asyncio.sleep(5)
            assert len(world.links) == 2

    in_virtual_time(work)


def test_an_unfit_offer_is_declined_with_the_runners_reason() -> None:
    async def work(loop: VirtualLoop) -> None:
        world = World(loop)
        world.runner.unfit_because = "no such thing here"
        async with working(world):
            await until(lambda: world.links and world.link.sent)
            world.link.say(Offer(job_id="job_1", attempt=1, order=order()))
            await until(lambda: heard(world, Decline))
            (decline,) = heard(world, Decline)
            assert (decline.reason, decline.detail) == (DeclineReason.UNFIT, "no such thing here")
            assert heard(world, Accept) == []

    in_virtual_time(work)


def test_a_runner_that_breaks_is_a_failed_job_not_a_dead_agent() -> None:
    async def work(loop: VirtualLoop) -> None:
        world = World(loop, single_use=False)
        world.runner.broken = True
        async with working(world) as task:
            await until(lambda: world.links and world.link.sent)
            world.link.say(Offer(job_id="job_1", attempt=1, order=order()))
            world.link.say(Start(job_id="job_1", attempt=1))
            await until(lambda: heard(world, JobFinished))
            (end,) = heard(world, JobFinished)
            assert (end.result, end.reason) == (Result.FAILED, Reason.INTERNAL)
            assert not task.done()

    in_virtual_time(work)


def test_R9_a_drains_deadline_ends_the_job_in_hand() -> None:
    async def work(loop: VirtualLoop) -> None:
        world = World(loop, single_use=False)
        async with working(world):
            await begin(world, order())
            world.link.say(Drain(reason="upgrade", deadline=300.0))
            (job,) = world.runner.jobs
            await asyncio.sleep(299.9)
            assert job.cancelled == []
            await asyncio.sleep(0.2)
            assert job.cancelled[0][1:] == (Reason.AGENT_LOST, False)

    in_virtual_time(work)


def test_log_is_gathered_for_a_tenth_of_a_second_or_thirty_two_kibibytes() -> None:
    async def work(loop: VirtualLoop) -> None:
        world = World(loop)
        async with working(world):
            await begin(world, order())
            (job,) = world.runner.jobs
            start = loop.now
            for _ in range(5):
                job.prints(b"x" * 10)
            await until(lambda: heard(world, Log))
            assert loop.now - start == pytest.approx(0.1, abs=0.005)
            assert [len(m.data) for m in heard(world, Log)] == [50]
            start = loop.now
            job.prints(b"y" * 200_000)
            await until(lambda: len(heard(world, Log)) >= 4)
            assert loop.now - start < 0.01
            assert max(len(m.data) for m in heard(world, Log)) == 64 * 1024

    in_virtual_time(work)


def test_the_log_of_a_step_comes_before_its_end_and_the_end_is_acknowledged_once() -> None:
    async def work(loop: VirtualLoop) -> None:
        world = World(loop)
        async with working(world) as task:
            await begin(world, order())
            (job,) = world.runner.jobs
            job.prints(b"last words")
            job.end()
            await until(lambda: heard(world, JobFinished))
            kinds = [type(m).__name__ for m in world.link.sent]
            assert kinds[-3:] == ["Log", "StepFinished", "JobFinished"]
            assert not job.forgotten
            world.link.say(FinishedAck(job_id="job_1", attempt=1))
            assert (await task).code is ExitCode.DONE
            assert job.forgotten

    in_virtual_time(work)


def test_two_cuts_in_a_row_replay_the_same_reports() -> None:
    async def work(loop: VirtualLoop) -> None:
        world = World(loop)
        async with working(world):
            await begin(world, order())
            world.jobs = (JobAnswer(job_id="job_1", attempt=1, action=Action.CONTINUE, sequence=0),)
            for number in (2, 3):
                world.link.break_off()
                await until(lambda number=number: len(world.links) == number)
                await until(lambda: any(isinstance(m, JobStarted) for m in world.link.sent))
            assert {m.sequence for m in heard(world, JobStarted)} == {1}
            assert len(heard(world, JobStarted)) == 3

    in_virtual_time(work)


def test_the_worker_needs_no_websockets_and_no_processes() -> None:
    code = (
        "import sys; from corral.agent.worker import Worker, JobRunner; "
        "bad = [m for m in ('websockets', 'ctypes', 'http.client', 'ssl') if m in sys.modules]; print(bad)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "websockets" not in out.stdout
