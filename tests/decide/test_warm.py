# SPDX-License-Identifier: Apache-2.0
"""Warm pools: how many by the clock on the wall, filled at once, never below the target and never in circles."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.decide.scaling import ReleaseReason, Supply, warm_target
from corral.model.ids import AgentId, JobId
from corral.model.pools import Caps, Window
from corral.model.states import ProvisionState
from tests.decide.strategies import NOW, SECOND
from tests.decide.worlds import World, a_demand, a_pool, a_supply, a_world

BERLIN = "Europe/Berlin"
EVERY_DAY = frozenset(range(7))


def at(text: str, fold: int = 0, zone: str = BERLIN) -> int:
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return int(moment.timestamp()) * SECOND


def window(start: str, end: str, most: int = 5, days: frozenset[int] = EVERY_DAY) -> Window:
    def minutes(text: str) -> int:
        return int(text[:2]) * 60 + int(text[3:])

    return Window(days=days, start=minutes(start), end=minutes(end), timezone=BERLIN, min_idle=most)


def warm(name: str, seconds: int = 10, pool: str = "p", **more: object) -> Supply:
    values: dict[str, object] = {"online": True, "idle_since": NOW - seconds * SECOND, **more}
    return a_supply(ProvisionState.ACTIVE, pool, agent_id=AgentId(name), **values)


# --- by the clock on the wall ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "target"),
    [("2026-11-30T07:59", 1), ("2026-11-30T08:00", 5), ("2026-11-30T17:59", 5), ("2026-11-30T18:00", 1)],
)
def test_a_window_holds_from_its_start_up_to_its_end(moment: str, target: int) -> None:
    pool = a_pool(min_idle=1, schedule=(window("08:00", "18:00", days=frozenset({0})),))
    assert warm_target(pool, at(moment)) == target
    assert warm_target(pool, at(moment) + 86400 * SECOND) == 1, "Tuesday is no day of it"


def test_a_window_across_midnight_belongs_to_the_day_it_begins_on() -> None:
    pool = a_pool(schedule=(window("22:00", "06:00", days=frozenset({4})),))
    open_at = [at("2026-12-04T22:00"), at("2026-12-05T05:59")]
    shut_at = [at("2026-12-04T05:00"), at("2026-12-05T06:00"), at("2026-12-05T22:00")]
    assert [warm_target(pool, moment) for moment in open_at] == [5, 5]
    assert [warm_target(pool, moment) for moment in shut_at] == [0, 0, 0]


def test_windows_that_overlap_the_largest_holds() -> None:
    pool = a_pool(min_idle=9, schedule=(window("00:00", "00:00", 2), window("08:00", "09:00", 4)))
    assert warm_target(pool, at("2026-11-30T08:30")) == 4
    assert warm_target(pool, at("2026-11-30T10:00")) == 2, "inside a window the base does not hold"


def test_the_clocks_change() -> None:
    """Spring leaves 02:00 to 03:00 out: a window in it does not come. Autumn repeats it: it comes twice. A window from
    eight o'clock is at eight o'clock before and after."""
    pool = a_pool(schedule=(window("02:00", "03:00"), window("08:00", "09:00", 3)))
    spring = [warm_target(pool, at("2026-03-29T01:00") + minutes * 60 * SECOND) for minutes in (0, 59, 60, 119)]
    assert spring == [0, 0, 0, 0]
    assert [warm_target(pool, at("2026-10-25T02:30", fold)) for fold in (0, 1)] == [5, 5]
    assert at("2026-10-25T02:30", 1) - at("2026-10-25T02:30", 0) == 3600 * SECOND
    assert [warm_target(pool, at(f"{day}T08:00")) for day in ("2026-03-28", "2026-03-29", "2026-10-25")] == [3, 3, 3]


# --- filling and expiring ----------------------------------------------------------------------------------


def test_p5_it_is_filled_with_no_job_there() -> None:
    """P5: at start and after a failover, not after the first use."""
    plan = a_world(pools=(a_pool(most=9, min_idle=3, cpu=2.0),)).plan()
    assert [(c.pool, c.job_id, c.cpu) for c in plan.creations] == [("p", None, 2.0)] * 3


def test_p4_it_counts_what_is_idle_and_only_that() -> None:
    """P4, K12: busy ones are not ready; what is on its way is."""
    there = (
        warm("idle"),
        warm("busy", assigned=True),
        warm("cordoned", cordon="drain"),
        warm("used", ever_assigned=True),
        a_supply(agent_id=AgentId("coming"), deadline_at=NOW + 1),
        a_supply(agent_id=AgentId("failed"), failed=True, deadline_at=NOW + 1),
    )
    world = a_world(supply=there, pools=(a_pool(most=19, min_idle=2), a_pool("q", "b")))
    assert world.plan().creations == ()
    assert len(replace(world, supply=there[1:4], pools=(a_pool(most=19, min_idle=2),)).plan().creations) == 2


def test_a_job_takes_a_warm_one_and_another_is_made() -> None:
    world = a_world(a_demand(), supply=(warm("w"),), pools=(a_pool(most=9, min_idle=1),))
    plan = world.plan()
    assert (plan.covered, [c.job_id for c in plan.creations]) == (("j0",), [None])


def test_p1_idle_expiry_stops_at_the_target() -> None:
    """P1: the longest idle goes first, and never below the target."""
    there = tuple(warm(f"w{n}", seconds=300 + n) for n in range(4))
    world = a_world(supply=there, pools=(a_pool(most=9, min_idle=2),))
    assert [(r.agent_id, r.reason) for r in world.plan().releases] == [
        ("w2", ReleaseReason.IDLE),
        ("w3", ReleaseReason.IDLE),
    ]
    assert not world.apply(world.plan()).plan()


def test_one_that_had_a_job_is_never_warm_again() -> None:
    used = warm("used", 300, ever_assigned=True)
    plan = a_world(supply=(used,), pools=(a_pool(most=9, min_idle=1),)).plan()
    assert [release.agent_id for release in plan.releases] == ["used"]
    assert len(plan.creations) == 1


def test_one_whose_job_was_cancelled_is_warm_at_once() -> None:
    """No second one is made for the half minute in which its job might come back."""
    kept = warm("w", 1, bound=JobId("over"))
    assert not a_world(supply=(kept,), pools=(a_pool(most=9, min_idle=1),)).plan()


def test_d2_warmth_passes_the_same_caps() -> None:
    """D2, D6: every way to an instance goes through one gate."""
    pools = (a_pool(most=2, min_idle=5), a_pool("q", "b", most=9, min_idle=5))
    plan = a_world(pools=pools, caps=Caps(max_agents=3)).plan()
    assert [c.pool for c in plan.creations] == ["p", "p", "q"]
    assert [(short.pool, short.missing, str(short.reason)) for short in plan.short] == [
        ("p", 3, "at_pool_max"),
        ("q", 4, "at_global_max"),
    ]


def test_a_draining_pool_is_not_kept_warm() -> None:
    plan = a_world(pools=(a_pool(min_idle=2, draining=True),)).plan()
    assert (plan.creations, plan.short) == ((), ())


@given(
    targets=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    cap=st.integers(1, 8),
    jobs=st.integers(0, 3),
    lasting=st.integers(10, 400),
)
@settings(max_examples=60)
def test_p3_it_comes_to_rest(targets: list[int], cap: int, jobs: int, lasting: int) -> None:
    """P3: passes a second apart, everything asked for comes up and everything released goes: after a while nothing is
    made and nothing is given back any more."""
    pools = tuple(
        a_pool(f"p{n}", "abc"[n], most=5, min_idle=target, idle_timeout=30.0) for n, target in enumerate(targets)
    )
    demand = tuple(a_demand(f"j{n}", "abc"[n % len(pools)]) for n in range(jobs))
    world = a_world(*demand, pools=pools, caps=Caps(max_agents=cap, concurrent_creates=3))
    last = 0
    for tick in range(lasting):
        plan = world.plan()
        last = tick if plan else last
        world = _passed(world.apply(plan), tick)
    assert last < 40 or lasting <= 40, "still making and releasing"


def _passed(world: World, tick: int) -> World:
    """A second later: what was asked for is there, what was released is gone, what has a job of its own is busy."""
    supply = []
    for item in world.supply:
        if item.state is ProvisionState.RELEASING:
            continue
        if item.state is ProvisionState.REQUESTED:
            name = AgentId(f"{item.agent_id}-{tick}")
            item = replace(item, agent_id=name, state=ProvisionState.ACTIVE, online=True, idle_since=world.now)
        if item.bound is not None and not item.assigned:
            item = replace(item, assigned=True, ever_assigned=True)
        supply.append(item)
    begun = {item.bound for item in supply if item.assigned}
    demand = tuple(item for item in world.demand if item.job_id not in begun)
    return replace(world, supply=tuple(supply), demand=demand, now=world.now + SECOND)
