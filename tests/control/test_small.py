# SPDX-License-Identifier: Apache-2.0
"""Limiter, bell and the pump that brings logs to their store, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from corral.control.bell import Bell
from corral.control.limiter import ADDRESSES, AddressLimiter
from corral.control.logpump import APPEND_LIMIT, BUDGET, LogPump
from corral.model.errors import PermanentError, Refused, StoreUnavailable
from corral.model.ids import JobId, RunId
from corral.sim.clock import VirtualClock
from corral.sim.loop import VirtualLoop, run
from corral.store.interface import LogInfo, LogKey
from corral.wire.messages import Log, LogAck
from tests.clocks import ManualClock


def in_virtual_time(main: Callable[[VirtualClock], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()
    run(main(VirtualClock(loop)), loop)


# --- limiter -----------------------------------------------------------------------------------------------


def test_failures_of_one_address_are_limited_and_forgiven_with_time() -> None:
    clock = ManualClock()
    limiter = AddressLimiter(clock, burst=3, retry_after=2.0)
    assert [limiter.failed("10.0.0.1:1000") for _ in range(4)] == [True, True, True, False]
    assert limiter.failed("10.0.0.1:2000") is False, "another port is the same address"
    assert limiter.failed("10.0.0.2:1000") is True
    clock.pass_time(2)
    assert [limiter.failed("10.0.0.1:1") for _ in range(2)] == [True, False]
    clock.pass_time(1000)
    assert [limiter.failed("10.0.0.1:1") for _ in range(4)] == [True, True, True, False], "never more than the burst"


def test_addresses_are_forgotten_not_gathered() -> None:
    limiter = AddressLimiter(ManualClock(), burst=1)
    assert limiter.failed("first:1")
    for number in range(ADDRESSES):
        limiter.failed(f"h{number}:1")
    assert len(limiter._buckets) == ADDRESSES
    assert limiter.failed("first:1"), "the longest quiet one was forgotten"


# --- bell --------------------------------------------------------------------------------------------------


def test_a_ring_reaches_listeners_each_time_and_tickets_once() -> None:
    async def main(clock: VirtualClock) -> None:
        bell, heard = Bell(), []
        bell.listen("a", lambda: heard.append("a"))
        ticket = bell.ticket("a")
        bell.ring("b")
        assert not ticket.done()
        bell.ring("a", "b")
        bell.ring("a")
        assert heard == ["a", "a"]
        await bell.wait("a", ticket, 5.0)
        assert clock.monotonic() == 0

    in_virtual_time(main)


def test_a_lost_ring_costs_time_only() -> None:
    async def main(clock: VirtualClock) -> None:
        bell = Bell()
        ticket = bell.ticket("a")
        await bell.wait("a", ticket, 5.0)
        assert clock.monotonic() == 5
        bell.ring("a")
        bell.drop("a", ticket)
        bell.drop("nobody", ticket)
        assert not bell._waiters

    in_virtual_time(main)


def test_given_back_tickets_are_not_kept() -> None:
    async def main(clock: VirtualClock) -> None:
        bell = Bell()
        first, second = bell.ticket("a"), bell.ticket("a")
        bell.drop("a", first)
        bell.ring("a")
        assert second.done() and not first.done()
        assert not bell._waiters

    in_virtual_time(main)


# --- log pump ----------------------------------------------------------------------------------------------

KEY = LogKey(run_id=RunId("r"), job_id=JobId("j"), attempt=1, step=0)


class Store:
    """The part of a log store that the pump uses, with switches."""

    def __init__(self) -> None:
        self.stored: dict[LogKey, bytes] = {}
        self.appends: list[tuple[int, int]] = []
        self.failures: list[Exception] = []
        self.open = asyncio.Event()
        self.open.set()

    async def append(self, key: LogKey, offset: int, data: bytes, time: int) -> int:
        await self.open.wait()
        if self.failures:
            raise self.failures.pop(0)
        held = self.stored.get(key, b"")
        if offset > len(held):
            raise Refused("a gap")
        self.appends.append((offset, len(data)))
        self.stored[key] = held[:offset] + data if offset + len(data) > len(held) else held
        return len(self.stored[key])

    async def info(self, key: LogKey) -> LogInfo:
        return LogInfo(size=len(self.stored.get(key, b"")), final=False, digest="")


def frame(offset: int, data: bytes) -> Log:
    return Log(job_id="j", attempt=1, step=0, offset=offset, time=0, data=data)


def pumping(use: Callable[[LogPump, Store, list[LogAck], VirtualClock], Coroutine[Any, Any, None]]) -> None:
    async def main(clock: VirtualClock) -> None:
        store, acks = Store(), list[LogAck]()
        pump = LogPump(store, clock, acks.append)  # type: ignore[arg-type]
        pump.start()
        try:
            await use(pump, store, acks, clock)
        finally:
            await pump.stop()
            await pump.stop()

    in_virtual_time(main)


def test_adjoining_frames_are_stored_together_and_acknowledged_after() -> None:
    async def use(pump: LogPump, store: Store, acks: list[LogAck], clock: VirtualClock) -> None:
        store.open.clear()
        for number in range(10):
            await pump.put(KEY, frame(number * 3, b"abc"))
        await asyncio.sleep(0)
        assert acks == []
        store.open.set()
        await pump.drained()
        assert store.stored[KEY] == b"abc" * 10
        assert len(store.appends) <= 2
        assert acks[-1].offset == 30

    pumping(use)


def test_one_append_is_bounded() -> None:
    async def use(pump: LogPump, store: Store, acks: list[LogAck], clock: VirtualClock) -> None:
        piece = 64 * 1024
        for number in range(48):
            await pump.put(KEY, frame(number * piece, b"x" * piece))
        await pump.drained()
        assert len(store.stored[KEY]) == 48 * piece
        assert max(size for _, size in store.appends) <= APPEND_LIMIT + piece

    pumping(use)


def test_a_store_that_does_not_accept_slows_and_loses_nothing() -> None:
    async def use(pump: LogPump, store: Store, acks: list[LogAck], clock: VirtualClock) -> None:
        store.failures = [StoreUnavailable("full")] * 3
        await pump.put(KEY, frame(0, b"kept"))
        await asyncio.sleep(0.1)
        assert pump.stalled and acks == []
        await pump.drained()
        assert (store.stored[KEY], pump.stalled) == (b"kept", False)
        assert clock.monotonic() == pytest.approx(0.5 + 1 + 2)

    pumping(use)


def test_the_budget_holds_back_whoever_sends() -> None:
    async def use(pump: LogPump, store: Store, acks: list[LogAck], clock: VirtualClock) -> None:
        store.open.clear()
        piece = 64 * 1024

        async def send() -> None:
            for number in range(2 * BUDGET // piece):
                await pump.put(KEY, frame(number * piece, b"x" * piece))

        sending = asyncio.ensure_future(send())
        await asyncio.sleep(60)
        assert not sending.done()
        store.open.set()
        await sending
        await pump.drained()
        assert acks[-1].offset == 2 * BUDGET

    pumping(use)


def test_a_gap_is_answered_with_how_far_the_log_is() -> None:
    async def use(pump: LogPump, store: Store, acks: list[LogAck], clock: VirtualClock) -> None:
        await pump.put(KEY, frame(0, b"abc"))
        await pump.drained()
        await pump.put(KEY, frame(99, b"later"))
        await pump.drained()
        assert [ack.offset for ack in acks] == [3, 3]

    pumping(use)


def test_a_store_that_is_broken_is_the_sessions_end_not_its_silence() -> None:
    async def use(pump: LogPump, store: Store, acks: list[LogAck], clock: VirtualClock) -> None:
        store.failures = [PermanentError("the index is damaged")]
        await pump.put(KEY, frame(0, b"abc"))
        with pytest.raises(PermanentError, match="damaged"):
            await asyncio.wait_for(pump.drained(), 60)
        with pytest.raises(PermanentError, match="damaged"):
            await pump.put(KEY, frame(3, b"def"))

    pumping(use)


def test_who_waits_to_drop_what_is_beyond_the_limit_hears_of_a_broken_store_too() -> None:
    """Otherwise the session of a run whose log limit is reached would neither read nor end, for ever."""

    async def use(pump: LogPump, store: Store, acks: list[LogAck], clock: VirtualClock) -> None:
        store.open.clear()
        piece = b"x" * 64 * 1024
        for number in range(BUDGET // len(piece)):
            await pump.put(KEY, frame(number * len(piece), piece))
        dropping = asyncio.ensure_future(pump.drop(KEY, frame(BUDGET, b"beyond")))
        await asyncio.sleep(1)
        assert not dropping.done()
        store.failures = [PermanentError("the index is damaged")]
        store.open.set()
        with pytest.raises(PermanentError, match="damaged"):
            await asyncio.wait_for(dropping, 60)
        with pytest.raises(PermanentError, match="damaged"):
            await pump.drop(KEY, frame(BUDGET, b"beyond"))

    pumping(use)
