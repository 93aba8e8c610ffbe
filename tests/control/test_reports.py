# SPDX-License-Identifier: Apache-2.0
"""Reports: late, twice, early, from the wrong one, too large."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.errors import Conflict
from corral.model.spec import OUTPUT_LIMIT, OUTPUT_VALUE_LIMIT, Backoff, NeedSpec, OnLost, Reason, Result, RetrySpec
from corral.model.states import AttemptState, JobState, StepState
from corral.store.inline import InlineDatabase
from corral.store.repo import agents, jobs
from corral.wire.messages import JobStarted
from tests.clocks import START, ManualClock
from tests.control.worlds import SECOND, World, finished, held, step_finished, step_started
from tests.store.databases import AGENT, a_spec


def started(world: World, **spec: object) -> tuple[str, str]:
    """(run, job) of a job that an agent runs."""
    run_id = world.start(a_spec(**spec))
    world.agent_up()
    job = world.only(run_id)
    world.running(job)
    return run_id, job.id


def test_the_way_of_a_job(world: World) -> None:
    run_id, job_id = started(world)
    assert world.attempt(1, job_id).state is AttemptState.RUNNING
    world.clock.pass_time(2)
    world.report(step_started(job_id))
    world.clock.pass_time(3)
    world.report(step_finished(job_id, exit_code=0, log_size=12, log_digest="d", log_dropped=2, outputs={"a": "b"}))
    (step,) = world.read(jobs.steps_of, job_id, 1)
    assert (step.state, step.started_at, step.finished_at) == (
        StepState.SUCCEEDED,
        START + 2 * SECOND,
        START + 5 * SECOND,
    )
    assert (step.exit_code, step.log_size, step.log_digest, step.log_missing, step.outputs) == (
        0,
        12,
        "d",
        2,
        {"a": "b"},
    )
    applied = world.finish(world.only(run_id), outputs={"x": "1"})
    assert applied.finished == [(job_id, 1)]
    job = world.only(run_id)
    assert (job.state, job.outputs, job.finished_at) == (JobState.SUCCEEDED, {"x": "1"}, START + 5 * SECOND)
    run = world.run(run_id)
    assert (run.state, run.jobs_finished) == ("succeeded", 1)
    agent = world.agent()
    assert (agent.assignment, agent.cordon_reason) == (None, "job-complete"), "single use"


def test_an_agent_that_is_kept_is_free_again(world: World) -> None:
    _, job_id = started(world)
    world.clock.pass_time(4)
    world.report(finished(job_id), single_use=False)
    agent = world.agent()
    assert (agent.assignment, agent.cordon_reason, agent.idle_since) == (None, None, START + 4 * SECOND)


def test_the_end_may_overtake_everything(world: World) -> None:
    run_id = world.start()
    world.agent_up()
    job = world.only(run_id)
    world.offer(job)
    world.accept(job.id)
    world.report(finished(job.id, sequence=9))
    assert world.run(run_id).state == "succeeded"
    world.report(JobStarted(job_id=job.id, attempt=1, sequence=1, time=START), step_started(job.id))
    assert world.attempt(1, job.id).state is AttemptState.SUCCEEDED
    assert world.only(run_id).state is JobState.SUCCEEDED


def test_a_step_that_ended_has_begun_the_job(world: World) -> None:
    run_id = world.start()
    world.agent_up()
    job = world.only(run_id)
    world.offer(job)
    world.accept(job.id)
    world.report(step_finished(job.id, sequence=5))
    assert world.attempt(1, job.id).began_at == START
    assert [step.state for step in world.read(jobs.steps_of, job.id, 1)] == [StepState.SUCCEEDED]


def test_a_report_before_the_start_was_committed_changes_nothing(world: World) -> None:
    """The accept is on its way: an agent that reports now has begun without a start."""
    run_id = world.start()
    world.agent_up()
    job = world.only(run_id)
    world.offer(job)
    applied = world.report(step_started(job.id), finished(job.id))
    assert applied.finished == [(job.id, 1)], "it may forget it"
    assert world.only(run_id).state is JobState.OFFERED
    assert world.agent().assignment == job.id
    assert world.read(jobs.steps_of, job.id, 1) == ()
    assert world.accept(job.id) is not None


def test_repeated_reports_change_nothing_and_the_end_is_acknowledged_each_time(world: World) -> None:
    run_id, job_id = started(world)
    world.report(step_started(job_id), step_finished(job_id, result=Result.FAILED))
    before = [world.read(jobs.steps_of, job_id, 1), world.attempt(1, job_id)]
    world.report(step_started(job_id), step_finished(job_id))
    assert [world.read(jobs.steps_of, job_id, 1), world.attempt(1, job_id)] == before
    for _ in range(3):
        assert world.report(finished(job_id)).finished == [(job_id, 1)]
    assert (world.run(run_id).jobs_finished, world.run(run_id).state) == (1, "succeeded")


@given(st.data())
@settings(max_examples=15)
def test_any_order_and_repetition_ends_in_the_same_place(data: st.DataObject) -> None:
    """However the frames of one attempt are cut into transactions and repeated: one end, nothing left open."""
    with asyncio.Runner() as runner:
        clock = ManualClock()
        world = World(InlineDatabase(clock), clock, runner)
        run_id, job_id = started(world)
        history = [
            step_started(job_id, 0, 2),
            step_finished(job_id, 0, 3),
            step_started(job_id, 1, 4),
            step_finished(job_id, 1, 5, result=Result.FAILED, reason=Reason.EXIT_CODE),
            finished(job_id, sequence=6, result=Result.FAILED, reason=Reason.EXIT_CODE),
        ]
        sent = 0
        while sent < len(history):
            # What was not acknowledged is sent again from some earlier point, as after a reconnect.
            start = data.draw(st.integers(0, sent))
            end = data.draw(st.integers(sent + 1, len(history)))
            world.report(*history[start:end])
            sent = end
        steps = world.read(jobs.steps_of, job_id, 1)
        assert [step.state for step in steps] == [StepState.SUCCEEDED, StepState.FAILED]
        assert (world.only(run_id).state, world.attempt(1, job_id).state) == (JobState.FAILED, AttemptState.FAILED)
        assert world.run(run_id).state == "failed"
        assert world.agent().assignment is None


def test_another_agents_word_counts_for_nothing(world: World) -> None:
    run_id, job_id = started(world)
    world.agent_up("agent_2")
    applied = world.report(step_started(job_id), finished(job_id), agent_id="agent_2")
    assert applied.finished == [(job_id, 1)]
    assert world.only(run_id).state is JobState.RUNNING
    assert world.read(jobs.steps_of, job_id, 1) == ()


def test_an_older_session_writes_nothing(world: World) -> None:
    run_id, job_id = started(world)
    world.hello(held=(held(job_id),))
    with pytest.raises(Conflict, match="newer session"):
        world.report(finished(job_id), session=1)
    assert world.only(run_id).state is JobState.RUNNING
    world.report(finished(job_id), session=2)
    assert world.only(run_id).state is JobState.SUCCEEDED


def test_a_late_end_of_a_settled_attempt_is_forgotten_not_applied(world: World) -> None:
    run_id, job_id = started(world)
    world.lose(world.only(run_id).id)
    assert world.only(run_id).state is JobState.FAILED
    applied = world.report(finished(job_id))
    assert applied.finished == [(job_id, 1)]
    assert (world.only(run_id).state, world.run(run_id).jobs_finished) == (JobState.FAILED, 1)


def test_cleanup_steps_are_counted_after_the_others(world: World) -> None:
    steps = a_spec().steps
    _, job_id = started(world, steps=steps, cleanup=steps)
    world.report(step_finished(job_id, 0), step_finished(job_id, 1, sequence=4))
    assert len(world.read(jobs.steps_of, job_id, 1)) == 2


# --- outputs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "fine"),
    [
        ({"a": "x" * OUTPUT_VALUE_LIMIT}, True),
        ({"a": "x" * (OUTPUT_VALUE_LIMIT + 1)}, False),
        ({"a": "ä" * (OUTPUT_VALUE_LIMIT // 2 + 1)}, False),
        ({str(n): "x" * (OUTPUT_LIMIT // 8 - 1) for n in range(8)}, True),
        ({str(n): "x" * (OUTPUT_LIMIT // 8 - 1) for n in range(9)}, False),
    ],
)
def test_outputs_above_the_limit_do_not_make_a_green_job(world: World, outputs: dict[str, str], fine: bool) -> None:
    run_id, _ = started(world)
    world.finish(world.only(run_id), outputs=outputs)
    job = world.only(run_id)
    assert (job.state, job.reason) == ((JobState.SUCCEEDED, "") if fine else (JobState.FAILED, Reason.OUTPUTS_INVALID))
    assert job.outputs == (outputs if fine else {})


# --- retries and ends --------------------------------------------------------------------------------------


def test_a_failed_try_is_repeated_after_its_pause(world: World) -> None:
    retry = RetrySpec(attempts=2, delay=5.0, backoff=Backoff.FIXED)
    run_id, job_id = started(world, retry=retry)
    world.finish(world.only(run_id), Result.FAILED, Reason.EXIT_CODE)
    job = world.only(run_id)
    assert (job.state, job.tries, job.ready_at, job.reason) == (JobState.QUEUED, 1, START + 5 * SECOND, "")
    assert world.attempt(1, job_id).state is AttemptState.FAILED
    assert world.run(run_id).state == "running"
    world.agent_up("agent_2")
    assert world.running(job, "agent_2") == 2
    world.finish(job, Result.FAILED, Reason.EXIT_CODE, attempt=2, agent_id="agent_2")
    assert (world.only(run_id).state, world.only(run_id).tries) == (JobState.FAILED, 2)
    assert world.run(run_id).reason == Reason.EXIT_CODE


def test_what_would_fail_again_is_not_repeated(world: World) -> None:
    run_id, _ = started(world, retry=RetrySpec(attempts=5))
    world.finish(world.only(run_id), Result.FAILED, Reason.LOCK_MISMATCH)
    assert world.only(run_id).state is JobState.FAILED


@pytest.mark.parametrize(
    ("on_lost", "state"), [(None, JobState.FAILED), (OnLost.RETRY, JobState.QUEUED), (OnLost.WAIT, JobState.FAILED)]
)
def test_a_job_that_its_agent_gave_up_follows_the_policy_for_loss(
    world: World, on_lost: OnLost | None, state: JobState
) -> None:
    run_id, job_id = started(world, on_lost=on_lost)
    world.finish(world.only(run_id), Result.LOST, Reason.AGENT_LOST)
    assert world.only(run_id).state is state
    assert world.attempt(1, job_id).state is AttemptState.LOST


def test_a_cancelled_job_ends_cancelled_and_the_first_reason_stays(world: World) -> None:
    run_id, _ = started(world)
    world.cancel(run_id)
    assert world.only(run_id).state is JobState.CANCELLING and world.wake.stops
    world.finish(world.only(run_id), Result.CANCELLED, Reason.CANCELLED, detail="by signal")
    job = world.only(run_id)
    assert (job.state, job.reason, job.detail) == (JobState.CANCELLED, Reason.CANCELLED, "by signal")
    assert world.run(run_id).state == "cancelled"


def test_a_job_that_failed_while_it_was_being_cancelled_is_cancelled(world: World) -> None:
    run_id, _ = started(world, retry=RetrySpec(attempts=5))
    world.cancel(run_id)
    world.finish(world.only(run_id), Result.FAILED, Reason.SIGNAL)
    assert world.only(run_id).state is JobState.CANCELLED


def test_cancelled_too_late_is_a_success(world: World) -> None:
    run_id, _ = started(world)
    world.cancel(run_id)
    world.finish(world.only(run_id))
    assert (world.only(run_id).state, world.run(run_id).state) == (JobState.SUCCEEDED, "succeeded")


def test_what_follows_a_job_is_ready_in_the_same_transaction(world: World) -> None:
    run_id = world.start(a_spec("a"), a_spec("b", needs=(NeedSpec(job="a"),)))
    world.agent_up()
    job = world.jobs(run_id)["a"]
    world.running(job)
    applied = world.finish(job)
    assert world.states(run_id) == {"a": "succeeded", "b": "queued"}
    assert applied.wake.queue and run_id in applied.wake.runs


def test_the_end_of_an_agent_is_answered_once_more_after_its_row_moved_on(world: World) -> None:
    run_id, job_id = started(world, retry=RetrySpec(attempts=2, delay=0.0))
    world.finish(world.only(run_id), Result.FAILED, Reason.EXIT_CODE)
    world.agent_up("agent_2")
    world.running(world.only(run_id), "agent_2")
    assert world.report(finished(job_id)).finished == [(job_id, 1)]
    assert world.only(run_id).state is JobState.RUNNING, "attempt 2 is not touched by attempt 1"
    assert world.read(agents.get, AGENT) is not None
