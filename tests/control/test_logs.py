# SPDX-License-Identifier: Apache-2.0
"""Following a job's log: every byte once, to the last one stored, and an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from corral.control import bell, logs
from corral.control.api import LogPart
from corral.control.bell import Bell
from corral.control.logs import LOOK_AGAIN, Follower
from corral.model.errors import NotFound
from corral.model.ids import JobId
from corral.model.spec import StepSpec
from corral.sim.clock import VirtualClock
from corral.sim.loop import VirtualLoop, run
from corral.store.inline import InlineDatabase
from corral.store.interface import LogKey
from corral.store.logmemory import MemoryLogs
from corral.wire.messages import Report
from tests.clocks import ManualClock
from tests.control.worlds import World, finished, step_finished, step_started
from tests.store.databases import AGENT, a_spec

TWO = (StepSpec(name="one", script="true"), StepSpec(name="two", script="true"))


class Scene:
    """A running job of two steps, its logs in memory, and somebody who follows them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.database = world.database
        self.store = MemoryLogs()
        self.bell = Bell()
        self.run_id = world.start(a_spec(steps=TWO))
        world.agent_up()
        self.job_id = world.only(self.run_id).id
        world.running(world.only(self.run_id))

    def key(self, step: int) -> LogKey:
        return LogKey(run_id=self.run_id, job_id=self.job_id, attempt=1, step=step)

    async def print(self, step: int, offset: int, data: bytes) -> None:
        await self.store.append(self.key(step), offset, data, 0)

    async def report(self, *what: Report, ring: bool = True) -> None:
        from corral.control import reports

        await self.database.write(lambda c: reports.apply(c, AGENT, 1, what, single_use=True))
        if ring:
            self.bell.ring(bell.run_topic(self.run_id))

    async def follow(self, step: int = 0, offset: int = 0, attempt: int | None = None) -> list[LogPart]:
        follower = Follower(self.database, self.store, self.bell)
        return [part async for part in follower.follow(self.job_id, attempt, step, offset)]


def scene(use: Callable[[Scene, VirtualClock], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner() as runner:
        clock = ManualClock()
        prepared = Scene(World(InlineDatabase(clock), clock, runner))
        loop = VirtualLoop()
        run(use(prepared, VirtualClock(loop)), loop)


def text(parts: list[LogPart], step: int) -> bytes:
    """The step's bytes, which have to come in order and once."""
    at, data = None, b""
    for part in parts:
        if part.step == step:
            assert at is None or part.offset == at
            at = part.offset + len(part.data)
            data += part.data
    return data


def test_every_byte_once_and_then_the_end() -> None:
    async def use(scene: Scene, clock: VirtualClock) -> None:
        following = asyncio.ensure_future(scene.follow())
        await scene.print(0, 0, b"hello ")
        await asyncio.sleep(0.1)
        await scene.print(0, 6, b"world")
        await scene.report(step_finished(scene.job_id, 0, log_size=11))
        await asyncio.sleep(0.1)
        assert not following.done()
        await scene.print(1, 0, b"two")
        await scene.report(step_finished(scene.job_id, 1, sequence=4, log_size=3), finished(scene.job_id))
        parts = await asyncio.wait_for(following, 60)
        assert (text(parts, 0), text(parts, 1)) == (b"hello world", b"two")
        assert [part.final for part in parts if part.final or not part.data] == [True, True]

    scene(use)


def test_the_last_chunk_may_be_stored_after_the_step_was_reported() -> None:
    async def use(scene: Scene, clock: VirtualClock) -> None:
        following = asyncio.ensure_future(scene.follow())
        await scene.report(step_started(scene.job_id), step_finished(scene.job_id, 0, log_size=5))
        await asyncio.sleep(30)
        assert not following.done()
        await scene.print(0, 0, b"later")
        await scene.report(step_finished(scene.job_id, 1, sequence=4, log_size=0), finished(scene.job_id))
        assert text(await asyncio.wait_for(following, 60), 0) == b"later"

    scene(use)


def test_a_lost_ring_costs_a_second() -> None:
    async def use(scene: Scene, clock: VirtualClock) -> None:
        following = asyncio.ensure_future(scene.follow())
        await asyncio.sleep(0.01)
        await scene.report(finished(scene.job_id), ring=False)
        await asyncio.wait_for(following, LOOK_AGAIN + 0.1)

    scene(use)


def test_resuming_at_an_offset_repeats_nothing() -> None:
    async def use(scene: Scene, clock: VirtualClock) -> None:
        await scene.print(0, 0, b"0123456789")
        await scene.print(1, 0, b"abc")
        await scene.report(
            step_finished(scene.job_id, 0, log_size=10),
            step_finished(scene.job_id, 1, sequence=4, log_size=3),
            finished(scene.job_id),
        )
        parts = await scene.follow(0, 7)
        assert (text(parts, 0), text(parts, 1)) == (b"789", b"abc")
        assert [part.step for part in await scene.follow(1, 3)] == [1]
        assert text(await scene.follow(0, 10), 0) == b""

    scene(use)


def test_a_step_that_never_ran_ends_with_the_job() -> None:
    async def use(scene: Scene, clock: VirtualClock) -> None:
        await scene.print(0, 0, b"x")
        await scene.report(step_finished(scene.job_id, 0, log_size=1), finished(scene.job_id))
        parts = await asyncio.wait_for(scene.follow(), 60)
        assert [(part.step, part.data, part.final) for part in parts] == [
            (0, b"x", False),
            (0, b"", True),
            (1, b"", True),
        ]

    scene(use)


def test_lost_bytes_are_not_waited_for() -> None:
    async def use(scene: Scene, clock: VirtualClock) -> None:
        await scene.print(0, 0, b"abc")
        await scene.report(step_finished(scene.job_id, 0, log_size=10, log_dropped=7), finished(scene.job_id))
        assert text(await asyncio.wait_for(scene.follow(), 60), 0) == b"abc"

    scene(use)


@pytest.mark.parametrize(("step", "attempt"), [(2, None), (-1, None), (0, 99), (9, 1)])
def test_what_is_not_there_is_not_found_instead_of_waited_for(step: int, attempt: int | None) -> None:
    async def use(scene: Scene, clock: VirtualClock) -> None:
        with pytest.raises(NotFound):
            await asyncio.wait_for(scene.follow(step, 0, attempt), 60)
        with pytest.raises(NotFound):
            await scene.database.read(lambda c: logs.extent(c, scene.job_id, attempt, step))

    scene(use)


def test_no_such_job() -> None:
    async def use(scene: Scene, clock: VirtualClock) -> None:
        scene.job_id = JobId("job_none")
        with pytest.raises(NotFound, match="job_none"):
            await scene.follow()

    scene(use)


def test_nobody_waits_behind_when_the_follower_leaves() -> None:
    async def use(scene: Scene, clock: VirtualClock) -> None:
        following = asyncio.ensure_future(scene.follow())
        await asyncio.sleep(5)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        assert not scene.bell._waiters

    scene(use)
