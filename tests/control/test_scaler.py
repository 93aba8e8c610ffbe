# SPDX-License-Identifier: Apache-2.0
"""The scaler's passes over real SQL: admission, release, and giving up with the cause."""

from __future__ import annotations

import pytest

from corral.backends.interface import Ending
from corral.control import queries, scaler
from corral.control.bell import HOST
from corral.control.host import _settle_ending
from corral.control.lines import LastLines
from corral.control.settle import Wake
from corral.decide.scaling import NotDone, Release, ReleaseReason
from corral.model.errors import Conflict
from corral.model.ids import AgentId
from corral.model.pools import Backoff, Caps, Pool
from corral.model.spec import NeedSpec, Reason, Result, RetrySpec
from corral.model.states import JobState, ProvisionEvent, ProvisionState
from corral.store.repo import agents
from corral.store.repo import claims as claims_rows
from corral.store.repo import lease as lease_rows
from corral.store.repo import pool_health as pool_health_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.lease import LEASE
from tests.clocks import START
from tests.control.leading import Leader, creation, pool
from tests.control.worlds import COORDINATOR, SECOND, World
from tests.store.databases import AGENT, a_spec

# --- creating ----------------------------------------------------------------------------------------------


def test_a_waiting_job_gets_one_instance_whatever_the_number_of_passes(world: World) -> None:
    leader = Leader(world)
    rung: list[str] = []
    leader.bell.listen(HOST, lambda: rung.append(HOST))
    job = world.only(world.start())
    for _ in range(3):
        leader.run()
    (row,) = world.read(provisions_rows.live)
    assert (row.pool, row.job_id, row.run_id, row.host_id, row.state) == (
        "p",
        job.id,
        job.run_id,
        COORDINATOR,
        ProvisionState.REQUESTED,
    )
    assert world.only(job.run_id).creates == 1
    assert rung == [HOST], "the second pass has nothing to do"
    sealed = world.read(provisions_rows.sealed_claim, row.agent_id)
    assert sealed is not None
    code = leader.sealer.open(sealed, row.agent_id).reveal()
    assert code.startswith("claim_") and code.encode() not in sealed
    assert world.hello(row.agent_id, claim=code).__class__.__name__ == "Registered"


def test_the_pools_cap_holds_over_passes(world: World) -> None:
    leader = Leader(world, pool(most=2))
    run_id = world.start(a_spec("m", matrix=tuple({"n": n} for n in range(5))))
    for _ in range(3):
        leader.run()
    assert world.read(provisions_rows.count_live) == 2
    reasons = {item.reason for item in leader.scaler.reasons.unplaced.values()}
    assert (reasons, len(leader.scaler.reasons.unplaced)) == ({NotDone.AT_POOL_MAX}, 3)
    waiting = next(job for job in world.jobs(run_id).values() if job.id in leader.scaler.reasons.unplaced)
    assert leader.why(waiting.id)[-1] == "it waits: pool p has its 2 agents"


@pytest.mark.parametrize(
    ("caps", "most", "what"),
    [(Caps(), 1, "pool p has its 1"), (Caps(max_agents=1), 9, "cluster"), (Caps(concurrent_creates=1), 9, "created")],
)
def test_admission_counts_again_in_its_own_transaction(world: World, caps: Caps, most: int, what: str) -> None:
    """Two plans were made from one look: only as many as fit are let in."""
    leader = Leader(world, pool(most=most), caps=caps)
    assert leader.admit(creation(), "agent_a") is None
    refused = leader.admit(creation(), "agent_b")
    assert refused is not None and what in refused.detail
    assert world.read(provisions_rows.count_live) == 1
    assert world.read(agents.get, AgentId("agent_b")) is None
    assert world.read(claims_rows.owner, "code-agent_b") is None


def test_a_deposed_leader_creates_and_releases_nothing(world: World) -> None:
    leader = Leader(world)
    leader.admit(creation(), "agent_a")
    world.write(lease_rows.take, LEASE, "another")
    with pytest.raises(Conflict):
        leader.admit(creation(), "agent_b")
    release = Release(agent_id=AgentId("agent_a"), reason=ReleaseReason.IDLE)
    with pytest.raises(Conflict):
        world.write(scaler.let_go, leader.term, release, world.provision("agent_a"), Backoff())
    assert world.provision("agent_a").state is ProvisionState.REQUESTED
    assert world.read(provisions_rows.count_live) == 1


# --- releasing ---------------------------------------------------------------------------------------------


def test_an_agent_that_was_just_given_a_job_stays(world: World) -> None:
    leader = Leader(world)
    world.agent_up()
    job = world.only(world.start())
    world.offer(job)
    release = Release(agent_id=AGENT, reason=ReleaseReason.IDLE)
    with pytest.raises(Conflict, match="has a job"):
        world.write(scaler.let_go, leader.term, release, world.provision(), Backoff())
    assert (world.agent().cordon_reason, world.provision().state) == (None, ProvisionState.ACTIVE)


def test_a_release_that_finds_the_provision_changed_leaves_no_cordon(world: World) -> None:
    leader = Leader(world)
    world.agent_up()
    stale = world.provision()
    world.write(provisions_rows.write, stale, provider_id="x")
    with pytest.raises(Conflict):
        world.write(scaler.let_go, leader.term, Release(agent_id=AGENT, reason=ReleaseReason.IDLE), stale, Backoff())
    assert world.agent().cordon_reason is None


def test_a_finished_single_use_agent_is_given_back(world: World) -> None:
    leader = Leader(world)
    job = world.only(world.start())
    world.agent_up()
    world.running(job)
    leader.run()
    assert world.provision().state is ProvisionState.ACTIVE
    world.finish(job)
    leader.run()
    assert (world.provision().state, world.provision().release_reason) == (ProvisionState.RELEASING, "job-complete")


def test_a_cancelled_jobs_instance_is_given_back_before_it_registers_and_is_no_failure(world: World) -> None:
    leader = Leader(world)
    run_id = world.start()
    leader.run()
    leader.begun()
    world.cancel(run_id)
    leader.run()
    (row,) = world.read(provisions_rows.live)
    assert (row.state, row.release_reason) == (ProvisionState.RELEASING, "job-cancelled")
    assert world.read(pool_health_rows.every) == ()


def test_a_spawn_that_takes_too_long_is_a_failure_and_the_pool_backs_off(world: World) -> None:
    leader = Leader(world)
    job = world.only(world.start())
    leader.run()
    leader.begun()
    world.clock.pass_time(61)
    leader.run()
    assert [row.state for row in world.read(provisions_rows.live)] == [ProvisionState.RELEASING]
    (health,) = world.read(pool_health_rows.every)
    assert (health.failures, health.backoff_until) == (1, world.clock.now() + 30 * SECOND)
    leader.run()
    assert leader.scaler.reasons.unplaced[job.id].reason is NotDone.BACKING_OFF
    world.clock.pass_time(30)
    leader.run()
    assert world.read(provisions_rows.count_live) == 2
    leader.begun()
    world.clock.pass_time(61)
    leader.run()
    (health,) = world.read(pool_health_rows.every)
    assert (health.failures, health.backoff_until) == (2, world.clock.now() + 60 * SECOND)


def test_instances_that_fail_together_are_one_failure(world: World) -> None:
    leader = Leader(world)
    world.start(a_spec("m", matrix=({"n": 1}, {"n": 2})))
    leader.run()
    rows = world.read(provisions_rows.live)
    world.clock.pass_time(1)
    for number, row in enumerate(rows):
        world.write(scaler.note_failure, row, f"error {number}", Backoff())
    (health,) = world.read(pool_health_rows.every)
    assert (len(rows), health.failures, health.last_error) == (2, 1, "error 1")
    assert health.backoff_until == world.clock.now() + 30 * SECOND


def test_a_static_agent_is_used_and_left_alone(world: World) -> None:
    leader = Leader(world)
    world.static(labels="linux")
    world.hello("static")
    job = world.only(world.start())
    leader.run()
    assert world.read(provisions_rows.live) == ()
    assert leader.scaler.reasons.covered == {job.id}
    assert world.agent("static").cordon_reason is None


def test_an_instance_that_ended_by_itself_settles_its_job_and_is_cleaned_up(world: World) -> None:
    leader = Leader(world)
    job = world.only(world.start())
    world.agent_up()
    world.running(job)
    wake = Wake()
    world.write(_settle_ending, Ending(agent_id=AGENT, detail="exit 137"), wake, Backoff(), blamed=True)
    after = world.only(job.run_id)
    assert (after.state, after.reason, after.detail) == (JobState.FAILED, Reason.INSTANCE_LOST, "exit 137")
    leader.run()
    assert (world.provision().state, world.provision().release_reason) == (ProvisionState.RELEASING, "instance-ended")
    world.write(_settle_ending, Ending(agent_id=AGENT, detail="again"), Wake(), Backoff(), blamed=True)
    assert world.read(pool_health_rows.every) == (), "an agent that had come up is no failure of its pool"


# --- giving up ---------------------------------------------------------------------------------------------


def test_what_nothing_could_ever_run_fails_after_its_time_naming_the_nearest(world: World) -> None:
    leader = Leader(world, pool(labels="linux"), pool("other", "mac"))
    job = world.only(world.start(a_spec(runs_on=("linux", "gpu"))))
    leader.run()
    assert leader.why(job.id)[-1] == "it waits: no pool fits; the nearest is p: p lacks 'gpu'"
    world.clock.pass_time(119)
    leader.run()
    assert world.only(job.run_id).state is JobState.QUEUED
    world.clock.pass_time(1)
    leader.run()
    after = world.only(job.run_id)
    assert (after.state, after.reason) == (JobState.FAILED, Reason.UNROUTABLE)
    assert after.detail == "no pool fits; the nearest is p: p lacks 'gpu'"
    assert world.run(job.run_id).reason == Reason.UNROUTABLE
    view = world.read(queries.why, job.id, leader.pools, leader.scaler.reasons)
    assert view.fix == "add the label gpu to pool p, or take it out of the job's runs_on"
    assert view.sentences[-1].startswith("it ended failed because of unroutable")


def test_the_time_starts_again_when_a_pool_comes(world: World) -> None:
    leader = Leader(world, pool(labels="mac"))
    job = world.only(world.start())
    leader.run()
    assert world.only(job.run_id).unroutable_since == START
    world.clock.pass_time(60)
    leader.pools = (pool(labels="mac"), pool("new", "linux", most=0))
    leader.run()
    assert world.only(job.run_id).unroutable_since is None
    leader.pools = (pool(labels="mac"),)
    world.clock.pass_time(61)
    leader.run()
    assert world.only(job.run_id).state is JobState.QUEUED


def test_at_once_where_so_asked(world: World) -> None:
    leader = Leader(world, pool(labels="mac"), unroutable_after=0.0)
    job = world.only(world.start())
    leader.run()
    assert world.only(job.run_id).reason == Reason.UNROUTABLE


def test_a_static_agent_that_is_away_is_waited_for(world: World) -> None:
    leader = Leader(world, pool(labels="mac"), unroutable_after=0.0)
    world.write(agents.add, id=AgentId("s"), pool="", kind="static", labels=frozenset({"linux"}), project="local")
    job = world.only(world.start())
    leader.run()
    assert world.only(job.run_id).state is JobState.QUEUED


def test_enough_instances_made_in_vain(world: World) -> None:
    leader = Leader(world, pool(most=99), caps=Caps(creates_per_job=2))
    job = world.only(world.start())
    for _ in range(2):
        leader.run()
        row = next(r for r in world.read(provisions_rows.live) if r.state is ProvisionState.REQUESTED)
        world.write(provisions_rows.write, row, failed_at=START, error="no such image")
        world.write(scaler.note_failure, row, "no such image", Backoff())
        world.clock.pass_time(900)
    leader.run()
    after = world.only(job.run_id)
    assert (after.state, after.reason) == (JobState.FAILED, Reason.CREATES_EXHAUSTED)
    assert after.detail == (
        "2 instances were made for this job and none of them ran it; last error of pool p: no such image"
    )


def test_a_job_of_many_tries_may_use_as_many_instances(world: World) -> None:
    leader = Leader(world, pool(most=99), caps=Caps(creates_per_job=2))
    job = world.only(world.start(a_spec(retry=RetrySpec(attempts=4, delay=0.0))))
    for number in range(1, 5):
        leader.run()
        assert world.only(job.run_id).state is JobState.QUEUED, world.only(job.run_id).detail
        name = f"agent_{number}"
        world.agent_up(name)
        world.running(world.only(job.run_id), name)
        world.finish(job, Result.FAILED, Reason.EXIT_CODE, attempt=number, agent_id=name)
    assert world.only(job.run_id).reason == Reason.EXIT_CODE


# --- what is shown -----------------------------------------------------------------------------------------


def test_why_tells_the_whole_story(world: World) -> None:
    leader = Leader(world)
    job = world.only(world.start())
    assert leader.why(job.id)[-1] == "it waits: waiting for an agent"
    leader.run()
    assert leader.why(job.id)[-1] == "it waits: an agent for it is coming up"
    (row,) = world.read(provisions_rows.live)
    world.clock.pass_time(1)
    code = leader.sealer.open(world.read(provisions_rows.sealed_claim, row.agent_id) or b"", row.agent_id).reveal()
    world.hello(row.agent_id, claim=code)
    world.offer(job, row.agent_id)
    assert leader.why(job.id)[-1] == "it waits: an agent has been asked"
    world.accept(job.id, agent_id=row.agent_id)
    world.clock.pass_time(1)
    world.finish(job, Result.FAILED, Reason.EXIT_CODE, agent_id=row.agent_id, detail="exit 3")
    world.clock.pass_time(1)
    leader.run()
    world.write(provisions_rows.advance, world.provision(row.agent_id), ProvisionEvent.GONE)
    told = [sentence.split(" ", 1)[1] if sentence[:2] == "20" else sentence for sentence in leader.why(job.id)]
    assert told == [
        f"created with run {job.run_id}",
        f"instance {row.agent_id} was asked for in pool p (process)",
        f"its agent {row.agent_id} registered",
        f"attempt 1 was offered to agent {row.agent_id}",
        "attempt 1 was accepted and started",
        "attempt 1 ended failed (exit_code: exit 3)",
        "the instance was released: job-complete",
        "the instance is confirmed gone",
        "it ended failed because of exit_code: exit 3",
    ]


def test_a_job_that_needs_others_says_which(world: World) -> None:
    leader = Leader(world)
    run_id = world.start(a_spec("a"), a_spec("b", needs=(NeedSpec(job="a"),)), a_spec("m", max_parallel=1))
    assert leader.why(world.jobs(run_id)["b"].id)[-1] == "it waits: needs a"


@pytest.mark.parametrize(
    ("pools", "caps", "fix"),
    [
        ((pool(most=0),), Caps(), "raise max_agents of pool p, or wait for one of its agents"),
        ((pool(),), Caps(max_agents=0), "raise the cluster's max_agents, or wait for an agent to end"),
        ((pool(draining=True),), Caps(), "wait for another pool, or end the drain"),
        ((pool(labels="linux gpu", mandatory=frozenset({"gpu"})),), Caps(), "name gpu in the job's runs_on"),
        ((pool(labels="mac"),), Caps(), "add the label linux to pool p, or take it out of the job's runs_on"),
    ],
)
def test_the_smallest_change_that_would_run_it(world: World, pools: tuple[Pool, ...], caps: Caps, fix: str) -> None:
    leader = Leader(world, *pools, caps=caps)
    job = world.only(world.start())
    leader.run()
    assert world.read(queries.why, job.id, pools, leader.scaler.reasons).fix == fix


def test_seconds_are_of_the_try_in_hand(world: World) -> None:
    leader = Leader(world)
    run_id = world.start(a_spec(retry=RetrySpec(attempts=2, delay=0.0)))
    job = world.only(run_id)
    world.clock.pass_time(2)
    leader.run()
    (row,) = world.read(provisions_rows.live)
    world.clock.pass_time(3)
    code = leader.sealer.open(world.read(provisions_rows.sealed_claim, row.agent_id) or b"", row.agent_id).reveal()
    world.hello(row.agent_id, claim=code)
    world.running(job, row.agent_id)
    world.clock.pass_time(4)
    view = world.read(queries.full_job, job.id, leader.scaler.reasons, LastLines())
    assert (view.queued, view.provisioned, view.running, view.total) == (2.0, 3.0, 4.0, 9.0)
    world.finish(job, Result.FAILED, Reason.EXIT_CODE, agent_id=row.agent_id)
    world.clock.pass_time(1)
    view = world.read(queries.full_job, job.id, leader.scaler.reasons, LastLines())
    assert (view.state, view.queued, view.running) == ("queued", 1.0, None)
    assert [attempt.state for attempt in view.attempts] == ["failed"]


def test_pools_count_what_they_hold(world: World) -> None:
    leader = Leader(world, pool(most=2))
    run_id = world.start(a_spec("m", matrix=tuple({"n": n} for n in range(4))))
    world.agent_up()
    world.agent_up("agent_2")
    world.running(world.jobs(run_id)["m (0)"])
    leader.run()
    (view,) = world.read(queries.pool_views, leader.pools, leader.scaler.reasons, {"process": "none"})
    assert (view.agents, view.busy, view.idle, view.queued) == (2, 1, 1, 3)
    assert view.waiting_reason == "pool p has its 2 agents"
