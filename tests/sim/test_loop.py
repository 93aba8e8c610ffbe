# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import time

import pytest

from corral.sim.actors import Actor, assign
from corral.sim.clock import EPOCH, VirtualClock
from corral.sim.loop import Deadlock, Livelock, VirtualLoop, run


def test_time_jumps_to_the_next_timer_exactly() -> None:
    loop = VirtualLoop()
    clock = VirtualClock(loop)
    seen: list[float] = []

    async def main() -> None:
        for seconds in (0.1, 0.2, 3600.0, 1e-6):
            await clock.sleep(seconds)
            seen.append(clock.monotonic())

    before = time.monotonic()
    run(main(), loop)
    assert seen == [0.1, 0.1 + 0.2, 0.1 + 0.2 + 3600.0, 0.1 + 0.2 + 3600.0 + 1e-6]
    assert time.monotonic() - before < 60


def test_timeouts_are_of_virtual_time() -> None:
    loop = VirtualLoop()

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(86_400):
                await loop.create_future()
        return loop.time()

    assert run(main(), loop) == 86_400


def test_clocks_of_two_hosts_can_disagree() -> None:
    loop = VirtualLoop()
    right, ahead = VirtualClock(loop), VirtualClock(loop, skew=600.0, started=1000.0)
    assert (right.now(), ahead.now()) == (EPOCH, EPOCH + 600_000_000)
    assert (right.monotonic(), ahead.monotonic()) == (0.0, 1000.0)
    loop.close()


def test_waiting_for_nothing_is_a_deadlock() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        await loop.create_future()

    with pytest.raises(Deadlock):
        run(main(), loop)


def test_spinning_without_time_is_a_livelock() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        run(main(), VirtualLoop())


def test_there_are_no_threads() -> None:
    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(RuntimeError, match="no threads"):
        run(main(), VirtualLoop())


def test_a_killed_process_runs_nothing_any_more() -> None:
    loop = VirtualLoop(assign)
    ran: list[str] = []

    async def child() -> None:
        await asyncio.sleep(10)
        ran.append("child")

    async def process() -> None:
        task = asyncio.create_task(child())
        try:
            await asyncio.sleep(10)
            ran.append("process")
        finally:
            await task

    async def main() -> None:
        actor = Actor("victim", loop)
        actor.spawn(process())
        await asyncio.sleep(5)
        await actor.kill()
        await asyncio.sleep(60)

    run(main(), loop)
    assert ran == []


def test_what_a_process_starts_belongs_to_it_and_not_to_who_asked() -> None:
    loop = VirtualLoop(assign)
    ran: list[str] = []

    async def work(name: str) -> None:
        await asyncio.sleep(1)
        ran.append(name)

    async def main() -> None:
        one, other = Actor("one", loop), Actor("other", loop)

        async def ask() -> None:
            other.spawn(work("other's"))
            loop.create_task(work("one's"))

        await one.spawn(ask())
        await one.kill()
        await asyncio.sleep(5)

    run(main(), loop)
    assert ran == ["other's"]
