# SPDX-License-Identifier: Apache-2.0
"""An offer: made, accepted, declined, not answered."""

from __future__ import annotations

import pytest

from corral.control import offers, settle
from corral.control.offers import DEADLINE_MARGIN, MISSED_ACKS_MAX
from corral.control.settle import Wake
from corral.decide.settling import OFFERS_MAX
from corral.model.errors import Conflict
from corral.model.spec import NeedSpec, NeedWhen, Reason, Result, SourceRef
from corral.model.states import AttemptEvent, AttemptState, JobState
from corral.store.repo import agents, jobs
from tests.clocks import START
from tests.control.worlds import SECOND, World
from tests.store.databases import AGENT, a_spec


def expire(world: World) -> Wake:
    wake = Wake()
    world.write(offers.expire, wake)
    return wake


# --- making ------------------------------------------------------------------------------------------------


def test_job_and_agent_change_together(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    made = world.offer(job)
    assert made is not None and made.agent_id == AGENT
    after = world.only(job.run_id)
    assert (after.state, after.attempt, after.agent_id) == (JobState.OFFERED, 1, AGENT)
    assert (world.agent().assignment, world.agent().assigned_attempt) == (job.id, 1)
    attempt = world.attempt(1, job.id)
    assert (attempt.state, attempt.offer_deadline_at) == (AttemptState.OFFERED, START + 10 * SECOND)


def test_a_job_is_offered_once_at_a_time_and_so_is_an_agent(world: World) -> None:
    run_id = world.start(a_spec("a"), a_spec("b"))
    a, b = world.jobs(run_id).values()
    world.agent_up()
    world.agent_up("agent_2")
    world.offer(a)
    for job, agent in ((a, "agent_2"), (b, AGENT)):
        with pytest.raises(Conflict):
            world.offer(job, agent)
    assert world.states(run_id) == {"a": "offered", "b": "queued"}
    assert world.agent("agent_2").assignment is None
    assert world.read(jobs.attempts_of, b.id) == ()


def test_nothing_is_offered_to_a_cordoned_agent(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.write(agents.cordon, AGENT, "drain")
    with pytest.raises(Conflict, match="cordoned"):
        world.offer(job)
    assert world.only(job.run_id).state is JobState.QUEUED


def test_the_order_holds_what_the_agent_needs(world: World) -> None:
    report = a_spec(
        "report",
        needs=(NeedSpec(job="build", when=NeedWhen.ALWAYS),),
        env={"OUT": "${{ needs.build.outputs.wheel }}", "OWN": "job", "BOTH": "job"},
    )
    build = a_spec("build")
    source = SourceRef(hash="ab" * 32, size=5)
    run_id = world.start(
        build, report, source=source, env={"BOTH": "run"}, workflow={"env": {"OWN": "workflow", "W": "workflow"}}
    )
    world.agent_up()
    first = world.jobs(run_id)["build"]
    world.running(first)
    world.finish(first, outputs={"wheel": "a.whl"})
    world.agent_up("agent_2")
    made = world.offer(world.jobs(run_id)["report"], "agent_2")
    assert made is not None
    order = made.order
    assert order.spec.env == {"OUT": "a.whl", "OWN": "job", "W": "workflow", "BOTH": "run"}
    assert order.needs["build"].result is Result.SUCCEEDED
    assert (order.source, order.attempt, order.workflow) == (source, 1, "w")


def test_a_job_without_checkout_gets_no_source(world: World) -> None:
    run_id = world.start(a_spec(checkout=False), source=SourceRef(hash="ab" * 32, size=5))
    world.agent_up()
    made = world.offer(world.only(run_id))
    assert made is not None and made.order.source is None


def test_an_environment_that_cannot_be_evaluated_ends_the_job_with_the_cause(world: World) -> None:
    run_id = world.start(a_spec(env={"X": "${{ fromJSON('{') }}"}))
    world.agent_up()
    assert world.offer(world.only(run_id)) is None
    job = world.only(run_id)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.EXPRESSION_FAILED)
    assert job.detail
    assert world.agent().assignment is None
    assert world.run(run_id).state == "failed"


# --- accepting ---------------------------------------------------------------------------------------------


def test_accepting_commits_the_start(world: World) -> None:
    job = world.only(world.start(a_spec(timeout=100.0, secrets=()), env={}))
    world.agent_up()
    world.offer(job)
    world.clock.pass_time(3)
    taken = world.accept(job.id)
    assert taken is not None and taken.run_id == job.run_id
    after = world.only(job.run_id)
    assert (after.state, after.tries, after.started_at) == (JobState.RUNNING, 1, world.clock.now())
    assert after.deadline_at == world.clock.now() + int((100 + DEADLINE_MARGIN) * SECOND)
    assert world.attempt(1, job.id).state is AttemptState.STARTING
    assert world.run(job.run_id).state == "running"


def test_an_offer_is_accepted_once_by_its_agent_only(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.agent_up("agent_2")
    world.offer(job)
    assert world.accept(job.id, agent_id="agent_2") is None
    assert world.accept(job.id, attempt=2) is None
    assert world.accept(job.id) is not None
    assert world.accept(job.id) is None
    assert world.only(job.run_id).tries == 1


def test_an_offer_that_was_taken_back_is_not_started(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.offer(job)
    world.clock.pass_time(10)
    expire(world)
    assert world.accept(job.id) is None
    assert world.only(job.run_id).state is JobState.QUEUED


def test_instances_that_ran_the_job_are_not_counted_as_made_in_vain(world: World) -> None:
    """A job that asks for many tries needs an instance for each: only those that never ran it are a fault."""
    job = world.only(world.start())
    world.agent_up()
    for _ in range(3):
        world.write(jobs.count_create, job.id)
    world.offer(world.only(job.run_id))
    world.accept(job.id)
    assert world.only(job.run_id).creates == 0


# --- declining and not answering -----------------------------------------------------------------------------


def test_a_decline_queues_the_job_again_after_a_growing_pause_and_costs_no_try(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    pauses = []
    for number in range(1, OFFERS_MAX):
        world.offer(world.only(job.run_id))
        world.decline(job.id, number)
        after = world.only(job.run_id)
        assert (after.state, after.tries, after.offers, after.agent_id) == (JobState.QUEUED, 0, number, None)
        assert after.ready_at is not None
        pauses.append((after.ready_at - world.clock.now()) / SECOND)
        assert world.agent().assignment is None
        assert world.read(jobs.last_agents, [job.id]) == {job.id: AGENT}
    assert pauses == [1, 2, 4, 8]
    world.offer(world.only(job.run_id))
    world.decline(job.id, OFFERS_MAX)
    last = world.only(job.run_id)
    assert (last.state, last.reason) == (JobState.FAILED, Reason.OFFERS_EXHAUSTED)
    assert AGENT in last.detail and "busy" in last.detail
    assert world.run(job.run_id).state == "failed"


def test_only_its_own_agent_declines(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.agent_up("agent_2")
    world.offer(job)
    world.decline(job.id, agent_id="agent_2")
    world.decline(job.id, 2)
    assert world.only(job.run_id).state is JobState.OFFERED


def test_an_agent_that_leaves_is_cordoned(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.offer(job)
    world.decline(job.id, leaving=True)
    assert world.agent().cordon_reason == "drain"


def test_an_accept_forgives_earlier_declines(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.offer(job)
    world.decline(job.id)
    world.offer(world.only(job.run_id))
    world.accept(job.id, 2)
    assert world.only(job.run_id).offers == 0


def test_a_deaf_agent_is_cordoned_after_two_in_a_row(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    for number in range(1, MISSED_ACKS_MAX + 1):
        assert world.agent().cordon_reason is None
        world.offer(world.only(job.run_id))
        world.clock.pass_time(9.999)
        assert not expire(world).withdrawn
        world.clock.pass_time(0.001)
        assert expire(world).withdrawn == [(AGENT, job.id, number)]
        assert world.only(job.run_id).state is JobState.QUEUED
    assert world.agent().cordon_reason == "unresponsive"


def test_a_decline_is_an_answer(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.offer(job)
    world.clock.pass_time(10)
    expire(world)
    world.offer(world.only(job.run_id))
    world.decline(job.id, 2)
    world.offer(world.only(job.run_id))
    world.clock.pass_time(10)
    expire(world)
    assert (world.agent().cordon_reason, world.agent().missed_acks) == (None, 1)


# --- cancelling --------------------------------------------------------------------------------------------


def test_cancelling_an_offered_job_frees_its_agent(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.offer(job)
    world.cancel(job.run_id)
    assert world.only(job.run_id).state is JobState.CANCELLED
    assert world.attempt(1, job.id).state is AttemptState.CANCELLED
    assert (world.agent().assignment, world.agent().cordon_reason) == (None, None)
    assert world.wake.withdrawn == [(AGENT, job.id, 1)]
    assert world.accept(job.id) is None
    assert world.run(job.run_id).state == "cancelled"


def test_a_restarted_coordinator_takes_offers_back_without_counting_them(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.offer(job)
    world.write(settle.withdraw, world.attempt(1, job.id), "restarted", Wake(), counts=False)
    after = world.only(job.run_id)
    assert (after.state, after.offers, after.ready_at) == (JobState.QUEUED, 0, START)
    assert not world.write(settle.withdraw, world.attempt(1, job.id), "again", Wake())
    assert not world.write(jobs.advance_attempt, world.attempt(1, job.id), AttemptEvent.START)
