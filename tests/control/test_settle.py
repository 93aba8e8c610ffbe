# SPDX-License-Identifier: Apache-2.0
"""Losing, cancelling and giving up: job, attempt, agent and run are settled together."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from corral.control import settle
from corral.control.settle import CANCEL_GRACE, CANCEL_MARGIN, Wake
from corral.model.errors import NotFound, Refused
from corral.model.ids import RunId
from corral.model.spec import NeedSpec, NeedWhen, OnLost, Reason, Result, RetrySpec
from corral.model.states import AttemptState, JobEvent, JobState, StepState
from corral.store.repo import jobs, secrets
from corral.store.tables import secrets as secret_rows
from tests.clocks import START
from tests.control.worlds import SECOND, World, finished, step_finished, step_started
from tests.store.databases import AGENT, a_spec


def running(world: World, **spec: object) -> RunId:
    run_id = world.start(a_spec(**spec))
    world.agent_up()
    world.running(world.only(run_id))
    return run_id


LOSS = [
    # on_lost, retry, instance gone -> job, attempt
    (None, None, True, JobState.FAILED, AttemptState.LOST),
    (None, None, False, JobState.FAILED, AttemptState.LOST),
    (OnLost.FAIL, 3, True, JobState.FAILED, AttemptState.LOST),
    (OnLost.RETRY, None, True, JobState.QUEUED, AttemptState.LOST),
    (OnLost.RETRY, None, False, JobState.QUEUED, AttemptState.LOST),
    (None, 3, False, JobState.QUEUED, AttemptState.LOST),
    (OnLost.WAIT, None, False, JobState.RUNNING, AttemptState.RUNNING),
    (OnLost.WAIT, None, True, JobState.FAILED, AttemptState.LOST),
    (OnLost.WAIT, 3, True, JobState.QUEUED, AttemptState.LOST),
]


@pytest.mark.parametrize(("on_lost", "tries", "gone", "job", "attempt"), LOSS)
def test_a_lost_job_follows_its_policy(
    world: World, on_lost: OnLost | None, tries: int | None, gone: bool, job: JobState, attempt: AttemptState
) -> None:
    """R3: every policy, and every path ends."""
    retry = RetrySpec(attempts=tries) if tries else None
    run_id = running(world, on_lost=on_lost, retry=retry)
    before = world.only(run_id)
    world.report(step_started(before.id))
    world.lose(before.id, gone=gone)
    after = world.only(run_id)
    assert (after.state, world.attempt(1, after.id).state) == (job, attempt)
    waits = job is JobState.RUNNING
    (step,) = world.read(jobs.steps_of, after.id, 1)
    assert step.state is (StepState.RUNNING if waits else StepState.LOST)
    assert world.run(run_id).log_incomplete == (not waits)
    assert (world.agent().assignment, world.agent().cordon_reason) == ((after.id, None) if waits else (None, "lost"))
    if job is JobState.FAILED:
        assert (after.reason, after.detail) == (Reason.INSTANCE_LOST, "it is away")
        assert world.run(run_id).state == "failed"


def test_an_offered_job_is_not_lost_but_queued_again(world: World) -> None:
    run_id = world.start()
    world.agent_up()
    job = world.only(run_id)
    world.offer(job)
    world.lose(job.id)
    after = world.only(run_id)
    assert (after.state, after.tries, after.offers) == (JobState.QUEUED, 0, 0)
    assert world.attempt(1, job.id).state is AttemptState.WITHDRAWN


def test_losing_twice_is_losing_once(world: World) -> None:
    run_id = running(world, on_lost=OnLost.RETRY)
    job_id = world.only(run_id).id
    world.lose(job_id)
    before = world.only(run_id)
    world.lose(job_id)
    assert world.only(run_id) == before
    assert world.run(run_id).jobs_finished == 0


def test_a_job_whose_agents_keep_being_lost_is_given_up(world: World) -> None:
    run_id = running(world, on_lost=OnLost.RETRY)
    job_id = world.only(run_id).id
    for number in (1, 2):
        world.lose(job_id, number)
        assert world.only(run_id).state is JobState.QUEUED
        world.agent_up(f"agent_more_{number}")
        world.running(world.only(run_id), f"agent_more_{number}")
    world.lose(job_id, 3)
    assert world.only(run_id).state is JobState.FAILED


def test_a_finished_job_cannot_be_lost(world: World) -> None:
    run_id = running(world)
    job = world.only(run_id)
    row = world.attempt(1, job.id)
    world.finish(job)
    world.write(settle.lose, row, Reason.INSTANCE_LOST, "", Wake(), instance_gone=True)
    assert world.only(run_id).state is JobState.SUCCEEDED
    assert world.run(run_id).state == "succeeded"


# --- cancelling --------------------------------------------------------------------------------------------


def test_cancelling_what_waits_ends_it_at_once(world: World) -> None:
    run_id = world.start(a_spec("a"), a_spec("b", needs=(NeedSpec(job="a"),)))
    world.cancel(run_id)
    assert world.states(run_id) == {"a": "cancelled", "b": "cancelled"}
    run = world.run(run_id)
    assert (run.state, run.reason, run.jobs_finished) == ("cancelled", Reason.CANCELLED, 2)
    with pytest.raises(Refused, match="has ended: cancelled"):
        world.cancel(run_id)
    with pytest.raises(NotFound):
        world.cancel(RunId("run_none"))


def test_cancelling_a_running_job_has_its_own_deadline(world: World) -> None:
    run_id = running(world)
    world.cancel(run_id)
    job = world.only(run_id)
    limit = START + int((CANCEL_GRACE + CANCEL_MARGIN) * SECOND)
    assert (job.state, job.reason, job.cancel_deadline_at) == (JobState.CANCELLING, Reason.CANCELLED, limit)
    world.clock.pass_time(5)
    world.cancel(run_id, force=True)
    assert world.only(run_id).cancel_deadline_at == limit, "asking again does not put it off"
    assert world.run(run_id).cancel_force


def test_an_always_job_does_not_start_in_a_cancelled_run(world: World) -> None:
    run_id = world.start(a_spec("a"), a_spec("tidy", needs=(NeedSpec(job="a", when=NeedWhen.ALWAYS),)))
    world.agent_up()
    world.running(world.jobs(run_id)["a"])
    world.cancel(run_id)
    assert world.states(run_id) == {"a": "cancelling", "tidy": "cancelled"}


def test_a_cancel_that_nobody_confirms_ends_by_itself(world: World) -> None:
    run_id = running(world)
    world.report(step_started(world.only(run_id).id))
    world.cancel(run_id)
    wake = Wake()
    world.write(settle.give_up_cancelling, world.only(run_id), wake)
    job = world.only(run_id)
    assert (job.state, job.detail) == (JobState.CANCELLED, "the agent did not confirm the cancel in time")
    assert (world.agent().assignment, world.agent().cordon_reason) == (None, "unresponsive")
    assert world.attempt(1, job.id).state is AttemptState.CANCELLED
    assert world.run(run_id).state == "cancelled" and world.run(run_id).log_incomplete


def test_a_cancelled_job_whose_agent_is_lost_ends_cancelled_whatever_its_policy(world: World) -> None:
    for number, on_lost in enumerate((None, OnLost.RETRY, OnLost.WAIT)):
        run_id = world.start(a_spec(on_lost=on_lost))
        name = f"agent_{number}"
        world.agent_up(name)
        job = world.only(run_id)
        world.running(job, name)
        world.cancel(run_id)
        world.lose(job.id, gone=False)
        assert world.only(run_id).state is JobState.CANCELLED
        assert world.run(run_id).state == "cancelled"


def test_a_cancelled_job_whose_start_never_arrived_ends_cancelled(world: World) -> None:
    run_id = world.start()
    world.agent_up()
    job = world.only(run_id)
    world.offer(job)
    world.accept(job.id)
    world.cancel(run_id)
    world.write(settle.withdraw, world.attempt(1, job.id), "the start did not arrive", Wake(), counts=False)
    assert world.only(run_id).state is JobState.CANCELLED
    assert world.run(run_id).state == "cancelled"


def test_a_run_that_took_too_long_fails_by_it(world: World) -> None:
    run_id = running(world)
    world.cancel(run_id, reason=Reason.RUN_TIMEOUT)
    world.finish(world.only(run_id), Result.CANCELLED, Reason.CANCELLED)
    run = world.run(run_id)
    assert (run.state, run.reason) == ("failed", Reason.RUN_TIMEOUT)


def test_a_job_that_was_stopped_for_its_timeout_fails_by_it(world: World) -> None:
    run_id = running(world)
    world.write(jobs.advance, world.only(run_id), JobEvent.CANCEL, reason=Reason.JOB_TIMEOUT)
    world.finish(world.only(run_id), Result.CANCELLED, Reason.CANCELLED)
    assert (world.only(run_id).state, world.only(run_id).reason) == (JobState.FAILED, Reason.JOB_TIMEOUT)


def test_fail_fast_stops_the_running_siblings(world: World) -> None:
    matrix = ({"n": 1}, {"n": 2}, {"n": 3})
    run_id = world.start(a_spec("m", matrix=matrix, fail_fast=True))
    first, second, _ = world.jobs(run_id).values()
    for number, job in enumerate((first, second)):
        world.agent_up(f"agent_{number}")
        world.running(job, f"agent_{number}")
    applied = world.finish(first, Result.FAILED, Reason.EXIT_CODE, agent_id="agent_0")
    assert world.states(run_id) == {"m (1)": "failed", "m (2)": "cancelling", "m (3)": "cancelled"}
    assert applied.wake.stops
    assert world.jobs(run_id)["m (3)"].reason == Reason.FAIL_FAST
    world.finish(second, Result.CANCELLED, Reason.CANCELLED, agent_id="agent_1")
    run = world.run(run_id)
    assert (run.state, run.reason, run.detail) == ("failed", Reason.EXIT_CODE, "m")


# --- secrets and repetition ----------------------------------------------------------------------------------


def test_secrets_are_sealed_and_wiped_with_the_run(world: World) -> None:
    run_id = world.start(a_spec("a", secrets=("TOKEN",)), secrets={"TOKEN": "v", "UNDECLARED": "w"})
    stored = world.read(secrets.of_run, run_id)
    assert stored == {"TOKEN": b"sealed v"}, "sealed, and only what a job declares"
    world.agent_up()
    job = world.only(run_id)
    world.running(job)
    assert world.read(secrets.of_run, run_id)
    world.finish(job)
    assert world.read(lambda c: c.execute(select(secret_rows)).all()) == []


def test_looking_again_at_a_run_changes_nothing(world: World) -> None:
    run_id = world.start(a_spec("a"), a_spec("b", needs=(NeedSpec(job="a"),)))
    before = [world.run(run_id), world.jobs(run_id)]
    world.write(settle.continue_run, run_id, Wake())
    world.write(settle.continue_run, RunId("run_none"), Wake())
    assert [world.run(run_id), world.jobs(run_id)] == before


def test_every_way_out_counts_each_job_once(world: World) -> None:
    run_id = world.start(a_spec("a"), a_spec("b", needs=(NeedSpec(job="a"),)), a_spec("c"))
    world.agent_up()
    a = world.jobs(run_id)["a"]
    world.running(a)
    world.report(step_finished(a.id), finished(a.id, result=Result.FAILED, reason=Reason.EXIT_CODE))
    world.cancel(run_id)
    run = world.run(run_id)
    assert (run.jobs_total, run.jobs_finished) == (3, 3)
    assert world.states(run_id) == {"a": "failed", "b": "skipped", "c": "cancelled"}
    assert world.agent(AGENT).assignment is None
