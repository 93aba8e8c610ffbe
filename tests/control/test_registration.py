# SPDX-License-Identifier: Apache-2.0
"""Who may come in, and what becomes of each job it holds."""

from __future__ import annotations

from typing import Any

import pytest

from corral.control import settle
from corral.control.registration import CLAIM_MARGIN, CLAIM_MEMORY, Registered, Turned, digest
from corral.control.settle import Wake
from corral.decide.matching import Size
from corral.model.ids import AgentId, TokenId
from corral.model.spec import OnLost, Reason, Result
from corral.model.states import AgentState, AttemptState, JobState, ProvisionEvent, ProvisionState
from corral.store.repo import agents, tokens
from corral.store.repo import pool_health as pool_health_rows
from corral.store.repo import provisions as provisions_rows
from corral.wire.messages import Action, Facts, HeldState, RefusedCode
from tests.clocks import START
from tests.control.worlds import SECOND, World, held
from tests.store.databases import AGENT, FACTS, a_spec


def turned(outcome: Registered | Turned) -> tuple[RefusedCode, bool]:
    assert isinstance(outcome, Turned), outcome
    assert outcome.message
    return outcome.code, outcome.verified


def welcomed(outcome: Registered | Turned) -> Registered:
    assert isinstance(outcome, Registered), outcome
    return outcome


def moved(world: World, *events: ProvisionEvent) -> None:
    for happening in events:
        assert world.write(provisions_rows.advance, world.provision(), happening)


# --- by claim ----------------------------------------------------------------------------------------------


def test_a_claim_lets_in_once_and_makes_the_provision_active(world: World) -> None:
    world.claim()
    world.clock.pass_time(7)
    welcome = welcomed(world.hello(claim="claim-code"))
    assert (welcome.session, welcome.single_use, welcome.releasing, welcome.answers) == (1, True, False, ())
    assert welcome.labels == {"linux", "corral:os:linux", "corral:arch:x86_64", "corral:host:h1"}
    agent, provision = world.agent(), world.provision()
    assert (agent.state, agent.key_digest, agent.knocked_at) == (
        AgentState.ONLINE,
        digest(f"key-{AGENT}"),
        world.clock.now(),
    )
    assert (provision.state, provision.adopted_by, provision.adopted_at) == (
        ProvisionState.ACTIVE,
        "coord_1",
        world.clock.now(),
    )
    assert provision.deadline_at == world.clock.now() + CLAIM_MARGIN


def test_the_size_of_its_instance_goes_with_the_agent(world: World) -> None:
    world.claim(cpu=2.0, memory=100)
    assert welcomed(world.hello(claim="claim-code")).size == Size(cpu=2.0, memory=100)


def test_a_longer_deadline_is_kept(world: World) -> None:
    world.claim(deadline_at=START + 999 * SECOND, sent_at=START)
    welcomed(world.hello(claim="claim-code"))
    assert world.provision().deadline_at == START + 999 * SECOND


def test_a_claim_can_be_redeemed_past_its_deadline_while_it_is_wanted(world: World) -> None:
    world.claim(deadline_at=START, sent_at=START)
    world.clock.pass_time(500)
    welcomed(world.hello(claim="claim-code"))


def test_a_lost_answer_is_asked_again_with_the_same_key(world: World) -> None:
    world.claim()
    assert welcomed(world.hello(claim="claim-code")).session == 1
    assert welcomed(world.hello(claim="claim-code")).session == 2


def test_another_key_is_refused_by_a_spent_claim(world: World) -> None:
    world.claim()
    welcomed(world.hello(claim="claim-code"))
    assert turned(world.hello(claim="claim-code", key="another")) == (RefusedCode.USED, True)
    assert world.agent().key_digest == digest(f"key-{AGENT}")


def test_a_key_that_another_agent_has_binds_nothing(world: World) -> None:
    """Two copies of one machine image with a key inside."""
    world.claim("agent_a", "code-a")
    world.claim("agent_b", "code-b")
    welcomed(world.hello("agent_a", key="same", claim="code-a"))
    assert turned(world.hello("agent_b", key="same", claim="code-b")) == (RefusedCode.USED, True)
    assert world.agent("agent_b").key_digest is None
    welcomed(world.hello("agent_b", key="own", claim="code-b"))


@pytest.mark.parametrize(
    ("agent_id", "key", "claim"),
    [
        ("agent_x", "k", ""),
        ("agent_x", "k", "claim-code"),
        (AGENT, "k", ""),
        (AGENT, "k", "wrong"),
        (AGENT, "", ""),
        ("agent_2", "k", "claim-code"),
    ],
)
def test_what_does_not_verify_is_unknown_and_counted(world: World, agent_id: str, key: str, claim: str) -> None:
    world.claim()
    world.claim("agent_2", "other")
    assert turned(world.hello(agent_id, key=key, claim=claim)) == (RefusedCode.UNKNOWN, False)
    assert world.agent().knocked_at is None


@pytest.mark.parametrize(("spent", "code"), [(True, RefusedCode.USED), (False, RefusedCode.EXPIRED)])
def test_the_redeemer_of_an_ended_claim_is_told_for_an_hour(world: World, spent: bool, code: RefusedCode) -> None:
    world.claim()
    if spent:
        welcomed(world.hello(claim="claim-code"))
    moved(world, ProvisionEvent.RELEASE)
    before = world.agent().knocked_at
    assert turned(world.hello(claim="claim-code", key="another")) == (code, True)
    assert world.agent().knocked_at == before, "no knock: it is being destroyed anyway"
    world.clock.pass_time(CLAIM_MEMORY / SECOND)
    assert turned(world.hello(claim="claim-code", key="another")) == (code, True)
    world.clock.pass_time(1)
    assert turned(world.hello(claim="claim-code", key="another")) == (RefusedCode.UNKNOWN, False)


@pytest.mark.parametrize("last", [ProvisionEvent.GONE, ProvisionEvent.EXHAUSTED])
def test_the_redeemer_of_a_gone_ones_claim_counts_as_a_knock(world: World, last: ProvisionEvent) -> None:
    """It shows that the instance exists, so it is destroyed again."""
    world.claim()
    moved(world, ProvisionEvent.RELEASE, last)
    world.clock.pass_time(5000)
    assert turned(world.hello(claim="claim-code")) == (RefusedCode.UNKNOWN, False), "more than an hour later"
    assert world.agent().knocked_at == world.clock.now()
    assert world.provision().state is ProvisionState.RELEASING


def test_the_hour_begins_when_the_provision_leaves_requested(world: World) -> None:
    """Not when it is released, which may be a day later."""
    world.claim()
    welcomed(world.hello(claim="claim-code"))
    world.clock.pass_time(CLAIM_MEMORY / SECOND + 1)
    moved(world, ProvisionEvent.RELEASE)
    assert turned(world.hello(claim="claim-code", key="another")) == (RefusedCode.UNKNOWN, False)


def test_expired_used_and_unknown_in_so_many_words(world: World) -> None:
    def said(**how: str) -> str:
        found = world.hello(**how)  # type: ignore[arg-type]
        assert isinstance(found, Turned)
        return found.message

    world.claim("agent_a", "code-a")
    world.claim("agent_b", "code-b")
    welcomed(world.hello("agent_a", claim="code-a"))
    world.write(provisions_rows.advance, world.provision("agent_b"), ProvisionEvent.RELEASE)
    assert said(agent_id="agent_a", claim="code-a", key="x") == "this claim was already used by another agent process"
    assert said(agent_id="agent_b", claim="code-b") == "this claim has expired: its instance is not wanted any more"
    assert said(agent_id="agent_b", claim="code-x", key="x") == "no such agent, claim or key"


# --- by key ------------------------------------------------------------------------------------------------


def test_a_key_resumes_and_the_session_rises(world: World) -> None:
    world.agent_up()
    world.write(agents.disconnect, AGENT, 1)
    assert welcomed(world.hello()).session == 2
    assert world.agent().state is AgentState.ONLINE


def test_a_second_process_waits_while_the_first_is_connected(world: World) -> None:
    world.agent_up()
    assert turned(world.hello(boot="other")) == (RefusedCode.IN_USE, True)
    assert world.agent().session == 1
    world.write(agents.disconnect, AGENT, 1)
    welcomed(world.hello(boot="other"))


def test_the_agent_of_a_releasing_provision_may_only_flush(world: World) -> None:
    world.agent_up()
    world.write(agents.cordon, AGENT, "idle")
    moved(world, ProvisionEvent.RELEASE)
    welcome = welcomed(world.hello())
    assert welcome.releasing and welcome.cordoned


@pytest.mark.parametrize("events", [(ProvisionEvent.GONE,), (ProvisionEvent.EXHAUSTED,)])
def test_one_accounted_as_gone_is_refused_for_good_and_destroyed_again(
    world: World, events: tuple[ProvisionEvent, ...]
) -> None:
    world.agent_up()
    moved(world, ProvisionEvent.RELEASE, *events)
    world.write(agents.end, AGENT)
    world.clock.pass_time(5)
    assert turned(world.hello()) == (RefusedCode.GONE, True)
    provision = world.provision()
    assert (provision.state, provision.gone_at, provision.release_attempts) == (ProvisionState.RELEASING, None, 0)
    assert provision.release_next_at == world.clock.now()
    assert world.agent().knocked_at == world.clock.now()
    assert turned(world.hello()) == (RefusedCode.GONE, True), "and again while it is being destroyed"


def test_a_revoked_static_agent(world: World) -> None:
    world.static()
    world.write(tokens.revoke, TokenId("tok_static"))
    world.write(agents.end, AgentId("static"))
    assert turned(world.hello("static")) == (RefusedCode.REVOKED, True)


def test_a_verified_hello_of_another_protocol_knocks_and_is_not_counted(world: World) -> None:
    world.agent_up()
    world.clock.pass_time(9)
    assert turned(world.hello(protocol=99)) == (RefusedCode.PROTOCOL, True)
    assert (world.agent().knocked_at, world.agent().session) == (world.clock.now(), 1)
    assert turned(world.hello(protocol=99, key="wrong")) == (RefusedCode.UNKNOWN, False)


def test_another_protocol_spends_no_claim(world: World) -> None:
    world.claim()
    assert turned(world.hello(protocol=99, claim="claim-code")) == (RefusedCode.PROTOCOL, True)
    assert world.agent().knocked_at == START
    welcomed(world.hello(claim="claim-code", key="a newer agent's"))


# --- labels ------------------------------------------------------------------------------------------------


def test_a_static_agent_has_the_labels_of_its_token_and_of_its_host(world: World) -> None:
    """60: labels are its token's; nothing on the agent's host has to name them, so nothing can name them wrong."""
    world.static()
    welcome = welcomed(world.hello("static", facts=Facts(os="Darwin", arch="arm64", host="Mac.Local", version="1")))
    assert welcome.labels == {"mac", "corral:os:darwin", "corral:arch:arm64", "corral:host:mac.local"}
    assert not welcome.single_use
    world.write(agents.disconnect, AgentId("static"), 1)
    moved_house = welcomed(world.hello("static", facts=Facts(os="linux", arch="arm64", host="h2", version="1")))
    assert moved_house.labels == {"mac", "corral:os:linux", "corral:arch:arm64", "corral:host:h2"}


@pytest.mark.parametrize("host", ["h gpu", "h\tgpu", "h\ngpu", "gpu\N{NO-BREAK SPACE}h", " gpu", "x" * 5000, "hä"])
def test_no_fact_gives_an_agent_a_label_of_its_own_choice(world: World, host: str) -> None:
    """Labels are stored separated by blanks; a fact with one would be two labels when it is read again."""
    world.static()
    facts = Facts(os="linux gpu", arch="x86_64", host=host, version="1")
    for _ in range(2):
        welcome = welcomed(world.hello("static", facts=facts))
        assert world.agent("static").labels == welcome.labels
        assert {label for label in welcome.labels if not label.startswith("corral:")} == {"mac"}
        assert all(len(label) < 200 for label in welcome.labels)
        world.write(agents.disconnect, AgentId("static"), welcome.session)


# --- jobs it holds -----------------------------------------------------------------------------------------


def answers(outcome: Registered | Turned) -> list[tuple[str, Action]]:
    return [(answer.job_id, answer.action) for answer in welcomed(outcome).answers]


def test_a_running_job_goes_on_from_the_last_stored_report(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.running(job)
    (answer,) = welcomed(world.hello(held=(held(job.id, sequence=9),))).answers
    assert (answer.action, answer.sequence, answer.run_id) == (Action.CONTINUE, 1, job.run_id)
    assert welcomed(world.hello(held=(held(job.id),))).assignment == (job.id, 1)


def test_a_committed_start_that_did_not_arrive_is_said_again(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.offer(job)
    world.accept(job.id)
    assert answers(world.hello(held=(held(job.id, HeldState.ACCEPTED),))) == [(job.id, Action.START)]


def test_an_accept_that_was_never_committed_is_dropped_and_the_job_queued_again(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.offer(job)
    welcome = welcomed(world.hello(held=(held(job.id, HeldState.ACCEPTED),)))
    assert [answer.action for answer in welcome.answers] == [Action.STOP]
    assert welcome.assignment is None and welcome.wake.queue
    after = world.only(job.run_id)
    assert (after.state, after.tries, after.offers) == (JobState.QUEUED, 0, 0)


def test_what_ended_meanwhile_and_what_was_never_its_own_is_stopped(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.agent_up("agent_2")
    world.running(job)
    foreign = world.hello("agent_2", held=(held(job.id), held("job_none")))
    assert answers(foreign) == [(job.id, Action.STOP), ("job_none", Action.STOP)]
    assert world.only(job.run_id).state is JobState.RUNNING, "somebody else's word changes nothing"
    world.finish(job)
    assert answers(world.hello(held=(held(job.id, HeldState.FINISHED),))) == [(job.id, Action.STOP)]


def test_the_same_process_without_its_started_job_never_began_it(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.offer(job)
    world.accept(job.id)
    welcome = welcomed(world.hello())
    assert welcome.assignment is None
    after = world.only(job.run_id)
    assert (after.state, after.tries) == (JobState.QUEUED, 0), "the try is given back"
    assert world.attempt(1, job.id).state is AttemptState.WITHDRAWN


@pytest.mark.parametrize(
    ("on_lost", "began", "state"),
    [
        (None, False, JobState.FAILED),
        (None, True, JobState.FAILED),
        (OnLost.FAIL, False, JobState.FAILED),
        (OnLost.WAIT, True, JobState.FAILED),
        (OnLost.RETRY, True, JobState.QUEUED),
    ],
)
def test_another_process_without_the_started_job_has_lost_it(
    world: World, on_lost: OnLost | None, began: bool, state: JobState
) -> None:
    job = world.only(world.start(a_spec(on_lost=on_lost)))
    world.agent_up()
    if began:
        world.running(job)
    else:
        world.offer(job)
        world.accept(job.id)
    world.write(agents.disconnect, AGENT, 1)
    welcome = welcomed(world.hello(boot="after a crash"))
    after = world.only(job.run_id)
    assert (after.state, after.reason) == (state, "" if state is JobState.QUEUED else Reason.AGENT_LOST)
    assert world.attempt(1, job.id).state is AttemptState.LOST
    assert welcome.assignment is None and welcome.cordoned


def test_the_same_process_that_dropped_a_job_it_had_begun_has_lost_it(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.running(job)
    welcomed(world.hello())
    assert world.only(job.run_id).reason == Reason.AGENT_LOST


def test_an_offer_in_flight_at_the_reconnect_is_queued_again(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.offer(job)
    welcome = welcomed(world.hello())
    assert welcome.assignment is None and welcome.wake.queue
    assert world.only(job.run_id).state is JobState.QUEUED


def test_a_job_cancelled_while_its_agent_was_away_goes_on_cancelling(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.running(job)
    world.cancel(job.run_id)
    assert answers(world.hello(held=(held(job.id),))) == [(job.id, Action.CONTINUE)]
    assert world.only(job.run_id).state is JobState.CANCELLING
    world.finish(job, Result.CANCELLED, Reason.CANCELLED)
    assert world.run(job.run_id).state == "cancelled"


def test_one_success_ends_a_pools_backoff(world: World) -> None:
    world.write(pool_health_rows.failed, "p", "it broke", 30 * SECOND)
    world.agent_up()
    assert world.read(pool_health_rows.every) == ()


def test_nothing_is_written_for_a_stranger(world: World) -> None:
    world.claim()
    rows: list[Any] = [world.agent(), world.provision()]
    world.hello(key="stranger")
    assert [world.agent(), world.provision()] == rows


def test_losing_a_job_leaves_no_agent_assigned(world: World) -> None:
    job = world.only(world.start())
    world.agent_up()
    world.running(job)
    world.write(settle.lose, world.attempt(1, job.id), Reason.AGENT_LOST, "", Wake(), instance_gone=False)
    assert (world.agent().assignment, world.agent().cordon_reason) == (None, "lost")
    assert welcomed(world.hello(facts=FACTS)).cordoned
