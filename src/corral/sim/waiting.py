# SPDX-License-Identifier: Apache-2.0
"""What scripted histories do: ask, wait for something to be so, come to rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from corral.model.agentconfig import AgentConfig
from corral.model.ids import RunId
from corral.model.records import Job, Run
from corral.model.views import NewRun, NewToken
from corral.sim import invariants
from corral.sim.agents import SimAgent
from corral.sim.truth import Violation
from corral.sim.world import URL, World
from corral.store.repo import jobs, runs

T = TypeVar("T")

LOOK_EVERY = 0.01
"""Virtual seconds between two looks of a waiting script; at most two thousand looks, for each costs a query."""
LOOKS = 2000
REST_WITHIN = 3600.0
"""Virtual seconds after the last fault. The slowest honest way: an agent that nobody answers goes on for the stranded
window, and a pool backs off for up to 15 minutes several times."""
REST_EVERY = 5.0


async def until(world: World, look: Callable[[], T], within: float, what: str) -> T:
    """The first true value of ``look()``. :raises Violation: there is none within so many virtual seconds."""
    end = world.loop.time() + within
    while not (found := look()):
        if world.loop.time() >= end:
            raise Violation("in-time", f"not within {within:g} s: {what}")
        await asyncio.sleep(max(LOOK_EVERY, within / LOOKS))
    return found


async def ask(world: World, what: Callable[[], Awaitable[T]]) -> T:
    """One API call, as a part of the coordinator's process. :raises asyncio.CancelledError: which died meanwhile."""
    assert world.site is not None, "the coordinator is down"

    async def call() -> T:
        return await what()

    return await world.site.actor.spawn(call())


async def submit(world: World, new: NewRun) -> RunId:
    view = await ask(world, lambda: world.coordinator.create_run(new))
    world.journal.name(view.id, f"run-{view.id[4:8]}")
    for number, job in enumerate(view.jobs):
        world.journal.name(job.id, f"{job.name.replace(' ', '')}-{view.id[4:8]}.{number}")
    return RunId(view.id)


async def static_agent(world: World, name: str, labels: tuple[str, ...]) -> AgentConfig:
    """Make a static agent's token; what its process is started with."""
    made = await ask(world, lambda: world.coordinator.create_token(NewToken(name=name, role="agent", labels=labels)))
    identity, _, key = made.token.partition(".")
    return AgentConfig(
        agent_id=identity, key=key, coordinator_urls=(URL,), single_use=False, work_dir="/", cache_dir="/"
    )


def run_of(world: World, run_id: RunId) -> Run:
    found = world.query(lambda c: runs.get(c, run_id))
    assert found is not None
    return found


def jobs_of(world: World, run_id: RunId) -> tuple[Job, ...]:
    return world.query(lambda c: jobs.of_run(c, run_id))


async def ended(world: World, run_id: RunId, within: float = 300.0) -> Run:
    """The run after its end. :raises Violation: it does not end in time."""
    await until(world, lambda: run_of(world, run_id).finished_at is not None, within, f"the end of {run_id}")
    return run_of(world, run_id)


async def running(world: World, count: int = 1, within: float = 120.0) -> list[SimAgent]:
    """The agents that run jobs, as soon as there are ``count``."""
    await until(world, lambda: len(world.truth.running) >= count, within, f"{count} running jobs")
    busy = {one.agent_id for one in world.truth.running.values()}
    return [agent for agent in world.agents.values() if agent.id in busy]


async def rest(world: World, within: float = REST_WITHIN) -> None:
    """Wait until nothing is left to do, and look at what is there; violations go to the world's report."""
    end = world.loop.time() + within
    while (  # noqa: ASYNC110
        (left := invariants.resting(world)) and world.loop.time() < end and not world.violations
    ):
        await asyncio.sleep(REST_EVERY)
    if world.violations:
        return
    if left:
        world.report(Violation("comes-to-rest", f"after {within:g} s without faults: {left}"))
        return
    for violation in invariants.at_rest(world):
        world.report(violation)
