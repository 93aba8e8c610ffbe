# SPDX-License-Identifier: Apache-2.0
"""Caps over resources and money, what is done at them, and what is given back for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from corral.decide.matching import Offered
from corral.decide.scaling import NotDone, Release, ReleaseReason, Supply
from corral.model.events import Webhook
from corral.model.ids import AgentId, JobId
from corral.model.pools import Caps, Machine, Pool
from corral.model.records import PoolHealth
from corral.model.states import ProvisionState
from tests.decide.strategies import NOW, SECOND
from tests.decide.worlds import World, a_demand, a_pool, a_supply, a_world, reasons, static

GIB = 1024**3
B, C = Offered(labels=frozenset("b")), Offered(labels=frozenset("c"))


def idle(name: str = "i", pool: str = "p", seconds: int = 10, **more: object) -> Supply:
    values: dict[str, object] = {"online": True, "idle_since": NOW - seconds * SECOND, **more}
    return a_supply(ProvisionState.ACTIVE, pool, agent_id=AgentId(name), **values)


def busy(name: str, pool: str = "p", **more: object) -> Supply:
    return a_supply(ProvisionState.ACTIVE, pool, agent_id=AgentId(name), online=True, assigned=True, **more)


def event_pool(name: str = "p", labels: str = "a", most: int = 3, **more: object) -> Pool:
    made = a_pool(name, labels, most, **more)
    return changed(made, backend="event", target=Webhook(url="https://p.example", secret="p"))


def told(world: World) -> list[tuple[NotDone, str]]:
    return [(item.reason, item.detail) for item in world.plan().unplaced]


def released(world: World) -> list[tuple[str, ReleaseReason]]:
    return [(release.agent_id, release.reason) for release in world.plan().releases]


# --- each cap ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pool", "caps", "reason", "detail"),
    [
        ({"max_cpu": 3.0}, {}, NotDone.AT_CPU_CAP, "pool p uses 2 of 3 cores and 2 are asked for"),
        ({"max_memory": 6 * GIB}, {}, NotDone.AT_MEMORY_CAP, "pool p uses 4g of 6g of memory and 4g are asked for"),
        ({}, {"max_cpu": 3.0}, NotDone.AT_CPU_CAP, "the cluster uses 2 of 3 cores and 2 are asked for"),
        (
            {},
            {"max_memory": 6 * GIB},
            NotDone.AT_MEMORY_CAP,
            "the cluster uses 4g of 6g of memory and 4g are asked for",
        ),
        (
            {},
            {"max_cost_per_hour": 1.0},
            NotDone.AT_SPEND_CAP,
            "what is there costs 0.6 an hour, one of pool p 0.6 more, and max_cost_per_hour is 1",
        ),
        (
            {"machine": "m"},
            {"machines": (Machine(name="m", max_cpu=3.0),)},
            NotDone.AT_MACHINE_CAP,
            "machine m uses 2 of 3 cores and 2 are asked for",
        ),
        (
            {"machine": "m"},
            {"machines": (Machine(name="m", max_memory=6 * GIB),)},
            NotDone.AT_MACHINE_CAP,
            "machine m uses 4g of 6g of memory and 4g are asked for",
        ),
    ],
)
def test_each_cap_says_what_is_used_and_what_is_asked(
    pool: dict[str, object], caps: dict[str, object], reason: NotDone, detail: str
) -> None:
    own = a_pool(most=9, cpu=2.0, memory=4 * GIB, cost_per_hour=0.6, **pool)
    there = busy("b", cpu=2.0, memory=4 * GIB, cost=0.6, machine=str(pool.get("machine", "")))
    world = a_world(a_demand(), supply=(there,), pools=(own,), caps=Caps(**caps))  # type: ignore[arg-type]
    assert told(world) == [(reason, detail)]
    assert a_world(a_demand(), pools=(own,), caps=world.caps).plan().creations, "the first one fits"


def test_a_machine_is_shared_by_the_pools_that_name_it() -> None:
    pools = (a_pool("p", "a", cpu=1.0, machine="m"), a_pool("q", "b", cpu=1.0, machine="m"), a_pool("r", "c", cpu=1.0))
    caps = Caps(machines=(Machine(name="m", max_cpu=1.0),))
    world = a_world(a_demand("j0", "a"), a_demand("j1", "b"), a_demand("j2", "c"), pools=pools, caps=caps)
    assert [creation.pool for creation in world.plan().creations] == ["p", "r"]
    assert reasons(world) == [NotDone.AT_MACHINE_CAP]


def test_a_jobs_own_resources_count_for_the_caps() -> None:
    pool = a_pool(most=9, cpu=1.0, max_cpu=4.0)
    world = a_world(replace(a_demand(), cpu=3.0), a_demand("j1"), a_demand("j2"), pools=(pool,))
    assert [(c.job_id, c.cpu) for c in world.plan().creations] == [("j0", 3.0), ("j1", 1.0)]


def test_cores_add_up_without_the_errors_of_floats() -> None:
    pool = a_pool(most=9, cpu=0.1, max_cpu=0.3)
    world = a_world(*(a_demand(f"j{n}") for n in range(4)), pools=(pool,))
    assert len(world.plan().creations) == 3


def test_the_rate_says_when_the_next_may_be_made() -> None:
    world = replace(a_world(a_demand(), caps=Caps(creates_per_second=0.5)), tokens=0.0)
    (item,) = world.plan().unplaced
    assert (item.reason, item.until) == (NotDone.AT_RATE, NOW + 2 * SECOND + 1)
    assert item.detail == "no more than 0.5 instances are created a second"
    assert replace(world, tokens=1.0).plan().creations


def test_d3_a_cap_below_what_is_alive_is_no_error() -> None:
    """D3: cap lowered with 15 alive: nothing is made, idle ones go, busy ones stay."""
    alive = [busy(f"b{n}") for n in range(9)] + [idle(f"i{n}", seconds=n) for n in range(6)]
    world = a_world(a_demand(labels="a"), supply=tuple(alive), pools=(a_pool(most=10),))
    plan = world.plan()
    assert plan.creations == ()
    assert plan.covered == ("j0",), "the job is served by one of the idle ones first"
    cut = [release.agent_id for release in plan.releases]
    assert len(cut) == 5 and all(name.startswith("i") for name in cut)
    assert {release.reason for release in plan.releases} == {ReleaseReason.CAP_CUT}


def test_q17_a_cap_of_zero_takes_no_work() -> None:
    """Q17: nothing is admitted for a pool that may have nothing."""
    world = a_world(a_demand(), pools=(a_pool(most=0, min_idle=3),))
    plan = world.plan()
    assert (plan.creations, reasons(world)) == ((), [NotDone.AT_POOL_MAX])
    assert [(short.missing, short.reason) for short in plan.short] == [(3, NotDone.AT_POOL_MAX)]


# --- leaks -------------------------------------------------------------------------------------------------


def test_l10_what_could_not_be_ended_frees_its_slot_and_keeps_its_cost() -> None:
    """L10, L20: the slot is free, the money and the cores stay counted, and the pool makes nothing more."""
    gone = a_supply(ProvisionState.ABANDONED, event=True, cpu=1.0, cost=1.0, agent_id=AgentId("leak"))
    pools = (event_pool(most=20, cpu=1.0, cost_per_hour=1.0),)
    one = a_world(a_demand(), supply=(gone,), pools=pools, caps=Caps(max_agents=1))
    assert one.plan().creations, "one of twenty is below a tenth, and its slot is free"
    assert reasons(replace(one, caps=Caps(max_cpu=1.5))) == [NotDone.AT_CPU_CAP]
    assert reasons(replace(one, caps=Caps(max_cost_per_hour=1.5))) == [NotDone.AT_SPEND_CAP]
    two = replace(one, supply=(gone, replace(gone, agent_id=AgentId("leak2"))))
    assert told(two) == [(NotDone.LEAKING, "2 instances of pool p could not be confirmed gone")]


def test_a_leaking_pool_spills_over() -> None:
    leak = a_supply(ProvisionState.ABANDONED, event=True)
    world = a_world(a_demand(), supply=(leak,), pools=(event_pool(most=3), a_pool("q", "a b")))
    assert [creation.pool for creation in world.plan().creations] == ["q"]


def test_what_a_host_could_not_end_keeps_its_slot() -> None:
    leak = a_supply(ProvisionState.ABANDONED)
    assert reasons(a_world(a_demand(), supply=(leak,), pools=(a_pool(most=1),))) == [NotDone.AT_POOL_MAX]


# --- a job outranks warmth ---------------------------------------------------------------------------------


def test_at_a_shared_cap_the_longest_idle_of_another_pool_goes() -> None:
    pools = (a_pool(), a_pool("q", "b", min_idle=2))
    warm = (idle("young", "q", 5, offered=B), idle("old", "q", 50, offered=B))
    world = a_world(a_demand(), supply=warm, pools=pools, caps=Caps(max_agents=2))
    plan = world.plan()
    assert plan.releases == (Release(agent_id=AgentId("old"), reason=ReleaseReason.CAP_CUT),), "below min_idle"
    assert [item.reason for item in plan.unplaced] == [NotDone.AT_GLOBAL_MAX]
    after = world.apply(plan)
    assert not after.plan(), "what is on its way out is counted on: no second one goes"


def test_no_warm_instance_goes_where_it_would_not_help() -> None:
    """A job that would not fit even then, or whose own pool is full, takes nothing from another."""
    pools = (a_pool(cpu=4.0), a_pool("q", "b", min_idle=1, cpu=1.0))
    warm = (idle("w", "q", 50, offered=B, cpu=1.0),)
    assert not a_world(a_demand(), supply=warm, pools=pools, caps=Caps(max_cpu=3.0)).plan().releases
    full = (a_pool(most=0), pools[1])
    assert not a_world(a_demand(), supply=warm, pools=full, caps=Caps(max_agents=1)).plan().releases


def test_only_what_frees_the_cap_goes() -> None:
    pools = (a_pool(cpu=1.0), a_pool("q", "b", min_idle=1), a_pool("r", "c", min_idle=1, cpu=1.0))
    warm = (idle("no-cores", "q", 500, offered=B), idle("cores", "r", 5, offered=C, cpu=1.0))
    world = a_world(a_demand(), supply=warm, pools=pools, caps=Caps(max_cpu=1.0))
    assert released(world) == [("cores", ReleaseReason.CAP_CUT)]


def test_nothing_is_warmed_while_a_job_waits_for_the_same_room() -> None:
    """P3: else the warm one would be made and given back without end."""
    pools = (a_pool(cpu=4.0), a_pool("q", "b", min_idle=1, cpu=1.0))
    world = a_world(a_demand(), supply=(busy("b", cpu=1.0),), pools=pools, caps=Caps(max_cpu=4.0))
    plan = world.plan()
    assert plan.creations == ()
    assert [(short.pool, short.detail) for short in plan.short] == [
        ("q", "jobs wait for what a warm instance would take")
    ]


# --- cordons -----------------------------------------------------------------------------------------------


def test_at_a_cap_the_scalers_own_cordon_is_taken_back() -> None:
    there = idle("back", cordon="idle")
    world = a_world(a_demand(), supply=(there,), pools=(a_pool(most=1),))
    plan = world.plan()
    assert (plan.uncordons, plan.covered, plan.releases, plan.creations) == (("back",), ("j0",), (), ())
    assert not world.apply(plan).plan()
    roomy = replace(world, pools=(a_pool(most=2),)).plan()
    assert (roomy.uncordons, len(roomy.creations)) == ((), 1), "with room it goes as it was to"


@pytest.mark.parametrize(
    "fact",
    [
        {"cordon": "drain"},
        {"cordon": "operator"},
        {"cordon": "unresponsive"},
        {"ever_assigned": True},
        {"online": False},
        {"held": True},
        {"ended": True},
        {"state": ProvisionState.RELEASING},
    ],
)
def test_no_other_cordon_is_undone(fact: dict[str, object]) -> None:
    there = replace(idle("back", cordon="cap-cut"), **fact)  # type: ignore[arg-type]
    plan = a_world(a_demand(), supply=(there,), pools=(a_pool(most=1),)).plan()
    assert (plan.uncordons, plan.covered) == ((), ())


# --- runs that provision -----------------------------------------------------------------------------------


def test_a_provisioning_run_never_causes_an_instance_of_an_event_pool() -> None:
    asks = replace(a_demand(), provisioning=True)
    world = a_world(asks, pools=(event_pool("e", "a"), a_pool("p", "a b")))
    (creation,) = world.plan().creations
    assert (creation.pool, creation.provisioning) == ("p", True)
    (item,) = a_world(asks, pools=(event_pool("e", "a"),)).plan().unplaced
    assert (item.reason, item.pool) == (NotDone.NO_POOL, "e")
    assert "only event pools fit (e)" in item.detail
    there = idle("i", "e", event=True)
    assert not a_world(asks, supply=(there,), pools=(event_pool("e", "a"),)).plan().covered, "nor uses one"


def test_provisioning_runs_are_outside_every_cap_up_to_their_slots() -> None:
    asks = [replace(a_demand(f"j{n}"), provisioning=True) for n in range(3)]
    caps = Caps(max_agents=0, max_cost_per_hour=0.0, concurrent_creates=1, creates_per_second=1.0)
    world = replace(a_world(*asks, pools=(a_pool(most=0, cost_per_hour=9.0),), caps=caps), tokens=0.0)
    plan = world.plan()
    assert [creation.job_id for creation in plan.creations] == ["j0", "j1"]
    assert [item.reason for item in plan.unplaced] == [NotDone.AT_PROVISIONER_SLOTS]
    there = a_supply(provisioning=True, bound=JobId("j9"), bound_live=True)
    normal = a_world(a_demand(), supply=(there,), pools=(a_pool(most=1),), caps=Caps(max_agents=1))
    assert normal.plan().creations, "an instance for a provisioning run takes no slot of the others"


# --- static agents -----------------------------------------------------------------------------------------


def test_only_a_static_agent_that_is_away_could_run_it() -> None:
    away = replace(static("s", "mac"), online=False)
    (item,) = a_world(a_demand(labels="mac"), supply=(away,)).plan().unplaced
    assert item.reason is NotDone.AGENT_OFFLINE
    assert item.detail == "no pool fits, and of the static agents that do none is connected (1 known)"
    (item,) = a_world(a_demand(labels="mac"), supply=(replace(static("s", "mac"), assigned=True),)).plan().unplaced
    assert item.reason is NotDone.AGENT_BUSY


def test_q9_what_is_cordoned_or_draining_is_no_capacity() -> None:
    """Q9: cordoned capacity is none."""
    for fact in ({"cordon": "drain"}, {"held": True, "draining": True}):
        world = a_world(a_demand(), supply=(idle("i", **fact),), pools=(a_pool(most=2),))
        assert [creation.job_id for creation in world.plan().creations] == ["j0"]


def test_q5_failures_are_no_capacity_and_end() -> None:
    """Q5: five failed ones are five to give back, not five that serve."""
    failed = tuple(a_supply(agent_id=AgentId(f"f{n}"), failed=True) for n in range(5))
    plan = a_world(a_demand(), supply=failed, pools=(a_pool(most=6),)).plan()
    assert len(plan.releases) == 5 and len(plan.creations) == 1


def test_d4_what_is_on_its_way_counts() -> None:
    """D4, 11.1.21: a job whose instance is under way gets no second one, however often it is looked at."""
    coming = a_supply(bound=JobId("j0"), bound_live=True, deadline_at=NOW + SECOND)
    plan = a_world(a_demand(), supply=(coming,)).plan()
    assert (plan.creations, plan.covered) == ((), ("j0",))


def test_b3_the_instance_made_for_a_large_job_is_not_taken_by_a_small_one() -> None:
    """B3: bound to the job it was made for, while that waits."""
    large = idle("l", bound=JobId("j1"), bound_live=True, seconds=900)
    plan = a_world(a_demand("j0"), a_demand("j1"), supply=(large,)).plan()
    assert (plan.covered, [c.job_id for c in plan.creations]) == (("j1",), ["j0"])


def test_a_job_that_asks_for_more_than_an_idle_agent_has_gets_its_own() -> None:
    """An instance is held to what it was made with: the job would be killed in it."""
    small = idle("small", cpu=1.0, memory=GIB)
    pools = (a_pool(most=9, cpu=1.0, memory=GIB),)
    large = a_world(replace(a_demand(), cpu=4.0), supply=(small,), pools=pools).plan()
    assert (large.covered, [(c.cpu, c.memory) for c in large.creations]) == ((), [(4.0, GIB)])
    assert a_world(replace(a_demand(), memory=2 * GIB), supply=(small,), pools=pools).plan().creations
    assert a_world(replace(a_demand(), cpu=0.5), supply=(small,), pools=pools).plan().covered
    assert a_world(replace(a_demand(), cpu=4.0), supply=(idle("any"),), pools=pools).plan().covered, "held to nothing"


def test_what_was_never_begun_frees_its_slot_with_its_release() -> None:
    cancelled = a_supply(bound=JobId("over"), unsent=True)
    world = a_world(a_demand(), supply=(cancelled,), pools=(a_pool(most=1),))
    plan = world.plan()
    assert [release.reason for release in plan.releases] == [ReleaseReason.JOB_CANCELLED]
    assert [creation.job_id for creation in plan.creations] == ["j0"]
    begun = replace(world, supply=(replace(cancelled, unsent=False),))
    assert reasons(begun) == [NotDone.AT_POOL_MAX]


def test_one_that_was_asked_for_before_the_last_pause_began_begins_no_other() -> None:
    """What the commit will not count as a failure the plan does not count either."""
    health = PoolHealth(
        pool="p", failures=1, backoff_began_at=NOW - 99, backoff_until=NOW - 1, last_error="no such image"
    )
    late = a_supply(deadline_at=NOW, requested_at=NOW - 100)
    world = replace(a_world(a_demand(), supply=(late,)), health={"p": health})
    assert [creation.job_id for creation in world.plan().creations] == ["j0"]
    newer = replace(world, supply=(replace(late, requested_at=NOW - 98),))
    assert reasons(newer) == [NotDone.BACKING_OFF]
