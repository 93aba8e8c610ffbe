# SPDX-License-Identifier: Apache-2.0
"""The one shape of a loop, in virtual time: exact, and without waiting for luck."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from corral.runtime.clock import Clock
from corral.runtime.service import FAILURE_PAUSE_MAX, Service
from corral.sim.clock import VirtualClock
from corral.sim.loop import VirtualLoop, run


class Probe(Service):
    """Remembers when it ran; ``work`` is what a pass does."""

    name = "probe"
    interval = 10.0

    def __init__(self, clock: Clock, work: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        super().__init__(clock)
        self.work = work
        self.at: list[float] = []
        self.life: list[str] = []

    async def on_start(self) -> None:
        self.life.append("start")
        await asyncio.sleep(0)

    async def on_stop(self) -> None:
        self.life.append("stop")

    async def run_once(self) -> None:
        self.at.append(self.clock.monotonic())
        if self.work is not None:
            await self.work()


def scene(main: Callable[[VirtualClock], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()
    run(main(VirtualClock(loop)), loop)


def fails(times: int) -> Callable[[], Coroutine[Any, Any, None]]:
    left = [times]

    async def work() -> None:
        if left[0] > 0:
            left[0] -= 1
            raise OSError("not now")

    return work


def test_it_runs_at_once_and_then_every_interval() -> None:
    async def main(clock: VirtualClock) -> None:
        probe = Probe(clock)
        await probe.start()
        await asyncio.sleep(25)
        await probe.stop()
        assert probe.at == [0, 10, 20]
        assert probe.last_pass == 20
        await asyncio.sleep(100)
        assert probe.at == [0, 10, 20]

    scene(main)


def test_waking_brings_the_next_pass_forward_and_many_wakes_are_one() -> None:
    async def main(clock: VirtualClock) -> None:
        probe = Probe(clock)
        await probe.start()
        await asyncio.sleep(3)
        for _ in range(5):
            probe.wake()
        await asyncio.sleep(8)
        await probe.stop()
        assert probe.at == [0, 3]

    scene(main)


def test_a_wake_during_a_pass_is_not_lost() -> None:
    async def main(clock: VirtualClock) -> None:
        async def slow() -> None:
            await clock.sleep(2)

        probe = Probe(clock, slow)
        await probe.start()
        await asyncio.sleep(1)
        probe.wake()
        await asyncio.sleep(2)
        await probe.stop()
        assert probe.at == [0, 2]

    scene(main)


def test_start_and_stop_are_idempotent_and_can_be_repeated() -> None:
    async def main(clock: VirtualClock) -> None:
        probe = Probe(clock)
        await probe.stop()
        for _ in range(2):
            await probe.start()
            await probe.start()
            await asyncio.sleep(1)
            await probe.stop()
            await probe.stop()
        assert probe.life == ["start", "stop", "start", "stop"]
        assert probe.at == [0, 1]

    scene(main)


def test_starting_and_stopping_from_many_sides_at_once_makes_one_loop() -> None:
    async def main(clock: VirtualClock) -> None:
        probe = Probe(clock)
        await asyncio.gather(*(probe.start() for _ in range(5)))
        await asyncio.sleep(1)
        assert (probe.life, probe.at) == (["start"], [0])
        await asyncio.gather(*(probe.stop() for _ in range(5)))
        assert probe.life == ["start", "stop"]
        for _ in range(20):
            await asyncio.gather(probe.start(), probe.stop(), probe.start(), asyncio.sleep(0), probe.stop())
        await probe.stop()
        passes = len(probe.at)
        await asyncio.sleep(100)
        assert len(probe.at) == passes, "nothing was left running"
        assert probe.life.count("start") == probe.life.count("stop")

    scene(main)


def test_a_start_that_fails_is_the_callers_and_can_be_tried_again() -> None:
    async def main(clock: VirtualClock) -> None:
        class Broken(Probe):
            async def on_start(self) -> None:
                await super().on_start()
                if len(self.life) == 1:
                    raise OSError("not yet")

        probe = Broken(clock)
        with pytest.raises(OSError, match="not yet"):
            await probe.start()
        assert probe.at == []
        await probe.start()
        await asyncio.sleep(1)
        await probe.stop()
        assert probe.at == [0]

    scene(main)


def test_a_failing_pass_is_repeated_with_a_growing_pause(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        probe = Probe(clock, fails(4))
        probe.interval = 1.0
        await probe.start()
        await asyncio.sleep(32.5)
        await probe.stop()
        assert probe.at == [0, 2, 6, 14, 30, 31, 32], "2, 4, 8, 16, and 1 again once it works"

    with caplog.at_level(logging.CRITICAL, "corral"):
        scene(main)


def test_the_pause_is_bounded_and_a_wake_ends_it() -> None:
    async def main(clock: VirtualClock) -> None:
        probe = Probe(clock, fails(10**6))
        await probe.start()
        await asyncio.sleep(200)
        gaps = [later - earlier for earlier, later in zip(probe.at, probe.at[1:], strict=False)]
        assert max(gaps) == FAILURE_PAUSE_MAX and gaps[0] == 20
        before = len(probe.at)
        probe.wake()
        await asyncio.sleep(0.001)
        assert len(probe.at) == before + 1
        assert probe.last_pass is None
        await probe.stop()

    scene(main)


def test_a_pass_in_hand_is_finished_within_the_grace() -> None:
    async def main(clock: VirtualClock) -> None:
        done: list[float] = []

        async def slow() -> None:
            await clock.sleep(3)
            done.append(clock.monotonic())

        probe = Probe(clock, slow)
        await probe.start()
        await asyncio.sleep(1)
        await probe.stop(grace=5.0)
        assert (done, clock.monotonic()) == ([3], 3)

    scene(main)


def test_a_pass_that_hangs_is_cut_off_at_the_deadline() -> None:
    async def main(clock: VirtualClock) -> None:
        cut: list[float] = []

        async def hang() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cut.append(clock.monotonic())

        probe = Probe(clock, hang)
        await probe.start()
        await asyncio.sleep(1)
        await probe.stop(grace=5.0)
        assert (cut, clock.monotonic(), probe.life) == ([6], 6, ["start", "stop"])

    scene(main)


def test_a_pass_that_fails_while_it_is_being_stopped_does_not_hold_it_up() -> None:
    async def main(clock: VirtualClock) -> None:
        async def slow_failure() -> None:
            await clock.sleep(2)
            raise OSError("not now")

        probe = Probe(clock, slow_failure)
        await probe.start()
        await asyncio.sleep(1)
        await probe.stop(grace=50.0)
        assert clock.monotonic() == 2

    scene(main)


def test_a_loop_that_is_woken_all_the_time_rests() -> None:
    async def main(clock: VirtualClock) -> None:
        async def work() -> None:
            await clock.sleep(0.1)
            probe.wake()

        probe = Probe(clock, work)
        probe.rest = 4.0
        await probe.start()
        await asyncio.sleep(9.99)
        await probe.stop()
        assert len(probe.at) == 20, "a fifth of the time"

    scene(main)
