# SPDX-License-Identifier: Apache-2.0
"""The scaling plan: safety first, then counts add up, then planning again after applying gives nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
from hypothesis import event, given, settings
from hypothesis import strategies as st

from corral.decide import scaling
from corral.decide.dispatching import RELEASE_GRACE
from corral.decide.matching import Offered, Wanted, fits, pool_offer
from corral.decide.scaling import Demand, NotDone, Release, ReleaseReason, ScalingPlan, Supply
from corral.decide.scaling.planning import _creation, candidates
from corral.decide.scaling.room import Room, close, holding
from corral.model.ids import AgentId, JobId, RunId
from corral.model.pools import Backoff, Caps, Machine, Pool
from corral.model.records import PoolHealth
from corral.model.states import ProvisionState
from tests.decide import strategies
from tests.decide.strategies import NOW, SECOND
from tests.decide.worlds import JOBS, UNDER_WAY, World, a_demand, a_pool, a_supply, a_world, reasons, static


@st.composite
def supplies(draw: st.DrawFn, index: int, pools: tuple[Pool, ...]) -> Supply:
    pool = draw(st.sampled_from(pools)) if pools and draw(st.integers(0, 9)) else None
    leaving = (ProvisionState.RELEASING, ProvisionState.ABANDONED)
    state = draw(st.sampled_from((*UNDER_WAY, *UNDER_WAY, *UNDER_WAY, *leaving)))
    active = state is ProvisionState.ACTIVE
    flag = st.integers(0, 9).map(lambda number: number == 9)
    online = active and not draw(flag)
    bound = draw(st.sampled_from((None, None, *JOBS)))
    return Supply(
        agent_id=AgentId(f"s{index}"),
        pool=pool.name if pool else "removed",
        state=state,
        offered=pool_offer(pool) if pool else draw(strategies.offered),
        bound=bound,
        bound_live=bound is not None and draw(st.booleans()),
        online=online,
        assigned=active and draw(flag),
        held=active and draw(flag),
        draining=active and draw(flag),
        ever_assigned=active and draw(flag),
        cordon=draw(st.sampled_from(("idle", "cap-cut", "lost", "operator-said"))) if draw(flag) else None,
        idle_since=NOW - draw(st.sampled_from((1, 30, 300, 1000))) * SECOND if active else None,
        deadline_at=draw(st.sampled_from((None, NOW + 1, NOW + 1, NOW))),
        failed=draw(flag),
        ended=draw(flag),
        lost=active and draw(flag),
        event=pool is not None and pool.event,
        provisioning=draw(flag),
        cpu=draw(st.sampled_from((None, None, 1.0, 0.1))),
        memory=draw(st.sampled_from((None, None, 100))),
        cost=draw(st.sampled_from((0.0, 0.0, 0.1, 2.0))),
        machine=pool.machine if pool else "",
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    pools = draw(strategies.pools())
    jobs = draw(st.permutations(JOBS))[: draw(st.sampled_from(range(8)))]
    demand = tuple(
        Demand(
            job_id=job,
            run_id=RunId("r"),
            wanted=draw(strategies.wanted),
            creates=draw(st.integers(0, 2)),
            cpu=draw(st.sampled_from((None, None, None, 0.1, 4.0))),
            provisioning=draw(st.integers(0, 7)) == 7,
        )
        for job in jobs
    )
    supply = [draw(supplies(index, pools)) for index in range(draw(st.sampled_from(range(7))))]
    if draw(st.integers(0, 4)) == 4:
        supply.append(static("static", "a b"))
    health = {
        pool.name: PoolHealth(
            pool=pool.name,
            failures=2,
            backoff_began_at=NOW - SECOND,
            backoff_until=NOW + draw(st.sampled_from((-1, 0, 1))) * SECOND,
            last_error="it broke",
        )
        for pool in pools
        if draw(st.integers(0, 9)) == 9
    }
    caps = Caps(
        max_agents=draw(st.sampled_from((3, 5, 8, 0, 100))),
        concurrent_creates=draw(st.sampled_from((8, 3, 1))),
        creates_per_job=draw(st.sampled_from((5, 2))),
        max_cpu=draw(st.sampled_from((None, None, 2.0))),
        max_memory=draw(st.sampled_from((None, None, 300))),
        max_cost_per_hour=draw(st.sampled_from((None, None, 0.3, 4.0))),
        machines=draw(st.sampled_from(((), (Machine(name="m", max_cpu=1.0, max_memory=100),)))),
        creates_per_second=draw(st.sampled_from((None, None, 1.0))),
    )
    tokens = None if caps.creates_per_second is None else draw(st.sampled_from((0.5, 1.0, 2.5)))
    mixed = tuple(draw(st.permutations(supply)))
    return World(demand=demand, supply=mixed, pools=pools, caps=caps, health=health, tokens=tokens)


def serves(item: Supply, demand: Demand, queued: set[JobId]) -> bool:
    """The rule, written a second time: can this provision be counted on for this job?"""
    if (
        item.cordon
        or item.held
        or item.failed
        or item.ended
        or item.lost
        or item.assigned
        or item.state not in UNDER_WAY
    ):
        return False
    if item.state is ProvisionState.REQUESTED and item.deadline_at is not None and item.deadline_at <= NOW:
        return False
    if item.state is ProvisionState.ACTIVE and not item.online:
        return False
    if item.bound in queued:
        return item.bound == demand.job_id
    if item.bound is not None and (item.idle_since is None or NOW - item.idle_since < RELEASE_GRACE):
        return False
    if demand.provisioning and item.event:
        return False
    if demand.cpu is not None and item.cpu is not None and item.cpu < demand.cpu:
        return False
    return fits(demand.wanted, item.offered)


def each_has_one(edges: dict[JobId, list[AgentId]]) -> bool:
    """Can every job be given an agent of its own?"""
    taken: dict[AgentId, JobId] = {}

    def place(job: JobId, seen: set[AgentId]) -> bool:
        for agent in edges[job]:
            if agent not in seen:
                seen.add(agent)
                if agent not in taken or place(taken[agent], seen):
                    taken[agent] = job
                    return True
        return False

    return all(place(job, set()) for job in edges)


def counted(world: World) -> list[Supply]:
    """What the caps count: static agents are nobody's instances."""
    return [item for item in world.supply if item.pool]


def creating(world: World, plan: ScalingPlan) -> int:
    leaving = {release.agent_id for release in plan.releases}
    counting = [s for s in counted(world) if not s.provisioning]
    going_up = [s for s in counting if s.state is ProvisionState.REQUESTED and not s.failed]
    return sum(1 for item in going_up if item.agent_id not in leaving)


# --- safety ------------------------------------------------------------------------------------------------


def within(before: float, more: float, cap: float | None) -> bool:
    """What is made fits below the cap, however much was there."""
    return cap is None or more == 0 or before + more <= cap + 1e-9


@given(worlds())
@settings(max_examples=300)
def test_no_cap_is_ever_exceeded(world: World) -> None:
    plan = world.plan()
    by_name = {pool.name: pool for pool in world.pools}
    there = [item for item in counted(world) if not item.provisioning]
    slots = [item for item in there if not (item.event and item.state is ProvisionState.ABANDONED)]
    made = [creation for creation in plan.creations if not creation.provisioning]
    held = Counter(item.pool for item in slots)
    asked = Counter(creation.pool for creation in made)
    for pool in world.pools:
        assert asked[pool.name] <= max(0, pool.max_agents - held[pool.name])
        own = [item for item in there if item.pool == pool.name]
        mine = [creation for creation in made if creation.pool == pool.name]
        assert within(sum(i.cpu or 0 for i in own), sum(c.cpu or 0 for c in mine), pool.max_cpu)
        assert within(sum(i.memory or 0 for i in own), sum(c.memory or 0 for c in mine), pool.max_memory)
        leaked = sum(1 for item in own if item.event and item.state is ProvisionState.ABANDONED)
        assert not (mine and leaked >= max(1, pool.max_agents / 10)), "a pool that leaks makes nothing"
    caps = world.caps
    for machine in caps.machines:
        own = [item for item in there if item.machine == machine.name]
        mine = [creation for creation in made if by_name[creation.pool].machine == machine.name]
        assert within(sum(i.cpu or 0 for i in own), sum(c.cpu or 0 for c in mine), machine.max_cpu)
        assert within(sum(i.memory or 0 for i in own), sum(c.memory or 0 for c in mine), machine.max_memory)
    assert within(sum(i.cpu or 0 for i in there), sum(c.cpu or 0 for c in made), caps.max_cpu)
    assert within(sum(i.memory or 0 for i in there), sum(c.memory or 0 for c in made), caps.max_memory)
    spent = sum(by_name[c.pool].cost_per_hour for c in made)
    assert within(sum(i.cost for i in there), spent, caps.max_cost_per_hour)
    assert len(made) <= max(0, caps.max_agents - len(slots))
    assert len(made) <= max(0, caps.concurrent_creates - creating(world, plan))
    assert world.tokens is None or len(made) <= world.tokens
    slots_taken = sum(1 for item in counted(world) if item.provisioning)
    extra = len(plan.creations) - len(made)
    assert extra <= max(0, caps.provisioner_slots - slots_taken)


@given(worlds())
@settings(max_examples=120)
def test_instances_are_made_only_where_the_job_fits_and_the_pool_is_well(world: World) -> None:
    plan = world.plan()
    by_name = {pool.name: pool for pool in world.pools}
    wanted = {item.job_id: item for item in world.demand}
    for_jobs = [creation for creation in plan.creations if creation.job_id is not None]
    assert len({creation.job_id for creation in for_jobs}) == len(for_jobs)
    for creation in for_jobs:
        assert creation.job_id is not None
        pool, demand = by_name[creation.pool], wanted[creation.job_id]
        assert not (demand.provisioning and pool.event), "a provisioner would wait for itself"
        assert creation.provisioning == demand.provisioning
        assert fits(demand.wanted, pool_offer(pool))
        assert creation.labels == pool.labels
        assert not pool.draining
        health = world.health.get(pool.name)
        assert health is None or health.backoff_until is None or health.backoff_until <= NOW
        assert demand.creates < world.caps.creates_per_job


@given(worlds())
@settings(max_examples=120)
def test_a_covered_job_has_a_provision_of_its_own(world: World) -> None:
    plan = world.plan()
    queued = {item.job_id for item in world.demand}
    leaving = {release.agent_id for release in plan.releases}
    edges = {
        demand.job_id: [s.agent_id for s in world.supply if s.agent_id not in leaving and serves(s, demand, queued)]
        for demand in world.demand
        if demand.job_id in plan.covered
    }
    for demand in world.demand:
        if demand.job_id in edges:
            back = [replace(s, cordon=None) for s in world.supply if s.agent_id in plan.uncordons]
            edges[demand.job_id] += [item.agent_id for item in back if serves(item, demand, queued)]
    assert each_has_one(edges)


@given(worlds())
@settings(max_examples=120)
def test_nothing_at_work_is_released(world: World) -> None:
    plan = world.plan()
    by_id = {item.agent_id: item for item in world.supply}
    assert len({release.agent_id for release in plan.releases}) == len(plan.releases)
    for release in plan.releases:
        item = by_id[release.agent_id]
        event(f"released: {release.reason}")
        assert not item.assigned
        assert item.state in UNDER_WAY
        assert not item.static, "a static agent is nobody's to release"
        assert item.ended or item.failed or not item.lost, "a lost agent's instance may still be working"
        if release.reason is ReleaseReason.IDLE and item.cordon is None:
            assert item.online and item.idle_since is not None and NOW - item.idle_since >= 300 * SECOND
        if release.reason is ReleaseReason.SPAWN_TIMEOUT:
            assert item.state is ProvisionState.REQUESTED
            assert item.deadline_at is not None and item.deadline_at <= NOW


# --- counts add up -----------------------------------------------------------------------------------------


@given(worlds())
@settings(max_examples=120)
def test_each_job_is_covered_or_created_for_or_told_why_not(world: World) -> None:
    plan = world.plan()
    created = [c.job_id for c in plan.creations if c.job_id is not None]
    answers = Counter([*plan.covered, *created, *(u.job_id for u in plan.unplaced)])
    assert answers == Counter(item.job_id for item in world.demand)
    assert all(item.detail for item in plan.unplaced)


@given(worlds())
@settings(max_examples=300)
def test_a_job_goes_to_the_first_fitting_pool_with_room_and_only_none_is_a_refusal(world: World) -> None:
    """Room only shrinks while jobs are placed: whatever was passed over is full at its end. What is kept warm comes
    after them."""
    plan = world.plan()
    after = world.apply(msgspec.structs.replace(plan, releases=(), uncordons=()))
    late = {r.agent_id for r in plan.releases if r.reason is ReleaseReason.SPAWN_TIMEOUT}
    closed = {item.pool for item in world.supply if item.agent_id in late}
    leaving = {release.agent_id for release in plan.releases}
    full = Room(caps=world.caps, now=NOW, tokens=after.tokens, closed=close(world.pools, world.health, NOW))
    for item in after.supply:
        if not item.static:
            full.hold(holding(replace(item, failed=item.failed or item.agent_id in leaving)))
    wanted = {item.job_id: item for item in world.demand}

    def refused(demand: Demand, pool: Pool) -> bool:
        return pool.name in closed or full.refuses(pool, _creation(demand, pool)) is not None

    for creation in plan.creations:
        if creation.job_id is not None:
            way = candidates(wanted[creation.job_id], world.pools)
            before = way[: [pool.name for pool in way].index(creation.pool)]
            assert all(refused(wanted[creation.job_id], pool) for pool in before)
    for item in plan.unplaced:
        event(f"unplaced: {item.reason}")
        demand = wanted[item.job_id]
        way = candidates(demand, world.pools)
        match item.reason:
            case NotDone.NO_POOL:
                assert not way
            case NotDone.AGENT_BUSY:
                assert not way and any(each.static and fits(demand.wanted, each.offered) for each in world.supply)
            case NotDone.CREATES_EXHAUSTED:
                assert way and demand.creates >= world.caps.creates_per_job
            case _:
                assert way and all(refused(demand, pool) for pool in way)


@given(worlds())
@settings(max_examples=120)
def test_an_idle_agent_that_fits_is_used_before_a_new_one_is_wanted(world: World) -> None:
    plan = world.plan()
    queued = {item.job_id for item in world.demand}
    idle_out = {r.agent_id for r in plan.releases}
    for demand in world.demand:
        if demand.job_id in plan.covered:
            continue
        could = [s for s in world.supply if s.agent_id not in idle_out and serves(s, demand, queued)]
        assert all(s.bound not in queued for s in could), "its own instance counts for it"
        others = [d for d in world.demand if d.job_id in plan.covered and any(serves(s, d, queued) for s in could)]
        assert len(others) >= len(could), "what could serve it serves others"


# --- the fixed point ---------------------------------------------------------------------------------------


@given(worlds())
@settings(max_examples=250)
def test_planning_again_after_applying_gives_nothing(world: World) -> None:
    plan = world.plan()
    after = world.apply(plan)
    again = after.plan()
    assert not again, f"{plan} then {again}"
    made = {creation.job_id for creation in plan.creations if creation.job_id is not None}
    assert set(again.covered) == set(plan.covered) | made
    assert {(u.job_id, u.reason) for u in again.unplaced} == {(u.job_id, u.reason) for u in plan.unplaced}


def test_releasing_what_is_left_over_changes_no_choice() -> None:
    """The class that the left-over agent came first in must not move behind another by its leaving."""

    def idle(agent: str, labels: str, seconds: int) -> Supply:
        own = Offered(labels=frozenset(labels.split()))
        since = NOW - seconds * SECOND
        return a_supply(ProvisionState.ACTIVE, agent_id=AgentId(agent), offered=own, online=True, idle_since=since)

    supply = (idle("x1", "a b", 1000), idle("y1", "a c", 1), idle("x2", "a b", 1))
    world = a_world(a_demand("j0", "a"), a_demand("j1", "c"), supply=supply)
    plan = world.plan()
    assert [release.agent_id for release in plan.releases] == ["x1"]
    assert world.apply(plan).plan().covered == plan.covered == ("j0", "j1")


# --- single facts ------------------------------------------------------------------------------------------


def test_one_instance_for_each_waiting_job() -> None:
    plan = a_world(a_demand("j0"), a_demand("j1")).plan()
    assert [(c.job_id, c.pool) for c in plan.creations] == [("j0", "p"), ("j1", "p")]


def test_a_full_pool_spills_over_to_the_next_that_fits() -> None:
    world = a_world(a_demand("j0"), a_demand("j1"), pools=(a_pool("small", "a", 1), a_pool("wide", "a b", 5)))
    assert [c.pool for c in world.plan().creations] == ["small", "wide"]


def test_failed_and_ended_provisions_are_no_supply_yet_hold_their_slot() -> None:
    for dead in (a_supply(failed=True), a_supply(ended=True), a_supply(ProvisionState.ACTIVE, online=True, ended=True)):
        world = a_world(a_demand(), supply=(dead,), pools=(a_pool(most=1),))
        plan = world.plan()
        assert (plan.covered, plan.creations) == ((), ())
        assert [item.reason for item in plan.unplaced] == [NotDone.AT_POOL_MAX]
        assert len(plan.releases) == 1


def test_what_is_busy_or_cordoned_or_away_serves_nobody() -> None:
    for fact in (
        {"assigned": True},
        {"held": True},
        {"cordon": "idle"},
        {"online": False},
        {"cordon": "lost", "lost": True},
    ):
        item = a_supply(ProvisionState.ACTIVE, **{"online": True, "idle_since": NOW, **fact})
        plan = a_world(a_demand(), supply=(item,)).plan()
        assert plan.covered == ()
        assert [creation.job_id for creation in plan.creations] == ["j0"]


def test_what_is_being_destroyed_or_leaked_holds_its_slot() -> None:
    for state in (ProvisionState.RELEASING, ProvisionState.ABANDONED):
        world = a_world(a_demand(), supply=(a_supply(state),), pools=(a_pool(most=1),))
        assert reasons(world) == [NotDone.AT_POOL_MAX]


def test_a_provision_past_its_deadline_counts_for_nothing_and_is_released() -> None:
    late = a_supply(bound=JobId("j0"), bound_live=True, deadline_at=NOW)
    plan = a_world(a_demand(), supply=(late,), pools=(a_pool(), a_pool("q", "a b"))).plan()
    assert plan.covered == ()
    assert [c.pool for c in plan.creations] == ["q"], "not at once from the pool that just failed"
    assert plan.releases == (Release(agent_id=AgentId("s"), reason=ReleaseReason.SPAWN_TIMEOUT),)


def test_a_pool_that_just_failed_is_not_asked_again_at_once() -> None:
    world = a_world(a_demand(), supply=(a_supply(bound=JobId("j0"), bound_live=True, deadline_at=NOW),))
    (item,) = world.plan().unplaced
    assert (item.reason, item.until) == (NotDone.BACKING_OFF, NOW + 30 * SECOND)
    assert item.detail.endswith("last: no agent registered before the spawn deadline")


def test_a_bound_agent_serves_others_only_after_the_grace() -> None:
    def bound(idle: int) -> Supply:
        return a_supply(ProvisionState.ACTIVE, online=True, bound=JobId("gone"), idle_since=NOW - idle)

    assert a_world(a_demand(), supply=(bound(RELEASE_GRACE - 1),)).plan().creations
    assert a_world(a_demand(), supply=(bound(RELEASE_GRACE),)).plan().covered == ("j0",)


def test_the_instance_of_a_job_that_has_ended_is_cancelled_before_it_registers() -> None:
    plan = a_world(supply=(a_supply(bound=JobId("over"), bound_live=False),)).plan()
    assert [release.reason for release in plan.releases] == [ReleaseReason.JOB_CANCELLED]
    assert not a_world(supply=(a_supply(bound=JobId("runs"), bound_live=True),)).plan().releases


def test_idle_timeout() -> None:
    def idle(seconds: int) -> Supply:
        return a_supply(ProvisionState.ACTIVE, online=True, idle_since=NOW - seconds * SECOND)

    assert not a_world(supply=(idle(299),)).plan()
    assert [r.reason for r in a_world(supply=(idle(300),)).plan().releases] == [ReleaseReason.IDLE]
    assert not a_world(a_demand(), supply=(idle(300),)).plan(), "a job wants it"


def test_a_draining_or_removed_pool_gives_its_idle_agents_back() -> None:
    idle = a_supply(ProvisionState.ACTIVE, online=True, idle_since=NOW)
    draining = a_world(a_demand(), supply=(idle,), pools=(a_pool(draining=True),))
    assert [r.reason for r in draining.plan().releases] == [ReleaseReason.DRAIN]
    assert reasons(draining) == [NotDone.DRAINING]
    assert [r.reason for r in a_world(supply=(idle,), pools=()).plan().releases] == [ReleaseReason.DRAIN]


def test_a_lowered_cap_is_no_error() -> None:
    busy = tuple(
        a_supply(ProvisionState.ACTIVE, agent_id=AgentId(f"s{n}"), online=True, assigned=True) for n in range(5)
    )
    world = a_world(a_demand(), supply=busy, pools=(a_pool(most=2),), caps=Caps(max_agents=1))
    assert reasons(world) == [NotDone.AT_POOL_MAX]


def test_caps_in_the_order_in_which_they_are_named() -> None:
    assert reasons(a_world(a_demand(), pools=(a_pool(most=0),), caps=Caps(max_agents=0))) == [NotDone.AT_POOL_MAX]
    assert reasons(a_world(a_demand(), caps=Caps(max_agents=0))) == [NotDone.AT_GLOBAL_MAX]
    two = a_world(a_demand("j0"), a_demand("j1"), caps=Caps(concurrent_creates=1))
    assert reasons(two) == [NotDone.AT_RATE]


def test_what_a_plan_takes_counts_against_every_cap_at_once() -> None:
    jobs = (a_demand("j0"), a_demand("j1"), a_demand("j2"))
    for caps, pools, refused in (
        (Caps(max_agents=1), (a_pool(most=9),), NotDone.AT_GLOBAL_MAX),
        (Caps(concurrent_creates=1), (a_pool(most=9),), NotDone.AT_RATE),
        (Caps(), (a_pool(most=1),), NotDone.AT_POOL_MAX),
    ):
        world = a_world(*jobs, pools=pools, caps=caps)
        assert len(world.plan().creations) == 1
        assert reasons(world) == [refused, refused]


def test_a_static_agent_serves_but_is_never_released_and_fills_no_cap() -> None:
    world = a_world(a_demand(), a_demand("j1"), supply=(static("t", "a"),), caps=Caps(max_agents=1))
    plan = world.plan()
    assert plan.covered == ("j0",)
    assert [c.job_id for c in plan.creations] == ["j1"]
    assert plan.releases == ()
    cordoned = replace(static("t", "a"), cordon="operator")
    assert not a_world(supply=(cordoned,)).plan()


def test_backing_off_says_until_when_and_why() -> None:
    health = PoolHealth(
        pool="p", failures=3, backoff_began_at=NOW, backoff_until=NOW + 30 * SECOND, last_error="no such image"
    )
    world = replace(a_world(a_demand()), health={"p": health})
    (item,) = world.plan().unplaced
    assert (item.reason, item.pool, item.until) == (NotDone.BACKING_OFF, "p", NOW + 30 * SECOND)
    assert item.detail == "pool p failed 3 times in a row and is tried again in 30 s; last: no such image"
    assert replace(world, now=NOW + 30 * SECOND).plan().creations


def test_no_pool_names_the_nearest_and_what_it_lacks() -> None:
    (item,) = a_world(a_demand(labels="a gpu"), pools=(a_pool("far", "x"), a_pool("near", "a b"))).plan().unplaced
    assert (item.reason, item.pool) == (NotDone.NO_POOL, "near")
    assert item.detail == "no pool fits; the nearest is near: near lacks 'gpu'"
    (item,) = a_world(a_demand(), pools=()).plan().unplaced
    assert (item.reason, item.detail) == (NotDone.NO_POOL, "no pool is configured")


def test_exhausted_creates() -> None:
    (item,) = a_world(a_demand(creates=5)).plan().unplaced
    assert item.reason is NotDone.CREATES_EXHAUSTED


def test_resources_of_the_job_come_before_those_of_the_pool() -> None:
    pool = a_pool(cpu=2.0, memory=100)
    (creation,) = a_world(replace(a_demand(), cpu=1.0), pools=(pool,)).plan().creations
    assert (creation.cpu, creation.memory) == (1.0, 100)


def test_backoff_doubles_from_30_seconds_to_15_minutes() -> None:
    assert [scaling.backoff(n, Backoff()) // SECOND for n in (0, 1, 2, 3, 4, 5, 6, 100)] == [
        30,
        60,
        120,
        240,
        480,
        900,
        900,
        900,
    ]


# --- what operators hold -----------------------------------------------------------------------------------


def test_a_held_agent_is_no_supply_and_is_not_released() -> None:
    pools = [Pool(name="p", backend="fake", labels=frozenset({"a"}), max_agents=2, idle_timeout=1.0)]
    agent = Supply(
        agent_id=AgentId("held"),
        pool="p",
        state=ProvisionState.ACTIVE,
        offered=Offered(labels=frozenset({"a"})),
        online=True,
        held=True,
        idle_since=0,
    )
    demand = [Demand(job_id=JobId("j"), run_id=RunId("r"), wanted=Wanted(labels=frozenset({"a"})))]
    plan_ = scaling.plan(demand, [agent], pools, Caps(), {}, 3600 * 1_000_000)
    assert [creation.job_id for creation in plan_.creations] == ["j"]
    assert not plan_.releases
    assert not scaling.plan([], [agent], pools, Caps(), {}, 3600 * 1_000_000).releases


def test_a_draining_agent_is_released_once_it_has_no_job() -> None:
    pools = [Pool(name="p", backend="fake", labels=frozenset({"a"}), max_agents=1)]

    def releases(*, assigned: bool) -> list[ReleaseReason]:
        agent = Supply(
            agent_id=AgentId("draining"),
            pool="p",
            state=ProvisionState.ACTIVE,
            offered=Offered(labels=frozenset({"a"})),
            online=True,
            held=True,
            draining=True,
            assigned=assigned,
        )
        return [each.reason for each in scaling.plan([], [agent], pools, Caps(), {}, 0).releases]

    assert releases(assigned=True) == []
    assert releases(assigned=False) == [ReleaseReason.DRAIN]


# --- how many jobs run in a pool ---------------------------------------------------------------------------


def test_no_more_instances_are_made_than_jobs_may_run() -> None:
    pools = [Pool(name="p", backend="fake", labels=frozenset({"a"}), max_agents=10, max_running=2)]
    busy = Supply(
        agent_id=AgentId("busy"),
        pool="p",
        state=ProvisionState.ACTIVE,
        offered=pool_offer(pools[0]),
        online=True,
        assigned=True,
    )
    wanted = Wanted(labels=frozenset({"a"}))
    demand = [Demand(job_id=JobId(f"j{n}"), run_id=RunId("r"), wanted=wanted) for n in range(3)]
    first = scaling.plan(demand, [busy], pools, Caps(), {}, NOW)
    assert [each.job_id for each in first.creations] == ["j0"]
    assert [(each.job_id, each.reason) for each in first.unplaced] == [
        ("j1", NotDone.AT_MAX_RUNNING),
        ("j2", NotDone.AT_MAX_RUNNING),
    ]
    # An idle one beside it is kept for the job that waits, which is not covered by it before a job has ended.
    idle = replace(busy, agent_id=AgentId("idle"), assigned=False, idle_since=0)
    full = [busy, replace(busy, agent_id=AgentId("busy-2"))]
    second = scaling.plan(demand[:1], [*full, idle], pools, Caps(), {}, NOW)
    assert not second
    assert second.covered == ()
    assert second.unplaced[0].reason is NotDone.AT_MAX_RUNNING
