# SPDX-License-Identifier: Apache-2.0
"""Named histories. The ids are those of the design's list of real failures of comparable systems."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from corral.backends.fake import Fail, Hang, Late, LoseAnswer
from corral.backends.interface import NoCapacity, Transient
from corral.control.host import ABSENT_AFTER, VANISHED
from corral.model.pools import Caps
from corral.model.spec import OnLost, Reason, RetrySpec
from corral.model.states import AttemptState, JobState, ProvisionState, RunState
from corral.model.views import Rerun
from corral.sim.agents import SimAgent
from corral.sim.link import Wire
from corral.sim.load import job, pool, step, workflow
from corral.sim.waiting import ask, ended, jobs_of, rest, run_of, running, static_agent, submit, until
from corral.sim.world import World
from corral.store.repo import agents, jobs
from corral.store.repo import provisions as provisions_rows
from corral.wire.messages import Accept, FinishedAck, JobFinished, LogAck, Offer, Start, StepFinished, Welcome
from tests.sim.histories import act, coordinator, on_message, quick

RETRY = RetrySpec(attempts=3, delay=0.0)


def long_job(seconds: float = 30.0, **more: Any) -> Any:
    return workflow(job("long", step(seconds=seconds, log=1000), **more))


def states(world: World, run_id: Any) -> list[JobState]:
    return [one.state for one in jobs_of(world, run_id)]


def attempts(world: World, run_id: Any) -> list[AttemptState]:
    only = jobs_of(world, run_id)[0]
    return [row.state for row in world.query(lambda c: jobs.attempts_of(c, only.id))]


def cut(agent: SimAgent, message: object, frame: bytes) -> None:
    assert agent.wire is not None
    agent.wire.cut()


def offered_to(world: World) -> list[SimAgent]:
    """Filled with the agent that gets the next offer; its accept takes two seconds."""
    agents_: list[SimAgent] = []

    def held(agent: SimAgent, message: object, frame: bytes) -> None:
        assert agent.wire is not None
        agent.wire.hold(2.0, 0.0)
        agents_.append(agent)

    on_message(world, "down", Offer, held)
    return agents_


def twice(agent: SimAgent, message: object, frame: bytes) -> None:
    assert agent.wire is not None
    agent.wire.repeat("up", frame)


# --- the plain way -----------------------------------------------------------------------------------------


def test_a_workflow_runs_to_its_end() -> None:
    async def script(world: World) -> None:
        run = await submit(
            world,
            workflow(
                job("prepare"),
                job("test", needs=["prepare"], matrix=({"n": 1}, {"n": 2}, {"n": 3})),
                job("report", needs=["test"]),
            ),
        )
        assert (await ended(world, run)).state is RunState.SUCCEEDED

    world = act(script)
    assert len(world.truth.executions) == 5


def test_a_burst_before_the_end_is_complete() -> None:
    async def script(world: World) -> None:
        run = await submit(world, workflow(job("burst", step(seconds=0.1, burst=10 * 1024 * 1024))))
        assert (await ended(world, run)).state is RunState.SUCCEEDED
        assert not run_of(world, run).log_incomplete

    world = act(script)
    assert [len(log.data) for log in world.logs.logs.values()] == [10 * 1024 * 1024]


# --- reports early, late, twice ----------------------------------------------------------------------------


def test_Q14_a_job_that_ends_before_its_create_call_returned() -> None:
    async def script(world: World) -> None:
        run = await submit(world, workflow(job("quick", step(seconds=0.01))))
        assert (await ended(world, run)).state is RunState.SUCCEEDED

    act(script, settings=quick(create=(20.0, 20.0), boot=(0.0, 0.0)))


@pytest.mark.parametrize("kind", [Accept, StepFinished, JobFinished])
def test_a_message_that_comes_twice(kind: type) -> None:
    async def script(world: World) -> None:
        on_message(world, "up", kind, twice)
        run = await submit(world, workflow(job("one", step(seconds=1.0, log=100))))
        assert (await ended(world, run)).state is RunState.SUCCEEDED

    world = act(script)
    assert len(world.truth.executions) == 1


def test_a_report_after_the_end_changes_nothing() -> None:
    """The cancel's deadline passes while the agent is cut off; then it comes back and says how it ended."""

    async def script(world: World) -> None:
        run = await submit(world, long_job(20.0))
        agent = (await running(world))[0]
        assert agent.wire is not None
        agent.cut_until = world.loop.time() + 70
        agent.wire.cut()
        await ask(world, lambda: world.coordinator.cancel_run(run))
        assert (await ended(world, run, 60)).state is RunState.CANCELLED
        before = jobs_of(world, run)
        await asyncio.sleep(40)
        assert jobs_of(world, run) == before

    act(script)


@pytest.mark.parametrize(("direction", "kind"), [("down", Offer), ("up", Accept), ("down", Start), ("down", Welcome)])
def test_a_message_that_is_lost_with_its_connection(direction: str, kind: type) -> None:
    async def script(world: World) -> None:
        on_message(world, direction, kind, cut)
        run = await submit(world, workflow(job("one")))
        assert (await ended(world, run)).state is RunState.SUCCEEDED

    world = act(script)
    assert len(world.truth.executions) == 1


@pytest.mark.parametrize("kind", [StepFinished, JobFinished])
def test_a_report_that_is_lost_with_its_connection(kind: type) -> None:
    async def script(world: World) -> None:
        on_message(world, "up", kind, cut)
        run = await submit(world, workflow(job("one")))
        assert (await ended(world, run)).state is RunState.SUCCEEDED

    world = act(script)
    assert len(world.truth.executions) == 1


def test_an_acknowledgement_that_is_lost_with_its_connection() -> None:
    async def script(world: World) -> None:
        on_message(world, "down", LogAck, cut, times=3)
        run = await submit(world, workflow(job("one", step(seconds=4.0, log=40_000, burst=300_000))))
        assert (await ended(world, run)).state is RunState.SUCCEEDED

    act(script)


def test_a_late_accept_starts_nothing() -> None:
    """The accept comes after the offer's deadline: withdrawn, offered again, run once."""

    async def script(world: World) -> None:
        def late(agent: SimAgent, message: object, frame: bytes) -> None:
            assert agent.wire is not None
            agent.wire.hold(15.0, 0.0)

        on_message(world, "down", Offer, late)
        run = await submit(world, workflow(job("one")))
        assert (await ended(world, run)).state is RunState.SUCCEEDED
        assert attempts(world, run)[0] is AttemptState.WITHDRAWN

    world = act(script)
    assert len(world.truth.executions) == 1


# --- agents that die ---------------------------------------------------------------------------------------


def test_R11_an_instance_that_dies_fails_its_job_within_a_second() -> None:
    async def script(world: World) -> None:
        run = await submit(world, long_job())
        agent = (await running(world))[0]
        died = world.loop.time()
        await world.crash_agent(agent)
        assert (await ended(world, run, 1.0)).state is RunState.FAILED
        assert world.loop.time() - died <= 1.0
        assert jobs_of(world, run)[0].reason == Reason.INSTANCE_LOST

    act(script)


def test_an_instance_that_dies_and_a_job_that_may_be_retried() -> None:
    async def script(world: World) -> None:
        run = await submit(world, long_job(5.0, retry=RETRY))
        other = await submit(world, workflow(job("waiting")))
        await world.crash_agent((await running(world))[0])
        assert (await ended(world, run)).state is RunState.SUCCEEDED
        assert (await ended(world, other)).state is RunState.SUCCEEDED
        assert attempts(world, run) == [AttemptState.LOST, AttemptState.SUCCEEDED]

    act(script, pools=[pool(max_agents=1)])


def test_R1_an_agent_removed_with_an_offer_costs_no_attempt() -> None:
    async def script(world: World) -> None:
        victims = offered_to(world)
        run = await submit(world, workflow(job("one")))
        await until(world, lambda: victims, 60, "an offer")
        await world.crash_agent(victims[0])
        assert (await ended(world, run)).state is RunState.SUCCEEDED
        only = jobs_of(world, run)[0]
        assert (only.tries, attempts(world, run)[0]) == (1, AttemptState.WITHDRAWN)

    act(script)


def test_R1_an_agent_removed_after_the_start_is_settled_by_policy() -> None:
    async def script(world: World) -> None:
        victims: list[SimAgent] = []
        on_message(world, "down", Start, lambda agent, message, frame: victims.append(agent))
        run = await submit(world, workflow(job("one", on_lost=OnLost.FAIL)))
        await until(world, lambda: victims, 60, "a start")
        await world.crash_agent(victims[0])
        assert (await ended(world, run, 2.0)).state is RunState.FAILED

    act(script)


def test_R8_an_agent_told_to_stop_ends_its_job_and_takes_no_other() -> None:
    async def script(world: World) -> None:
        run = await submit(world, long_job(10.0))
        agent = (await running(world))[0]
        assert agent.worker is not None
        agent.actor.call_soon(agent.worker.stop, "the host shuts down")
        other = await submit(world, workflow(job("next")))
        assert (await ended(world, run)).state is RunState.SUCCEEDED
        assert (await ended(world, other)).state is RunState.SUCCEEDED
        mine = [one.job_id for one in world.truth.executions.values() if one.agent_id == agent.id]
        assert mine == [jobs_of(world, run)[0].id]

    act(script)


def test_R8_an_idle_agent_told_to_stop_is_replaced() -> None:
    async def script(world: World) -> None:
        on_message(world, "down", Welcome, stop_agent)
        run = await submit(world, workflow(job("one")))
        assert (await ended(world, run)).state is RunState.SUCCEEDED

    def stop_agent(agent: SimAgent, message: object, frame: bytes) -> None:
        assert agent.worker is not None
        agent.actor.call_soon(agent.worker.stop, "the host shuts down")

    act(script, pools=[pool(max_agents=1)])


def test_R7_a_half_open_connection_is_replaced() -> None:
    async def script(world: World) -> None:
        run = await submit(world, long_job(200.0))
        agent = (await running(world))[0]
        assert agent.wire is not None
        agent.wire.half_open()
        assert (await ended(world, run, 400)).state is RunState.SUCCEEDED

    world = act(script)
    assert len(world.truth.executions) == 1


def test_Q4_a_hello_that_is_overtaken_by_that_of_a_newer_connection() -> None:
    """The agent dials again at once; the old connection's ``hello``, which knows of no job, arrives when the job
    already runs: it must neither take the session over nor put the job back into the queue."""

    async def script(world: World) -> None:
        held: list[Wire] = []

        def first(agent: SimAgent, wire: Wire) -> None:
            if not held:
                held.append(wire)
                wire.hold(4.0, 0.0)

        world.on_connect.append(first)
        run = await submit(world, workflow(job("one", step(seconds=20.0), retry=RETRY)))
        await until(world, lambda: held, 30, "a dial")
        held[0].slip()
        assert (await ended(world, run)).state is RunState.SUCCEEDED
        assert jobs_of(world, run)[0].attempt == 1

    world = act(script)
    assert len(world.truth.executions) == 1


# --- static agents -----------------------------------------------------------------------------------------


def own(name: str = "one", seconds: float = 1.0, **more: Any) -> Any:
    return workflow(job(name, step(seconds=seconds, log=100), runs_on=["own"], **more))


def test_a_static_agent_runs_one_job_after_the_other() -> None:
    async def script(world: World) -> None:
        agent = world.run_static(await static_agent(world, "own", ("own",)), "own-1")
        for _ in range(3):
            assert (await ended(world, await submit(world, own()))).state is RunState.SUCCEEDED
        assert {one.agent_id for one in world.truth.executions.values()} == {agent.id}

    act(script)


def test_a_static_agent_whose_last_acknowledgement_is_lost_can_drain() -> None:
    async def script(world: World) -> None:
        agent = world.run_static(await static_agent(world, "own", ("own",)), "own-1")
        on_message(world, "down", FinishedAck, cut)
        assert (await ended(world, await submit(world, own()))).state is RunState.SUCCEEDED
        await asyncio.sleep(10)
        assert agent.worker is not None
        agent.actor.call_soon(agent.worker.stop, "the host shuts down")
        await until(world, lambda: agent.ending, 30, "the agent ends")

    act(script)


def test_a_static_agent_that_comes_back_as_another_process_is_in_nobodys_way() -> None:
    async def script(world: World) -> None:
        config = await static_agent(world, "own", ("own",))
        agent = world.run_static(config, "own-1")
        run = await submit(world, own(seconds=100.0, retry=RETRY))
        await running(world)
        await world.crash_agent(agent)
        world.run_static(config, "own-1 again")
        assert (await ended(world, run)).state is RunState.SUCCEEDED
        assert attempts(world, run) == [AttemptState.LOST, AttemptState.SUCCEEDED]

    act(script)


def test_a_static_agent_that_drained_takes_jobs_again_when_it_is_started_again() -> None:
    async def script(world: World) -> None:
        config = await static_agent(world, "own", ("own",))
        agent = world.run_static(config, "own-1")
        await ended(world, await submit(world, own()))
        assert agent.worker is not None
        agent.actor.call_soon(agent.worker.stop, "the host shuts down")
        await until(world, lambda: agent.ending, 30, "the agent ends")
        world.run_static(config, "own-1 again")
        assert (await ended(world, await submit(world, own()))).state is RunState.SUCCEEDED

    act(script)


# --- the coordinator restarts ------------------------------------------------------------------------------


@pytest.mark.parametrize("down", [0.0, 5.0, 40.0])
def test_Q19_a_restart_in_the_middle_of_a_run(down: float) -> None:
    async def script(world: World) -> None:
        run = await submit(
            world,
            workflow(job("a", step(seconds=60.0, log=50_000), matrix=({"n": 1}, {"n": 2})), job("b", needs=["a"])),
        )
        await running(world, 2)
        await asyncio.sleep(3.0)
        await world.crash()
        await asyncio.sleep(down)
        await world.start()
        assert (await ended(world, run)).state is RunState.SUCCEEDED
        assert not run_of(world, run).log_incomplete

    world = act(script)
    assert len(world.truth.executions) == 3


@pytest.mark.parametrize("after", [index * 0.0007 for index in range(24)])
def test_L3_a_crash_at_any_moment_makes_no_second_instance(after: float) -> None:
    async def script(world: World) -> None:
        run = await submit(world, workflow(job("one")))
        await asyncio.sleep(after)
        await world.crash()
        await asyncio.sleep(0.5)
        await world.start()
        assert (await ended(world, run)).state is RunState.SUCCEEDED

    world = act(script, seed=f"L3/{after}")
    assert world.host.made == len(world.agents) == 1
    assert len(world.truth.executions) == 1


def test_L1_a_destroy_in_flight_at_the_end_is_finished_by_the_next_start() -> None:
    async def script(world: World) -> None:
        run = await submit(world, workflow(job("one")))
        await ended(world, run)
        await until(world, lambda: releasing(world), 30, "a provision being released")
        await world.stop()
        assert world.host.instances
        await world.start()

    world = act(script, settings=quick(destroy=(20.0, 20.0)))
    assert not world.host.instances


def releasing(world: World) -> list[Any]:
    return [p for p in world.query(provisions_rows.live) if p.state is ProvisionState.RELEASING]


def test_kill_while_the_coordinator_is_down_is_settled_at_its_start() -> None:
    async def script(world: World) -> None:
        run = await submit(world, long_job())
        agent = (await running(world))[0]
        await world.crash()
        await world.crash_agent(agent)
        await asyncio.sleep(10)
        await world.start()
        assert (await ended(world, run, 2.0)).state is RunState.FAILED

    act(script)


def test_a_restarted_host_holds_no_slot_for_what_it_took_along() -> None:
    """Nothing of the instance is left to be listed, and nobody tells of its end: its slot is free all the same."""

    async def script(world: World) -> None:
        lost = await submit(world, long_job(600.0))
        await running(world)
        await world.reboot()
        await world.start()
        waits = await submit(world, workflow(job("waits")))
        assert (await ended(world, waits, ABSENT_AFTER + 15.0)).state is RunState.SUCCEEDED
        assert (await ended(world, lost, 0.0)).state is RunState.FAILED
        assert jobs_of(world, lost)[0].reason == Reason.INSTANCE_LOST
        assert jobs_of(world, lost)[0].detail == VANISHED

    act(script, pools=[pool(max_agents=1)])


def test_an_instance_that_is_in_no_list_and_still_talks_has_not_ended() -> None:
    """Somebody removed its directory; what runs there is not started a second time."""

    async def script(world: World) -> None:
        run = await submit(world, long_job(300.0))
        agent = (await running(world))[0]
        hidden = world.host.instances.pop(agent.id)
        await asyncio.sleep(200)
        world.host.instances[agent.id] = hidden
        assert (await ended(world, run)).state is RunState.SUCCEEDED

    world = act(script)
    assert len(world.truth.executions) == 1


def test_a_create_whose_answer_is_awaited_is_no_absence() -> None:
    async def script(world: World) -> None:
        run = await submit(world, workflow(job("one")))
        assert (await ended(world, run)).state is RunState.SUCCEEDED

    world = act(script, pools=[pool(spawn_timeout=400.0)], settings=quick(create=(150.0, 150.0)))
    assert len(world.agents) == 1


@pytest.mark.parametrize("after", [index * 0.02 for index in range(10)] + [5.0])
def test_what_a_killed_all_in_one_took_along_holds_no_slot_of_the_next(after: float) -> None:
    """Wherever it was: before, in or after the create, the registration, the job."""

    async def script(world: World) -> None:
        await submit(world, long_job(6.0))
        await asyncio.sleep(after)
        await world.crash()
        await world.start()
        waits = await submit(world, workflow(job("waits")))
        assert (await ended(world, waits, 12.0)).state is RunState.SUCCEEDED

    act(script, pools=[pool(max_agents=1)], settings=quick(tied=True))


# --- many at once ------------------------------------------------------------------------------------------


def test_200_agents_connecting_at_the_same_moment_with_750_jobs_waiting() -> None:
    async def script(world: World) -> None:
        runs = [
            await submit(world, workflow(job("many", step(seconds=1.0), matrix=tuple({"n": n} for n in range(250)))))
            for _ in range(3)
        ]
        await until(world, lambda: world.host.made >= 200, 200, "200 instances")
        for agent in world.agents.values():
            if agent.wire is not None:
                agent.wire.cut()
        for run in runs:
            assert (await ended(world, run, 2000)).state is RunState.SUCCEEDED

    caps = Caps(max_agents=200, concurrent_creates=200)
    world = act(
        script,
        pools=[pool(max_agents=200)],
        settings=quick(coordinator=coordinator(), caps=caps, boot=(5.0, 5.0)),
    )
    assert len(world.truth.executions) == 750


def test_D9_every_instance_of_one_pass_has_its_own_name() -> None:
    async def script(world: World) -> None:
        run = await submit(world, workflow(job("many", matrix=tuple({"n": n} for n in range(8)))))
        assert (await ended(world, run)).state is RunState.SUCCEEDED

    world = act(script, pools=[pool(max_agents=8)])
    assert len({agent.id for agent in world.agents.values()}) == world.host.made == 8


# --- capacity ----------------------------------------------------------------------------------------------


def test_D1_two_triggers_within_a_moment_and_a_cap_of_one() -> None:
    async def script(world: World) -> None:
        first, second = await asyncio.gather(submit(world, workflow(job("one"))), submit(world, workflow(job("two"))))
        await ended(world, first)
        await ended(world, second)

    world = act(script, pools=[pool(max_agents=1)])
    assert world.host.made == 2


def test_D4_instances_that_boot_count_as_capacity() -> None:
    async def script(world: World) -> None:
        run = await submit(world, workflow(job("slow", matrix=({"n": 1}, {"n": 2}, {"n": 3}))))
        assert (await ended(world, run)).state is RunState.SUCCEEDED

    world = act(script, pools=[pool(max_agents=100)], settings=quick(boot=(60.0, 60.0)))
    assert world.host.made == 3


def test_L13_what_the_cap_refuses_never_reaches_the_backend() -> None:
    async def script(world: World) -> None:
        run = await submit(world, workflow(job("many", matrix=tuple({"n": n} for n in range(10)))))
        await until(world, lambda: world.host.made >= 2, 30, "two instances")
        assert world.site is not None
        assert len(set(world.site.backend.inner.create_calls)) == 2
        assert (await ended(world, run)).state is RunState.SUCCEEDED

    act(script, pools=[pool(max_agents=2)])


def test_Q5_failed_instances_are_no_capacity() -> None:
    async def script(world: World) -> None:
        assert world.site is not None
        for _ in range(3):
            world.site.backend.inner.next_create.append(Fail(error=NoCapacity("no room")))
        run = await submit(world, workflow(job("one")))
        assert (await ended(world, run, 600)).state is RunState.SUCCEEDED

    act(script, pools=[pool(max_agents=1)])


def test_Q16_a_job_whose_instances_all_fail_ends_with_the_cause() -> None:
    async def script(world: World) -> None:
        assert world.site is not None
        world.site.backend.inner.next_create.extend(Fail(error=NoCapacity("the host is full")) for _ in range(5))
        run = await submit(world, workflow(job("one")))
        assert (await ended(world, run, 3600)).state is RunState.FAILED
        only = jobs_of(world, run)[0]
        assert only.reason == Reason.CREATES_EXHAUSTED
        assert "the host is full" in only.detail

    act(script)


def test_Q9_a_cordoned_agent_is_no_capacity() -> None:
    """An agent that drains with its job in hand holds its slot, not a place for the next job."""

    async def script(world: World) -> None:
        first = await submit(world, long_job(60.0))
        agent = (await running(world))[0]
        assert agent.worker is not None
        agent.actor.call_soon(agent.worker.stop, "the host shuts down")
        second = await submit(world, workflow(job("next")))
        assert (await ended(world, second, 10)).state is RunState.SUCCEEDED
        assert (await ended(world, first)).state is RunState.SUCCEEDED

    act(script, pools=[pool(max_agents=2)])


def test_Q1_ends_that_come_twice_take_no_demand_away() -> None:
    async def script(world: World) -> None:
        on_message(world, "up", JobFinished, twice, times=100)
        run = await submit(world, workflow(job("many", matrix=tuple({"n": n} for n in range(5)))))
        one = await submit(world, workflow(job("queued", step(seconds=1.0))))
        assert (await ended(world, run)).state is RunState.SUCCEEDED
        assert (await ended(world, one)).state is RunState.SUCCEEDED
        again = await ask(world, lambda: world.coordinator.rerun(run, Rerun()))
        await until(world, lambda: run_of(world, again.id).finished_at, 300, "the rerun")  # type: ignore[arg-type]

    act(script, pools=[pool(max_agents=3)])


# --- nothing that works is killed --------------------------------------------------------------------------


@pytest.mark.parametrize("offset", range(-6, 7))
def test_K1_a_job_that_comes_as_its_agent_is_given_back(offset: int) -> None:
    """The idle agent's timeout and the next job within milliseconds of each other: the job runs, nobody is killed."""

    async def script(world: World) -> None:
        offered = offered_to(world)
        victim = await submit(world, long_job(0.5))
        await until(world, lambda: offered, 60, "an offer")
        await ask(world, lambda: world.coordinator.cancel_run(victim))
        assert (await ended(world, victim)).state is RunState.CANCELLED
        agent = await until(world, lambda: idle(world), 30, "an idle agent")
        assert agent.idle_since is not None
        due = (agent.idle_since / 1e6) - 1_735_689_600 + 31.0
        await asyncio.sleep(max(0.0, due - world.loop.time() + offset * 0.15))
        late = await submit(world, workflow(job("late", step(seconds=2.0))))
        assert (await ended(world, late)).state is RunState.SUCCEEDED

    act(script, pools=[pool(max_agents=2, idle_timeout=31.0)], settings=quick(boot=(0.5, 0.5)), seed=f"K1/{offset}")


def idle(world: World) -> Any:
    live = {p.agent_id for p in world.query(provisions_rows.live) if p.state is ProvisionState.ACTIVE}
    for agent in world.query(agents.live):
        if agent.id in live and agent.assignment is None and agent.cordon_reason is None and agent.connected_at:
            return agent
    return None


def test_K7_an_agent_with_an_offer_is_busy() -> None:
    """The accept takes longer than the idle timeout: assigned is busy."""

    async def script(world: World) -> None:
        def late(agent: SimAgent, message: object, frame: bytes) -> None:
            assert agent.wire is not None
            agent.wire.hold(8.0, 0.0)

        on_message(world, "down", Offer, late)
        run = await submit(world, workflow(job("one")))
        assert (await ended(world, run)).state is RunState.SUCCEEDED

    world = act(script, pools=[pool(idle_timeout=1.0)])
    assert world.host.made == 1


def test_K13_our_own_outage_condemns_nobody() -> None:
    """The database is away for longer than ``lost_after``: agents could not be heard, so none is lost."""

    async def script(world: World) -> None:
        run = await submit(world, long_job(500.0, on_lost=OnLost.FAIL))
        agent = (await running(world))[0]
        world.database.inline.away = True
        await asyncio.sleep(5)
        assert agent.wire is not None
        agent.wire.cut()
        await asyncio.sleep(300)
        world.database.inline.away = False
        assert (await ended(world, run, 900)).state is RunState.SUCCEEDED

    act(script)


def test_K13_an_outage_that_begins_after_the_agent_was_lost_sight_of() -> None:
    async def script(world: World) -> None:
        run = await submit(world, long_job(500.0, on_lost=OnLost.FAIL))
        agent = (await running(world))[0]
        assert agent.wire is not None
        agent.cut_until = world.loop.time() + 30
        agent.wire.cut()
        await asyncio.sleep(5)
        world.database.inline.away = True
        await asyncio.sleep(300)
        world.database.inline.away = False
        assert (await ended(world, run, 900)).state is RunState.SUCCEEDED

    act(script)


# --- the backend -------------------------------------------------------------------------------------------


def test_L15_a_create_that_fails_and_leaves_an_instance() -> None:
    async def script(world: World) -> None:
        assert world.site is not None
        world.site.backend.inner.next_create.append(LoseAnswer())
        run = await submit(world, workflow(job("one")))
        assert (await ended(world, run, 300)).state is RunState.SUCCEEDED

    act(script)


@pytest.mark.parametrize("seconds", [2.0, 59.9, 61.0, 75.0])
def test_L14_an_instance_that_appears_after_it_was_given_up_is_destroyed(seconds: float) -> None:
    """The create fails at its deadline, the provision is released and confirmed gone; then the instance is there."""

    async def script(world: World) -> None:
        assert world.site is not None
        world.site.backend.inner.next_create.append(Late(seconds=seconds))
        run = await submit(world, workflow(job("one")))
        assert (await ended(world, run, 300)).state is RunState.SUCCEEDED
        await asyncio.sleep(100)
        assert not world.host.instances

    act(script, pools=[pool(spawn_timeout=60.0)])


@pytest.mark.parametrize("fault", [Hang(), LoseAnswer(), Fail(error=Transient("not now"))])
def test_L6_a_destroy_that_fails_stops_no_other(fault: Any) -> None:
    async def script(world: World) -> None:
        assert world.site is not None
        world.site.backend.inner.next_destroy.append(fault)
        run = await submit(world, workflow(job("many", matrix=tuple({"n": n} for n in range(4)))))
        await ended(world, run)
        await until(world, lambda: len(world.host.instances) <= 1, 30, "the other instances are destroyed")

    act(script)


def test_L10_a_destroy_that_fails_for_ever_is_abandoned() -> None:
    async def script(world: World) -> None:
        assert world.site is not None
        world.site.backend.inner.next_destroy.extend(Fail(error=Transient("never")) for _ in range(20))
        run = await submit(world, workflow(job("one")))
        await ended(world, run)
        await until(world, lambda: abandoned(world), 3600, "the provision is abandoned")

    act(script, rests=False)


def abandoned(world: World) -> list[Any]:
    return [p for p in world.query(provisions_rows.live) if p.state is ProvisionState.ABANDONED]


# --- cancelling --------------------------------------------------------------------------------------------


def test_cancel_while_it_is_offered() -> None:
    async def script(world: World) -> None:
        offered = offered_to(world)
        run = await submit(world, workflow(job("one")))
        await until(world, lambda: offered, 60, "an offer")
        await ask(world, lambda: world.coordinator.cancel_run(run))
        assert (await ended(world, run, 1.0)).state is RunState.CANCELLED

    world = act(script)
    assert not world.truth.executions


@pytest.mark.parametrize("offset", [index * 0.0005 for index in range(20)])
def test_cancel_at_any_moment_after_the_offer_takes_no_deadline(offset: float) -> None:
    """Between the accept and the first report: the agent is told in an order that it understands."""

    async def script(world: World) -> None:
        offered: list[SimAgent] = []
        on_message(world, "down", Offer, lambda agent, message, frame: offered.append(agent))
        run = await submit(world, long_job(100.0))
        await until(world, lambda: offered, 60, "an offer")
        await asyncio.sleep(offset)
        await ask(world, lambda: world.coordinator.cancel_run(run))
        assert (await ended(world, run, 12.0)).state is RunState.CANCELLED

    act(script, seed=f"cancel/{offset}")


def test_cancel_while_it_runs_and_twice() -> None:
    async def script(world: World) -> None:
        run = await submit(world, long_job(100.0))
        await running(world)
        await ask(world, lambda: world.coordinator.cancel_run(run))
        await asyncio.sleep(0.5)
        asked = world.loop.time()
        await ask(world, lambda: world.coordinator.cancel_run(run, force=True))
        assert (await ended(world, run, 5.0)).state is RunState.CANCELLED
        assert world.loop.time() - asked < 1.5

    act(script)


def test_R10_a_cancel_that_the_agent_never_hears_ends_by_its_own_deadline() -> None:
    async def script(world: World) -> None:
        run = await submit(world, long_job(1000.0))
        agent = (await running(world))[0]
        assert agent.wire is not None
        agent.wire.half_open()
        await ask(world, lambda: world.coordinator.cancel_run(run))
        assert (await ended(world, run, 45.0)).state is RunState.CANCELLED

    act(script)


# --- with every notification dropped -----------------------------------------------------------------------


def test_with_every_notification_lost_everything_still_happens() -> None:
    async def script(world: World) -> None:
        run = await submit(world, workflow(job("a"), job("b", needs=["a"]), job("c", needs=["b"])))
        assert (await ended(world, run, 120)).state is RunState.SUCCEEDED
        other = await submit(world, long_job(60.0, retry=RETRY))
        await world.crash_agent((await running(world))[0])
        assert (await ended(world, other, 300)).state is RunState.SUCCEEDED
        third = await submit(world, long_job(500.0))
        await running(world)
        await ask(world, lambda: world.coordinator.cancel_run(third))
        assert (await ended(world, third, 60)).state is RunState.CANCELLED

    act(script, settings=quick(lost_rings=1.0))


def test_the_news_of_an_ended_instance_comes_while_the_database_is_away() -> None:
    async def script(world: World) -> None:
        run = await submit(world, long_job(500.0, retry=RETRY))
        agent = (await running(world))[0]
        world.database.inline.away = True
        await world.crash_agent(agent)
        await asyncio.sleep(5)
        world.database.inline.away = False
        await until(world, lambda: attempts(world, run)[0] is AttemptState.LOST, 40, "the loss is settled")
        await ask(world, lambda: world.coordinator.cancel_run(run, force=True))

    act(script)


def test_a_database_that_only_reads_is_not_asked_in_a_hot_loop() -> None:
    """Full disk: reads go on, writes fail. What is asked again is asked with a pause."""

    async def script(world: World) -> None:
        run = await submit(world, workflow(job("one", matrix=({"n": 1}, {"n": 2}))))
        await until(world, lambda: world.query(provisions_rows.live), 10, "a provision")
        world.database.inline.read_only = True
        before = world.database.inline.refused
        await asyncio.sleep(30)
        assert world.database.inline.refused - before < 400
        world.database.inline.read_only = False
        assert (await ended(world, run)).state is RunState.SUCCEEDED

    act(script)


def test_a_session_that_ends_while_the_database_is_away_is_not_online_for_ever() -> None:
    async def script(world: World) -> None:
        run = await submit(world, long_job(500.0, on_lost=OnLost.FAIL))
        agent = (await running(world))[0]
        world.database.inline.away = True
        assert agent.wire is not None
        agent.cut_until = world.loop.time() + 1000
        agent.wire.cut()
        await asyncio.sleep(20)
        world.database.inline.away = False
        assert (await ended(world, run, 250)).state is RunState.FAILED

    act(script)


def test_a_stalled_log_store_loses_nothing() -> None:
    async def script(world: World) -> None:
        run = await submit(world, workflow(job("one", step(seconds=5.0, log=500_000, burst=2_000_000))))
        await running(world)
        world.logs.stall()
        await asyncio.sleep(60)
        world.logs.resume()
        assert (await ended(world, run, 60)).state is RunState.SUCCEEDED
        await rest(world)

    act(script)
