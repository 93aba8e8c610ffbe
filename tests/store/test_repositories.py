# SPDX-License-Identifier: Apache-2.0
"""Repositories over every database: each write is a compare-and-set, and a stale writer writes nothing."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, insert, text

from corral.model.errors import Conflict, CorralError, StoreUnavailable
from corral.model.ids import AgentId, JobId, RunId, TokenId
from corral.model.states import (
    AgentState,
    AttemptEvent,
    AttemptState,
    JobEvent,
    JobState,
    ProvisionEvent,
    ProvisionState,
    RunEvent,
    RunState,
    StepEvent,
    StepState,
)
from corral.store.repo import agents, installation, jobs, runs, secrets, tokens
from corral.store.repo import claims as claims_rows
from corral.store.repo import lease as lease_rows
from corral.store.repo import pool_health as pool_health_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.tables import claims
from tests.clocks import START
from tests.store.databases import AGENT, FACTS, JOB, RUN, Hand, a_spec, add_agent, add_job, add_run, found, job_row

SECOND = 1_000_000


def rows(db: Hand, table: str) -> int:
    count: int = db.read(lambda c: c.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())
    return count


# --- transactions ------------------------------------------------------------------------------------------


def test_an_error_writes_nothing_and_reaches_the_caller(db: Hand) -> None:
    def fail(connection: Connection) -> None:
        add_job(connection)
        raise Conflict("changed my mind")

    with pytest.raises(Conflict, match="changed my mind"):
        db.write(fail)
    assert rows(db, "runs") == rows(db, "jobs") == 0


def test_a_refused_constraint_is_an_error_of_ours(db: Hand) -> None:
    db.write(add_job)
    for broken in (
        lambda c: jobs.add_all(c, [job_row(ordinal=1)]),
        lambda c: jobs.add_all(c, [job_row("job_2", "no-such-run")]),
        lambda c: c.execute(text("UPDATE jobs SET state = 'asleep'")),
    ):
        with pytest.raises(CorralError) as caught:
            db.write(broken)
        assert "UNIQUE" not in str(caught.value) and "constraint" in str(caught.value)
    assert (rows(db, "jobs"), db.job().state) == (1, JobState.QUEUED)


def test_a_read_sees_what_was_written_before(db: Hand) -> None:
    db.write(add_job)
    assert db.job().spec == a_spec()
    assert db.job().labels == {"linux"}


def test_the_database_has_the_clock_it_was_given(db: Hand) -> None:
    assert db.read(installation.now) == START
    db.clock.pass_time(1.5)
    assert db.read(installation.now) == START + 1_500_000


def test_a_closed_database_says_so(db: Hand) -> None:
    if type(db.database).__name__ == "InlineDatabase":
        pytest.skip("memory is kept over a simulated restart")
    db.runner.run(db.database.close())
    db.runner.run(db.database.close())
    with pytest.raises(StoreUnavailable):
        db.write(installation.now)
    with pytest.raises(StoreUnavailable):
        db.read(installation.now)


# --- runs --------------------------------------------------------------------------------------------------


def test_a_run_moves_once(db: Hand) -> None:
    db.write(add_run)
    stale = db.run()
    assert db.write(runs.advance, stale, RunEvent.START)
    assert not db.write(runs.advance, stale, RunEvent.CANCEL)
    assert not db.write(runs.advance, db.run(), RunEvent.START), "ignored: nothing moves"
    assert (db.run().state, db.run().version) == (RunState.RUNNING, 2)


def test_the_first_reason_of_a_cancel_stays_and_force_is_never_taken_back(db: Hand) -> None:
    db.write(add_run)
    db.write(runs.request_cancel, RUN, force=True, reason="cancelled")
    assert db.run().cancel_force
    db.write(runs.request_cancel, RUN, force=False, reason="run_timeout")
    run = db.run()
    assert (run.cancel_reason, run.cancel_force, run.cancel_requested_at) == ("cancelled", True, START)


def test_pages_newest_first_without_gap_or_twin(db: Hand) -> None:
    for number in range(7):
        db.write(add_run, f"run_{number}")
        db.clock.pass_time(number % 2)
    seen: list[str] = []
    before: tuple[int, str] | None = None
    while page := db.read(runs.page, "local", before, 2):
        seen += [run.id for run in page]
        before = (page[-1].created_at, page[-1].id)
    assert seen == [f"run_{number}" for number in reversed(range(7))]
    assert db.read(runs.page, "other", None, 9) == ()


def test_only_ended_runs_are_forgotten_and_all_that_hangs_on_them(db: Hand) -> None:
    db.write(add_job)
    db.write(secrets.add_all, RUN, {"A": b"sealed"})
    assert db.write(runs.forget, [RUN]) == 0
    db.write(runs.advance, db.run(), RunEvent.FAIL)
    assert db.write(runs.forget, [RUN, RunId("other")]) == 1
    assert [rows(db, table) for table in ("runs", "jobs", "secrets")] == [0, 0, 0]


# --- jobs and attempts -------------------------------------------------------------------------------------


def test_a_job_moves_from_the_version_it_was_read_in(db: Hand) -> None:
    db.write(add_job)
    stale = db.job()
    assert db.write(jobs.change, stale, offers=3)
    assert not db.write(jobs.advance, stale, JobEvent.OFFER)
    assert not db.write(jobs.change, stale, offers=4)
    assert (db.job().state, db.job().offers, db.job().version) == (JobState.QUEUED, 3, 2)
    assert db.write(jobs.advance, db.job(), JobEvent.OFFER, attempt=1)
    assert not db.write(jobs.advance, db.job(), JobEvent.READY), "ignored: nothing moves"


def test_what_ends_and_what_is_queued_again_is_dated(db: Hand) -> None:
    db.write(add_job)
    db.clock.pass_time(5)
    db.write(jobs.advance, db.job(), JobEvent.OFFER, attempt=1, agent_id=AGENT)
    db.write(jobs.advance, db.job(), JobEvent.START, started_at=START, deadline_at=START + 9)
    db.write(jobs.advance, db.job(), JobEvent.RETRY)
    job = db.job()
    assert (job.queued_at, job.ready_at, job.agent_id) == (START + 5 * SECOND, START + 5 * SECOND, None)
    assert (job.started_at, job.deadline_at) == (None, None), "it does not run any more"
    db.write(jobs.advance, job, JobEvent.FAIL)
    assert db.job().finished_at == START + 5 * SECOND


def test_an_attempt_moves_from_the_state_it_was_read_in(db: Hand) -> None:
    db.write(add_job)
    db.write(jobs.add_attempt, job_id=JOB, number=1, agent_id=AGENT, boot_id="b", deadline=10 * SECOND)
    stale = db.attempt()
    assert stale.offer_deadline_at == START + 10 * SECOND
    assert db.write(jobs.advance_attempt, stale, AttemptEvent.START)
    assert not db.write(jobs.advance_attempt, stale, AttemptEvent.WITHDRAW)
    assert db.write(jobs.advance_attempt, db.attempt(), AttemptEvent.SUCCEED)
    assert not db.write(jobs.advance_attempt, db.attempt(), AttemptEvent.LOSE), "terminal absorbs"
    assert (db.attempt().state, db.attempt().finished_at) == (AttemptState.SUCCEEDED, START)


def test_steps_are_made_by_the_first_news_of_them(db: Hand) -> None:
    db.write(add_job)
    assert db.write(jobs.advance_step, JOB, 1, 0, StepEvent.SUCCEED, log_size=7)
    assert not db.write(jobs.advance_step, JOB, 1, 0, StepEvent.START)
    assert not db.write(jobs.advance_step, JOB, 1, 0, StepEvent.FAIL)
    assert db.write(jobs.advance_step, JOB, 1, 1, StepEvent.START)
    (first, second) = db.read(jobs.steps_of, JOB, 1)
    assert (first.state, first.log_size, second.state) == (StepState.SUCCEEDED, 7, StepState.RUNNING)


def test_the_queue_is_served_longest_waiting_first_and_only_when_ready(db: Hand) -> None:
    db.write(add_run)
    waits = [("late", 5, 0), ("first", 1, 1), ("second", 3, 2)]
    db.write(jobs.add_all, [job_row(name, ordinal=n, queued_at=START + at * SECOND) for name, at, n in waits])
    assert db.read(jobs.queued_heads, 9) == ()
    db.clock.pass_time(5)
    assert [head.id for head in db.read(jobs.queued_heads, 9)] == ["first", "second", "late"]
    assert [head.id for head in db.read(jobs.queued_heads, 1)] == ["first"]


def test_a_crowd_that_asks_for_the_same_stands_in_nobodys_way(db: Hand) -> None:
    db.write(add_run)
    crowd = [job_row(f"gpu-{n}", ordinal=n, spec=a_spec(f"gpu-{n}", runs_on=("gpu",))) for n in range(50)]
    behind = job_row("behind", ordinal=50, queued_at=START + SECOND)
    db.write(jobs.add_all, [*crowd, behind])
    db.clock.pass_time(2)
    assert [head.id for head in db.read(jobs.queued_heads, 2)] == ["gpu-0", "gpu-1", "behind"]
    assert [head.id for head in db.read(jobs.queued_heads, 1, [JobId("gpu-49"), JobId("gone")])] == [
        "gpu-0",
        "gpu-49",
        "behind",
    ]


def test_unroutable_since_is_kept_from_the_first_time(db: Hand) -> None:
    db.write(add_job)
    db.write(jobs.mark_unroutable, [JOB])
    db.clock.pass_time(3)
    db.write(jobs.mark_unroutable, [JOB])
    assert db.job().unroutable_since == START
    db.write(jobs.clear_unroutable, [JOB])
    assert db.job().unroutable_since is None


def test_overdue_jobs(db: Hand) -> None:
    db.write(add_job)
    queue_timeout = 60 * SECOND
    db.clock.pass_time(60)
    assert db.read(jobs.overdue, queue_timeout=queue_timeout) == ()
    db.clock.pass_time(0.000001)
    assert [job.id for job in db.read(jobs.overdue, queue_timeout=queue_timeout)] == [JOB]


# --- agents ------------------------------------------------------------------------------------------------


def offer(connection: Connection, session: int = 1, job: str = JOB, attempt: int = 1) -> bool:
    return agents.assign(connection, AGENT, session=session, job_id=JobId(job), attempt=attempt)


def test_offer_then_cordon(db: Hand) -> None:
    db.write(add_agent)
    assert db.write(offer)
    assert not db.write(agents.cordon, AGENT, "idle")
    assert (db.agent().assignment, db.agent().cordon_reason) == (JOB, None)


def test_cordon_then_offer(db: Hand) -> None:
    db.write(add_agent)
    assert db.write(agents.cordon, AGENT, "idle")
    assert not db.write(offer)
    assert not db.write(agents.cordon, AGENT, "drain"), "the first reason stays"
    assert (db.agent().assignment, db.agent().cordon_reason) == (None, "idle")


def test_an_agent_is_offered_one_job_at_a_time_over_its_own_session(db: Hand) -> None:
    db.write(add_agent)
    assert not db.write(offer, session=2)
    assert db.write(offer)
    assert not db.write(offer, job="job_2")
    db.write(agents.unassign, AGENT, job_id=JOB, attempt=1)
    db.write(agents.disconnect, AGENT, 1)
    assert not db.write(offer, job="job_2"), "it is away"


def test_an_agent_is_freed_of_that_attempt_only(db: Hand) -> None:
    db.write(add_agent)
    db.write(offer, attempt=2)
    assert not db.write(agents.unassign, AGENT, job_id=JOB, attempt=1)
    assert not db.write(agents.unassign, AGENT, job_id=JobId("job_2"), attempt=2)
    assert db.write(agents.unassign, AGENT, job_id=JOB, attempt=2, cordon="job-complete")
    agent = db.agent()
    assert (agent.assignment, agent.cordon_reason, agent.ever_assigned) == (None, "job-complete", True)


def test_the_newer_session_wins(db: Hand) -> None:
    db.write(add_agent)
    before = db.agent()
    again = {
        "coordinator_id": "coord_1",
        "boot_id": "boot",
        "number": 2,
        "facts": FACTS,
        "labels": frozenset({"linux"}),
    }
    assert db.write(agents.register, before, **again) == 2
    assert db.write(agents.register, before, **again) is None, "the row has changed since it was read"
    assert not db.write(agents.disconnect, AGENT, 1), "an older session's end is no news"
    assert db.agent().state is AgentState.ONLINE
    assert db.write(agents.disconnect, AGENT, 2)
    assert db.agent().state is AgentState.OFFLINE


def test_every_registration_knock_and_cordon_raises_the_version(db: Hand) -> None:
    db.write(add_agent)
    versions = [db.agent().version]
    for change in (lambda c: agents.knock(c, AGENT), lambda c: agents.cordon(c, AGENT, "idle"), lambda c: offer(c)):
        db.write(change)
        versions.append(db.agent().version)
    assert versions[1] == versions[0] + 1 and versions[2] == versions[1] + 1
    assert versions[3] == versions[2], "a refused offer changes nothing"


def test_an_ended_agent_never_registers_again(db: Hand) -> None:
    db.write(add_agent)
    db.write(agents.end, AGENT)
    again = {"coordinator_id": "c", "boot_id": "b", "number": 2, "facts": FACTS, "labels": frozenset()}
    assert db.write(agents.register, db.agent(), **again) is None
    assert db.read(agents.live) == ()


def test_missed_acknowledgements_in_a_row(db: Hand) -> None:
    db.write(add_agent)
    assert [db.write(agents.missed_ack, AGENT) for _ in range(2)] == [1, 2]
    db.write(agents.answered, AGENT)
    assert db.write(agents.missed_ack, AGENT) == 1


# --- claims ------------------------------------------------------------------------------------------------


def test_a_claim_binds_one_key_and_the_same_again(db: Hand) -> None:
    db.write(add_agent, online=False)
    db.write(claims_rows.add, digest="claim", agent_id=AGENT, prefix="c")
    assert db.write(claims_rows.redeem, digest="claim", agent_id=AGENT, key_digest="k1")
    db.clock.pass_time(1)
    assert db.write(claims_rows.redeem, digest="claim", agent_id=AGENT, key_digest="k1"), "a lost answer is asked again"
    assert not db.write(claims_rows.redeem, digest="claim", agent_id=AGENT, key_digest="k2")
    assert not db.write(claims_rows.redeem, digest="claim", agent_id=AgentId("other"), key_digest="k1")
    assert not db.write(claims_rows.redeem, digest="none", agent_id=AGENT, key_digest="k1")
    assert db.agent().key_digest == "k1"
    assert db.read(claims_rows.owner, "claim") == (AGENT, "k1")
    assert db.read(claims_rows.owner, "none") is None
    redeemed = db.read(lambda c: c.execute(text("SELECT redeemed_at FROM claims")).scalar_one())
    assert redeemed == START


# --- provisions --------------------------------------------------------------------------------------------


def test_a_provision_moves_from_the_version_it_was_read_in(db: Hand) -> None:
    db.write(add_agent)
    stale = db.provision()
    assert db.write(provisions_rows.write, stale, provider_id="x")
    assert not db.write(provisions_rows.advance, stale, ProvisionEvent.RELEASE)
    assert not db.write(provisions_rows.write, stale, provider_id="y")
    assert db.write(provisions_rows.advance, db.provision(), ProvisionEvent.RELEASE, release_reason="idle")
    row = db.provision()
    assert (row.state, row.release_reason, row.released_at) == (ProvisionState.RELEASING, "idle", START)
    assert not db.write(provisions_rows.advance, row, ProvisionEvent.RELEASE), "ignored: nothing moves"


def test_only_what_is_gone_frees_its_slot(db: Hand) -> None:
    db.write(add_agent)
    counts = [db.read(provisions_rows.count_live, "p")]
    for happening in (ProvisionEvent.RELEASE, ProvisionEvent.EXHAUSTED, ProvisionEvent.RETRY, ProvisionEvent.GONE):
        db.write(provisions_rows.advance, db.provision(), happening)
        counts.append(db.read(provisions_rows.count_live, "p"))
    assert counts == [1, 1, 1, 1, 0]
    assert db.read(provisions_rows.count_live, "other") == 0


def test_the_sealed_claim_is_wiped_once_it_is_not_needed(db: Hand) -> None:
    for name in ("a", "b"):
        db.write(agents.add, id=AgentId(name), pool="p", kind="provisioned", labels=frozenset(), project="local")
        db.write(
            provisions_rows.add,
            agent_id=AgentId(name),
            pool="p",
            backend="process",
            labels=frozenset(),
            cause="job",
            claim_sealed=b"x",
        )
    db.write(provisions_rows.config_acked, AgentId("a"))
    assert db.read(provisions_rows.sealed_claim, AgentId("a")) is None
    assert db.read(provisions_rows.sealed_claim, AgentId("b")) == b"x"
    db.write(provisions_rows.advance, db.provision("b"), ProvisionEvent.UNSENT)
    assert db.read(provisions_rows.sealed_claim, AgentId("b")) is None


def test_rows_of_the_gone_are_purged_after_their_time_with_agent_and_claim(db: Hand) -> None:
    db.write(add_agent)
    db.write(lambda c: c.execute(insert(claims).values(digest="d", agent_id=AGENT, prefix="", created_at=START)))
    db.write(provisions_rows.advance, db.provision(), ProvisionEvent.RELEASE)
    db.write(provisions_rows.advance, db.provision(), ProvisionEvent.GONE)
    db.clock.pass_time(60)
    assert db.write(provisions_rows.purge_gone, 60 * SECOND) == 0
    db.clock.pass_time(1)
    assert db.write(provisions_rows.purge_gone, 60 * SECOND) == 1
    assert [rows(db, table) for table in ("provisions", "agents", "claims")] == [0, 0, 0]


def test_an_ending_is_noted_once(db: Hand) -> None:
    db.write(add_agent)
    assert db.write(provisions_rows.note_ended, AGENT, "exit 3")
    assert not db.write(provisions_rows.note_ended, AGENT, "exit 4")
    assert db.provision().error == "exit 3"


def test_pool_health_counts_in_a_row(db: Hand) -> None:
    db.write(pool_health_rows.failed, "p", "first", 30 * SECOND)
    db.write(pool_health_rows.failed, "p", "second", 60 * SECOND)
    (row,) = db.read(pool_health_rows.every)
    assert (row.failures, row.last_error, row.backoff_until) == (2, "second", START + 60 * SECOND)
    db.write(pool_health_rows.succeeded, "p")
    assert db.read(pool_health_rows.every) == ()


# --- the installation --------------------------------------------------------------------------------------


def test_a_new_term_raises_the_epoch_and_fences_the_old(db: Hand) -> None:
    first = db.write(lease_rows.take, "leader", "one")
    db.write(lease_rows.fence, "leader", "one", first)
    second = db.write(lease_rows.take, "leader", "one")
    assert second > first
    db.write(lease_rows.fence, "leader", "one", second)
    for holder, epoch in (("one", first), ("two", second)):
        with pytest.raises(Conflict):
            db.write(lease_rows.fence, "leader", holder, epoch)


def test_a_deposed_leader_commits_nothing(db: Hand) -> None:
    epoch = db.write(lease_rows.take, "leader", "one")
    db.write(lease_rows.take, "leader", "two")

    def late(connection: Connection) -> None:
        add_run(connection)
        lease_rows.fence(connection, "leader", "one", epoch)

    with pytest.raises(Conflict):
        db.write(late)
    assert rows(db, "runs") == 0


def test_facts_are_made_once(db: Hand) -> None:
    assert db.write(installation.fact, "cluster_id", "a") == "a"
    assert db.write(installation.fact, "cluster_id", "b") == "a"


def test_tokens(db: Hand) -> None:
    db.write(tokens.add, id=TokenId("t1"), name="n", role="admin", digest="d", prefix="p", project="local")
    assert found(db.read(tokens.by_digest, "d")).id == "t1"
    assert db.read(tokens.is_last, TokenId("t1"), "admin")
    db.write(tokens.add, id=TokenId("t2"), name="n", role="admin", digest="e", prefix="p", project="local")
    assert not db.read(tokens.is_last, TokenId("t1"), "admin")
    assert db.write(tokens.revoke, TokenId("t1"))
    assert not db.write(tokens.revoke, TokenId("t1"))
    assert db.read(tokens.by_digest, "d") is None
    assert db.read(tokens.is_last, TokenId("t2"), "admin")


def test_the_key_of_a_static_agent_opens_no_api(db: Hand) -> None:
    db.write(
        tokens.add, id=TokenId("t"), name="n", role="agent", digest="d", prefix="p", project="local", agent_id=AGENT
    )
    assert db.read(tokens.by_digest, "d") is None


def test_secrets_are_wiped(db: Hand) -> None:
    db.write(add_run)
    db.write(secrets.add_all, RUN, {"A": b"1", "B": b"2"})
    assert db.read(secrets.of_run, RUN) == {"A": b"1", "B": b"2"}
    assert db.write(secrets.wipe, RUN) == 2
    assert db.read(secrets.of_run, RUN) == {}


def test_jobs_of_provisioners_come_before_all_others_and_behind_no_crowd(db: Hand) -> None:
    """What releases capacity must not wait behind what wants it."""
    db.write(add_run)
    crowd = [job_row(f"j-{n}", ordinal=n, spec=a_spec(f"j-{n}")) for n in range(5)]
    last = {**job_row("release", ordinal=9, spec=a_spec("release"), queued_at=START + SECOND), "provisioning": True}
    db.write(jobs.add_all, crowd)
    db.write(jobs.add_all, [last])
    db.clock.pass_time(2)
    heads = db.read(jobs.queued_heads, 2)
    assert [(head.id, head.provisioning) for head in heads] == [("release", True), ("j-0", False), ("j-1", False)]
