# SPDX-License-Identifier: Apache-2.0
"""Terms in virtual time: at most one coordinator believes at any moment that it leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from corral.control.elector import Elector
from corral.decide.leasing import TTL, Lease, Renewal, Watch, dead, paused, trusted_until, watch
from corral.model.errors import Conflict, StoreUnavailable
from corral.model.ids import CoordinatorId
from corral.sim.clock import VirtualClock
from corral.sim.loop import VirtualLoop
from corral.store.inline import InlineDatabase
from corral.store.repo import lease as lease_rows
from corral.store.repo.lease import LEASE

T = TypeVar("T")


class Flaky:
    """One coordinator's way to the shared database: it can be cut, and answers can be held up."""

    def __init__(self, database: InlineDatabase, clock: VirtualClock) -> None:
        self.database = database
        self.clock = clock
        self.cut = False
        self.delay = 0.0

    async def write(self, fn: Callable[[Connection], T]) -> T:
        return await self._ask(self.database.write, fn)

    async def read(self, fn: Callable[[Connection], T]) -> T:
        return await self._ask(self.database.read, fn)

    async def _ask(self, how: Callable[[Callable[[Connection], T]], Any], fn: Callable[[Connection], T]) -> T:
        if self.cut:
            raise StoreUnavailable("cut off")
        value: T = await how(fn)
        await self.clock.sleep(self.delay)
        if self.cut:
            raise StoreUnavailable("cut off before the answer")
        return value

    async def close(self) -> None: ...


class Coordinator:
    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.way = Flaky(world.database, world.clock)
        self.clock = VirtualClock(world.loop, started=100.0 * (1 + len(world.all)))
        self.leading = False
        self.paused = 0
        self.elector = Elector(
            self.clock,
            self.way,
            holder=CoordinatorId(name),
            on_elected=self._elected,
            on_deposed=self._deposed,
            on_paused=self._paused,
        )

    def _elected(self, term: Lease) -> None:
        assert not self.leading
        self.leading = True

    def _deposed(self, why: str) -> None:
        assert self.leading
        self.leading = False

    def _paused(self) -> None:
        self.paused += 1


class World:
    def __init__(self, loop: VirtualLoop, count: int) -> None:
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.database = InlineDatabase(self.clock)
        self.all: list[Coordinator] = []
        for number in range(count):
            self.all.append(Coordinator(f"c{number}", self))

    def leaders(self) -> list[str]:
        return [one.name for one in self.all if one.leading]

    async def start(self) -> None:
        for one in self.all:
            await one.elector.start()

    async def stop(self) -> None:
        for one in self.all:
            await one.elector.stop()

    async def until(self, condition: Callable[[], bool], within: float) -> float:
        """Virtual seconds that it took."""
        began = self.clock.monotonic()
        while not condition():
            assert self.clock.monotonic() - began < within, "not within the virtual time"
            await self.clock.sleep(0.05)
        return self.clock.monotonic() - began


def in_world(count: int, story: Callable[[World], Any]) -> None:
    loop = VirtualLoop()

    async def run() -> None:
        world = World(loop, count)
        await world.start()
        await world.until(lambda: len(world.leaders()) == 1, 5)
        await story(world)
        await world.stop()

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


def leader(world: World) -> Coordinator:
    (name,) = world.leaders()
    return next(one for one in world.all if one.name == name)


def test_one_of_three_leads_and_goes_on_leading() -> None:
    async def story(world: World) -> None:
        first = leader(world)
        await world.clock.sleep(120)
        assert world.leaders() == [first.name]
        assert first.elector.term is not None and first.elector.term.epoch == (1, 1)

    in_world(3, story)


def test_a_leader_that_is_cut_off_stops_before_the_next_one_begins() -> None:
    async def story(world: World) -> None:
        first = leader(world)
        first.way.cut = True
        stopped = await world.until(lambda: not first.leading, TTL)
        assert not world.leaders()
        elected = await world.until(lambda: bool(world.leaders()), 5)
        assert stopped + elected < TTL + 3
        second = leader(world)
        first.way.cut = False
        await world.clock.sleep(60)
        assert world.leaders() == [second.name]
        assert second.elector.term is not None and second.elector.term.epoch == (1, 2)

    in_world(2, story)


def test_a_renewal_that_hangs_does_not_lengthen_the_term() -> None:
    async def story(world: World) -> None:
        first = leader(world)
        first.way.delay = 1000.0
        await world.until(lambda: not first.leading, TTL)
        assert first.elector.term is None

    in_world(2, story)


def test_a_renewal_is_trusted_from_its_asking_not_from_its_answer() -> None:
    async def story(world: World) -> None:
        first = leader(world)
        first.way.delay = 4.0
        before = first.elector._until
        await world.until(lambda: first.elector._until > before, TTL)
        first.way.cut = True
        await world.until(lambda: not first.leading, 2 * TTL)
        found, now = await world.database.read(lambda c: lease_rows.read(c, LEASE))
        assert found is not None and found.holder == first.name
        assert now < found.renewed_at + TTL * 1_000_000, "it stopped while the lease was still its own"

    in_world(1, story)


def test_a_paused_leader_wakes_deposed() -> None:
    """Its machine stood still for an hour and its monotonic clock did not count it."""

    async def story(world: World) -> None:
        first = leader(world)
        await world.clock.sleep(4)
        # Seen from inside: no time passed for us, an hour for the database.
        first.clock._started -= 3600.0
        await world.until(lambda: first.paused == 1, 10)
        assert not first.leading

    in_world(1, story)


def test_who_resigns_is_followed_at_once_and_does_not_stand_again() -> None:
    async def story(world: World) -> None:
        first = leader(world)
        await first.elector.resign()
        assert await world.until(lambda: bool(world.leaders()), 3) < 1.5
        assert world.leaders() != [first.name]
        await leader(world).elector.resign()
        await world.clock.sleep(60)
        assert world.leaders() == []

    in_world(2, story)


def test_a_deposed_leader_commits_nothing() -> None:
    async def story(world: World) -> None:
        first = leader(world)
        old = first.elector.term
        assert old is not None
        first.way.cut = True
        await world.until(lambda: bool(world.leaders()) and leader(world) is not first, 30)

        def fenced(connection: Connection) -> None:
            lease_rows.fence(connection, LEASE, first.name, old.epoch)

        with pytest.raises(Conflict, match="term of this leader is over"):
            await world.database.write(fenced)

    in_world(2, story)


def test_a_database_clock_that_was_set_back_keeps_no_dead_holder_alive() -> None:
    async def story(world: World) -> None:
        first = leader(world)
        first.way.cut = True
        world.clock._skew -= 600.0
        took = await world.until(lambda: bool(world.leaders()) and leader(world) is not first, 60)
        assert took < 2 * TTL

    in_world(2, story)


faults = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["cut", "heal", "slow", "fast", "resign-not", "away", "back"]),
        st.floats(0.1, 15),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(faults)
def test_at_most_one_believes_that_it_leads_whatever_happens(script: list[tuple[int, str, float]]) -> None:
    async def story(world: World) -> None:
        for number, fault, seconds in script:
            way = world.all[number].way
            way.cut = fault == "cut" or (way.cut and fault != "heal")
            way.delay = {"slow": 4.0, "fast": 0.0}.get(fault, way.delay)
            world.database.away = fault == "away" or (world.database.away and fault != "back")
            end = world.clock.monotonic() + seconds
            while world.clock.monotonic() < end:
                trusting = [one.name for one in world.all if one.elector.term is not None]
                assert len(trusting) <= 1
                await world.clock.sleep(0.1)
        world.database.away = False
        for one in world.all:
            one.way.cut, one.way.delay = False, 0.0
        await world.until(lambda: len(world.leaders()) == 1, 40)

    in_world(3, story)


# --- the pure part -----------------------------------------------------------------------------------------


def test_trust_ends_before_the_lease_does() -> None:
    assert trusted_until(5.0) < 5.0 + TTL


@pytest.mark.parametrize(
    ("own", "database", "is_pause"), [(3, 3, False), (3, 4.9, False), (3, 5.1, True), (3, 0, True)]
)
def test_what_counts_as_a_pause(own: float, database: float, is_pause: bool) -> None:
    before = Renewal(asked_at=10.0, database_at=0)
    assert paused(before, Renewal(asked_at=10.0 + own, database_at=int(database * 1e6))) is is_pause


def test_only_a_row_that_nobody_touches_counts_as_dead() -> None:
    row = Lease(holder="a", epoch=(1, 1), renewed_at=0)
    seen = watch(None, row, 0.0)
    assert seen == Watch(lease=row, since=0.0)
    assert watch(seen, row, 50.0) == seen
    assert dead(seen, 12.1) and not dead(seen, 12.0) and not dead(None, 99.0)
    renewed = Lease(holder="a", epoch=(1, 1), renewed_at=1)
    assert not dead(watch(seen, renewed, 50.0), 50.0)
