# SPDX-License-Identifier: Apache-2.0
"""Which idle agent is offered which job."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from corral.decide.dispatching import RELEASE_GRACE, IdleAgent, Placement, QueuedJob, plan, released
from corral.decide.matching import Offered, Size, Wanted, fits
from corral.model.ids import AgentId, JobId
from tests.decide import strategies
from tests.decide.strategies import NOW

JOBS = [JobId(f"j{n}") for n in range(6)]
AGENTS = [AgentId(f"a{n}") for n in range(6)]


@st.composite
def queues(draw: st.DrawFn) -> list[QueuedJob]:
    jobs = draw(st.permutations(JOBS))[: draw(st.sampled_from(range(6)))]
    avoided = st.sampled_from((None, None, *AGENTS))
    return [QueuedJob(id=job, wanted=draw(strategies.wanted), avoid=draw(avoided)) for job in jobs]


@st.composite
def idlers(draw: st.DrawFn) -> list[IdleAgent]:
    agents = draw(st.permutations(AGENTS))[: draw(st.sampled_from(range(6)))]
    return [
        IdleAgent(
            id=agent,
            offered=draw(strategies.offered),
            bound=draw(st.sampled_from((None, None, *JOBS))),
            idle_since=NOW - draw(st.sampled_from((0, RELEASE_GRACE - 1, RELEASE_GRACE, 2 * RELEASE_GRACE))),
        )
        for agent in agents
    ]


@given(queues(), idlers())
def test_placements_are_safe(queued: list[QueuedJob], idle: list[IdleAgent]) -> None:
    placements = plan(queued, idle, NOW)
    jobs, agents = {job.id: job for job in queued}, {agent.id: agent for agent in idle}
    assert len({p.job_id for p in placements}) == len(placements) == len({p.agent_id for p in placements})
    for placement in placements:
        job, agent = jobs[placement.job_id], agents[placement.agent_id]
        if agent.bound is None or agent.bound not in jobs:
            assert fits(job.wanted, agent.offered)
            assert agent.bound is None or NOW - agent.idle_since >= RELEASE_GRACE
        else:
            assert agent.bound == job.id, "an instance made for a queued job serves that job only"


@given(queues(), idlers())
def test_no_job_waits_beside_an_agent_that_could_run_it(queued: list[QueuedJob], idle: list[IdleAgent]) -> None:
    placements = plan(queued, idle, NOW)
    by_id = {job.id: job for job in queued}
    placed, used = {p.job_id for p in placements}, {p.agent_id for p in placements}
    for job in queued:
        if job.id not in placed:
            for agent in idle:
                unused = agent.id not in used
                assert not (unused and released(agent, by_id, NOW) and fits(job.wanted, agent.offered))
                assert agent.bound != job.id, "its own instance is idle"


@given(queues(), idlers())
def test_who_declined_is_asked_again_only_when_nobody_else_fits(queued: list[QueuedJob], idle: list[IdleAgent]) -> None:
    placements = plan(queued, idle, NOW)
    by_id = {job.id: job for job in queued}
    used = {p.agent_id for p in placements}
    for placement in placements:
        job = by_id[placement.job_id]
        if placement.agent_id == job.avoid:
            spare = [a for a in idle if a.id not in used and released(a, by_id, NOW) and fits(job.wanted, a.offered)]
            assert not spare


@given(queues(), idlers())
def test_planning_again_without_what_was_placed_gives_nothing(queued: list[QueuedJob], idle: list[IdleAgent]) -> None:
    placements = plan(queued, idle, NOW)
    placed, used = {p.job_id for p in placements}, {p.agent_id for p in placements}
    left = [job for job in queued if job.id not in placed]
    unused = [agent for agent in idle if agent.id not in used]
    still_reserved = [agent for agent in unused if agent.bound not in placed]
    assert plan(left, still_reserved, NOW) == ()


# --- single facts ------------------------------------------------------------------------------------------


def job(name: str = "j0", labels: str = "x", avoid: str | None = None) -> QueuedJob:
    wanted = Wanted(labels=frozenset(labels.split()))
    return QueuedJob(id=JobId(name), wanted=wanted, avoid=AgentId(avoid) if avoid else None)


def agent(name: str, labels: str = "x", bound: str | None = None, idle: int = RELEASE_GRACE) -> IdleAgent:
    return IdleAgent(
        id=AgentId(name),
        offered=Offered(labels=frozenset(labels.split())),
        bound=JobId(bound) if bound else None,
        idle_since=NOW - idle,
    )


def pairs(placements: tuple[Placement, ...]) -> list[tuple[str, str]]:
    return [(p.job_id, p.agent_id) for p in placements]


def test_the_longest_idle_of_the_smallest_class_is_taken() -> None:
    idle = [agent("wide", "x y", idle=9), agent("young", idle=1), agent("old", idle=5)]
    assert pairs(plan([job()], idle, NOW)) == [("j0", "old")]


def test_a_small_job_does_not_take_the_instance_made_for_another() -> None:
    big = agent("big", "x gpu", bound="j1")
    assert pairs(plan([job("j0"), job("j1", "x gpu")], [big], NOW)) == [("j1", "big")]


def test_a_bound_agent_whose_job_is_gone_waits_for_the_grace() -> None:
    assert plan([job()], [agent("a", bound="gone", idle=RELEASE_GRACE - 1)], NOW) == ()
    assert pairs(plan([job()], [agent("a", bound="gone", idle=RELEASE_GRACE)], NOW)) == [("j0", "a")]


def test_another_agent_is_asked_after_a_decline() -> None:
    assert pairs(plan([job(avoid="a")], [agent("a", idle=9), agent("b", idle=1)], NOW)) == [("j0", "b")]
    assert pairs(plan([job(avoid="a")], [agent("a"), agent("b", "x y")], NOW)) == [("j0", "b")]
    assert pairs(plan([job(avoid="a")], [agent("a")], NOW)) == [("j0", "a")]


def test_also_when_it_was_its_own_instance_that_declined() -> None:
    own = agent("own", bound="j0")
    assert pairs(plan([job(avoid="own")], [own, agent("b")], NOW)) == [("j0", "b")]
    assert pairs(plan([job(avoid="own")], [own], NOW)) == [("j0", "own")]


def test_first_come_first_served() -> None:
    assert pairs(plan([job("j1"), job("j0")], [agent("a")], NOW)) == [("j1", "a")]


# --- how many jobs run in a pool ---------------------------------------------------------------------------


@given(queues(), idlers(), st.lists(st.sampled_from(("p", "q", "")), min_size=6, max_size=6), st.integers(0, 3))
def test_no_pool_begins_more_jobs_than_it_has_room_for_and_none_waits_beside_free_room(
    queued: list[QueuedJob], idle: list[IdleAgent], pools: list[str], limit: int
) -> None:
    idle = [replace(agent, pool=pool) for agent, pool in zip(idle, pools, strict=False)]
    placements = plan(queued, idle, NOW, {"p": limit})
    by_id = {agent.id: agent for agent in idle}
    begun = sum(1 for each in placements if by_id[each.agent_id].pool == "p")
    assert begun <= limit
    room = {"p": limit - begun}
    placed, used = {p.job_id for p in placements}, {p.agent_id for p in placements}
    jobs_ = {each.id: each for each in queued}
    for each in queued:
        for agent in idle:
            if each.id in placed or agent.id in used or room.get(agent.pool, 1) <= 0:
                continue
            assert not (released(agent, jobs_, NOW) and fits(each.wanted, agent.offered))
            assert agent.bound != each.id


def test_each_job_that_begins_takes_room_of_its_pool() -> None:
    idle = [replace(agent(name), pool="p") for name in ("a", "b", "c")]
    assert len(plan([job("j0"), job("j1"), job("j2")], idle, NOW, {"p": 2})) == 2
    own = [replace(agent(f"a{n}", bound=f"j{n}"), pool="p") for n in range(3)]
    assert len(plan([job("j0"), job("j1"), job("j2")], own, NOW, {"p": 1})) == 1


def test_without_room_in_its_pool_a_job_takes_an_agent_of_another() -> None:
    idle = [replace(agent("full"), pool="p"), replace(agent("free", "x y"), pool="q")]
    assert pairs(plan([job("j0"), job("j1")], idle, NOW, {"p": 0})) == [("j0", "free")]


def test_a_provisioners_job_goes_to_no_agent_that_an_event_brought_up_and_past_a_pools_limit() -> None:
    offered = Offered(labels=frozenset({"x"}))
    job = QueuedJob(id=JobId("release"), wanted=Wanted(labels=frozenset({"x"})), provisioning=True)
    cloud = IdleAgent(id=AgentId("cloud"), offered=offered, pool="cloud", by_event=True)
    bound = IdleAgent(id=AgentId("own"), offered=offered, pool="cloud", by_event=True, bound=job.id)
    local = IdleAgent(id=AgentId("local"), offered=offered, pool="local", idle_since=9)
    assert plan([job], [cloud, bound], 10**9) == ()
    assert [each.agent_id for each in plan([job], [cloud, local], 10**9, {"local": 0})] == ["local"]


def test_a_job_goes_to_no_agent_smaller_than_it_asks_for() -> None:
    offered = Offered(labels=frozenset({"x"}))
    small = IdleAgent(id=AgentId("small"), offered=offered, size=Size(cpu=1.0, memory=100))
    large = IdleAgent(id=AgentId("large"), offered=offered, size=Size(cpu=4.0, memory=100), idle_since=5)
    wanted = Wanted(labels=frozenset({"x"}))
    asks = [QueuedJob(id=JobId("big"), wanted=wanted, size=Size(cpu=2.0)), QueuedJob(id=JobId("any"), wanted=wanted)]
    assert [(p.job_id, p.agent_id) for p in plan(asks, [small, large], NOW)] == [("big", "large"), ("any", "small")]
    assert [p.job_id for p in plan(asks, [small], NOW)] == ["any"]
