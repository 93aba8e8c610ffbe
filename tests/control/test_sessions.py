# SPDX-License-Identifier: Apache-2.0
"""Agents' sessions: who may come in, which of two counts, and what a silent or broken one costs."""

from __future__ import annotations

import hashlib

import pytest

from corral.control.offers import DEADLINE_MARGIN
from corral.control.scaler import FLUSH_LIMIT
from corral.control.session import FLUSH_GRACE
from corral.control.settle import CANCEL_GRACE, CANCEL_MARGIN, SECOND
from corral.model.ids import JobId, RunId
from corral.model.pools import Pool
from corral.runtime.sealing import Sealer
from corral.wire import close
from corral.wire.messages import (
    Accept,
    Cancel,
    FinishedAck,
    HeldJob,
    HeldState,
    LogAck,
    LogPosition,
    Offer,
    Refused,
    RefusedCode,
    Start,
    Welcome,
    Withdraw,
)
from tests.control.rig import Puppet, Rig, job, token_of, virtual


def test_another_process_under_a_live_agents_key_is_told_that_it_is_in_use_and_changes_nothing() -> None:
    """51, with the right key: also then the one that is there stays."""

    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        first = await rig.online(token)
        run = await rig.run()
        offer = await first.take()
        second = rig.connect(token)
        await second.hello()
        refused = await second.expect(Refused)
        assert refused.code is RefusedCode.IN_USE
        assert refused.retry_after > 0
        assert await second.closed() == close.REFUSED_FOR_NOW
        await first.finish(offer)
        await first.expect(FinishedAck)
        assert await rig.state(run) == "succeeded"

    virtual(scenario)


def test_51_a_valid_token_of_another_agent_opens_no_session_as_this_one() -> None:
    async def scenario(rig: Rig) -> None:
        mine, other = await rig.token(name="mine"), await rig.token(name="other")
        first = await rig.online(mine)
        thief = rig.connect(f"{first.agent_id}.{other.token.partition('.')[2]}")
        await thief.hello()
        assert (await thief.expect(Refused)).code is RefusedCode.UNKNOWN
        assert await thief.closed() == close.REFUSED
        await first.silent(1.0)
        assert (await rig.agent(first.agent_id)).state == "online"

    virtual(scenario)


def test_57_the_newest_session_of_a_process_wins_and_what_the_older_says_is_refused() -> None:
    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        older = await rig.online(token, boot="same")
        run = await rig.run()
        offer = await older.take()
        # Read, but not written yet when the newer one registers: then it is not the older's to report any more.
        rig.database.away = True
        await older.finish(offer)
        await rig.clock.sleep(0.01)
        rig.database.away = False
        newer = rig.connect(token, boot="same")
        held = HeldJob(job_id=offer.job_id, attempt=offer.attempt, state=HeldState.RUNNING, sequence=1)
        await newer.hello(held)
        welcome = await newer.expect(Welcome)
        assert welcome.session == 2
        assert await older.closed() == close.REPLACED
        await rig.clock.sleep(10)
        assert (await rig.job(run)).state == "running"
        assert (await rig.agent(newer.agent_id)).state == "online"
        await newer.finish(offer)
        await newer.expect(FinishedAck)
        assert await rig.state(run) == "succeeded"

    virtual(scenario)


def test_52_a_revoked_token_ends_its_session_and_settles_its_job_at_once() -> None:
    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        puppet = await rig.online(token)
        run = await rig.run()
        await puppet.take()
        began = rig.loop.time()
        await rig.coordinator.revoke_token(token_of(token))
        assert await puppet.closed() == close.REFUSED
        assert rig.loop.time() - began < 0.1
        view = await rig.job(run)
        assert (view.state, view.reason) == ("failed", "agent_lost")
        again = rig.connect(token)
        await again.hello()
        assert (await again.expect(Refused)).code is RefusedCode.REVOKED

    virtual(scenario)


def test_53_a_job_that_needs_one_of_a_revoked_agent_does_not_wait_for_it() -> None:
    from corral.model.spec import NeedSpec

    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        puppet = await rig.online(token)
        run = await rig.run(job("a"), job("b", needs=(NeedSpec(job="a"),)))
        await puppet.take()
        await rig.coordinator.revoke_token(token_of(token))
        view = await rig.coordinator.run(RunId(run.id))
        assert view.state == "failed"
        assert [each.state for each in view.jobs] == ["failed", "skipped"]

    virtual(scenario)


def test_46_an_offer_that_goes_out_on_a_dying_line_is_made_again_to_another_agent() -> None:
    async def scenario(rig: Rig) -> None:
        dying = await rig.online(await rig.token(name="dying"))
        run = await rig.run()
        dying.wire.half_open()
        healthy = await rig.online(await rig.token(name="healthy"))
        offer = await healthy.take(timeout=30)
        await healthy.finish(offer)
        await healthy.expect(FinishedAck)
        view = await rig.job(run)
        assert view.state == "succeeded"
        assert [each.state for each in view.attempts] in (["withdrawn", "succeeded"], ["succeeded"])
        assert rig.loop.time() < 15

    virtual(scenario)


def test_54_a_job_lost_with_its_agents_old_process_does_not_take_the_new_processes_job_with_it() -> None:
    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        old = await rig.online(token, boot="old")
        first = await rig.run(job("first"))
        await old.take()
        old.wire.cut()
        new = await rig.online(token, boot="new")
        assert (await rig.job(first)).state == "failed"
        second = await rig.run(job("second"))
        offer = await new.take()
        await rig.clock.sleep(3 * rig.settings.lost_after / 2)
        assert (await rig.job(second)).state == "running"
        await new.finish(offer)
        await new.expect(FinishedAck)
        assert await rig.state(second) == "succeeded"

    # It answers nothing for three minutes here; that is not what this is about.
    virtual(scenario, agent_dead_after=600.0, heartbeat_interval=200.0)


def test_55_a_cancel_for_an_agent_whose_line_just_ended_reaches_it_on_the_next() -> None:
    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        first = await rig.online(token, boot="same")
        run = await rig.run()
        offer = await first.take()
        first.wire.cut()
        await rig.coordinator.cancel_run(RunId(run.id))
        second = rig.connect(token, boot="same")
        await second.hello(HeldJob(job_id=offer.job_id, attempt=offer.attempt, state=HeldState.RUNNING, sequence=1))
        await second.expect(Welcome)
        assert (await second.expect(Cancel)).grace == CANCEL_GRACE

    virtual(scenario)


def test_58_a_reason_longer_than_a_close_frame_holds_is_cut_and_the_close_happens() -> None:
    assert len(close.fit_reason("ü" * 200).encode()) <= 123


def test_r10_a_cancel_that_is_never_confirmed_ends_by_its_own_deadline() -> None:
    async def scenario(rig: Rig) -> None:
        puppet = await rig.online(await rig.token())
        run = await rig.run()
        offer = await puppet.take()
        began = rig.loop.time()
        await rig.coordinator.cancel_run(RunId(run.id))
        await puppet.expect(Cancel)

        async def ended() -> bool:
            return await rig.state(run) == "cancelled"

        # Heartbeats go on; it just never says that the job is over.
        await puppet.silent(CANCEL_GRACE + CANCEL_MARGIN - 1)
        assert not await ended()
        await rig.until(ended)
        assert rig.loop.time() - began < CANCEL_GRACE + CANCEL_MARGIN + 2
        view = await rig.job(run)
        assert "did not confirm" in view.detail
        assert (await rig.agent(puppet.agent_id)).cordon_reason == "unresponsive"
        # Its late end changes nothing, and it may forget the job.
        await puppet.finish(offer)
        await puppet.expect(FinishedAck)
        assert await rig.state(run) == "cancelled"

    virtual(scenario)


def test_g6_a_log_whose_end_never_comes_is_stated_incomplete_and_the_job_ends() -> None:
    async def scenario(rig: Rig) -> None:
        puppet = await rig.online(await rig.token())
        run = await rig.run()
        offer = await puppet.take()
        await puppet.print(offer, b"half")
        await puppet.expect(LogAck)
        began = rig.loop.time()
        await puppet.finish(offer, size=10, digest=hashlib.sha256(b"half and so").hexdigest())
        await puppet.expect(FinishedAck, timeout=FLUSH_GRACE + 10)
        assert FLUSH_GRACE <= rig.loop.time() - began < FLUSH_GRACE + 2
        view = await rig.job(run)
        assert view.state == "succeeded"
        assert view.steps[0].log_missing == 6
        assert (await rig.coordinator.run(RunId(run.id))).log_incomplete

    virtual(scenario)


def test_g6_a_log_store_that_never_takes_the_rest_holds_the_slot_no_longer_than_the_stranded_window() -> None:
    async def scenario(rig: Rig) -> None:
        puppet = await rig.online(await rig.token())
        run = await rig.run()
        offer = await puppet.take()
        rig.logs.available = False
        await puppet.print(offer, b"nobody takes this")
        began = rig.loop.time()
        await puppet.finish(offer, size=17)
        await puppet.expect(FinishedAck, timeout=rig.settings.stranded_after + FLUSH_GRACE + 60)
        assert rig.settings.stranded_after <= rig.loop.time() - began <= rig.settings.stranded_after + FLUSH_GRACE + 5
        assert (await rig.job(run)).steps[0].log_missing == 17

    virtual(scenario, stranded_after=250.0)


def test_r3_what_a_lost_agent_still_has_of_the_log_is_taken_when_it_comes_back() -> None:
    """Late, after the job's end, and its end changes nothing any more: only the log gets longer."""

    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        first = await rig.online(token, boot="same")
        run = await rig.run()
        offer = await first.take()
        await first.print(offer, b"before, ")
        await first.expect(LogAck)
        first.wire.cut()

        async def settled() -> bool:
            return await rig.state(run) == "failed"

        await rig.until(settled, timeout=rig.settings.lost_after + 10)
        second = rig.connect(token, boot="same")
        logs = (LogPosition(step=0, offset=13),)
        held = HeldJob(job_id=offer.job_id, attempt=offer.attempt, state=HeldState.FINISHED, sequence=3, logs=logs)
        await second.hello(held)
        (answer,) = (await second.expect(Welcome)).jobs
        assert (answer.action, answer.logs) == ("stop", (LogPosition(step=0, offset=8),))
        await second.print(offer, b"after", offset=8)
        assert (await second.expect(LogAck)).offset == 13
        await second.finish(offer, size=13)
        await second.expect(FinishedAck)
        view = await rig.job(run)
        assert (view.state, view.reason) == ("failed", "agent_lost")
        assert [each async for each in await rig.coordinator.read_log(JobId(view.id), step=0)] == [b"before, after"]
        assert (await rig.coordinator.run(RunId(run.id))).log_incomplete

    virtual(scenario)


async def _lost_and_back(rig: Rig, *, holding: bool) -> tuple[Offer, Puppet]:
    """The agent of an instance whose job was given up while it was away, welcomed again."""
    run = await rig.run()
    first = await rig.instance()
    offer = await first.take()
    first.wire.cut()

    async def settled() -> bool:
        return await rig.state(run) == "failed"

    await rig.until(settled, timeout=rig.settings.lost_after + 10)
    await rig.clock.sleep(30)
    assert len(rig.host.instances) == 1, "it may still come back"
    second = rig.connect(f"{first.agent_id}.{first.key}", boot=first.boot_id)
    held = HeldJob(job_id=offer.job_id, attempt=offer.attempt, state=HeldState.RUNNING, sequence=1)
    await second.hello(*((held,) if holding else ()))
    assert [answer.action for answer in (await second.expect(Welcome)).jobs] == (["stop"] if holding else [])
    return offer, second


async def _given_back(rig: Rig) -> float:
    async def gone() -> bool:
        return not rig.host.instances

    return await rig.until(gone)


LOST_POOL = Pool(name="p", backend="fake", labels=frozenset({"x"}), max_agents=1)


def test_r3_the_instance_of_a_lost_agent_that_comes_back_is_given_back_once_its_log_is_here() -> None:
    async def scenario(rig: Rig) -> None:
        offer, back = await _lost_and_back(rig, holding=True)
        await back.silent(30.0)
        assert len(rig.host.instances) == 1, "its log is not here yet"
        await back.print(offer, b"what it had")
        await back.expect(LogAck)
        await back.finish(offer, size=11)
        await back.expect(FinishedAck)
        await _given_back(rig)

    virtual(scenario, pools=(LOST_POOL,))


def test_the_instance_of_a_lost_agent_that_comes_back_with_nothing_is_given_back_at_once() -> None:
    async def scenario(rig: Rig) -> None:
        await _lost_and_back(rig, holding=False)
        await _given_back(rig)

    virtual(scenario, pools=(LOST_POOL,))


def test_a_lost_agent_that_comes_back_and_never_says_the_end_holds_its_instance_for_a_bounded_time() -> None:
    async def scenario(rig: Rig) -> None:
        _, back = await _lost_and_back(rig, holding=True)
        await back.silent(FLUSH_LIMIT / SECOND - 5)
        assert len(rig.host.instances) == 1
        await back.silent(6.0)
        await _given_back(rig)

    virtual(scenario, pools=(LOST_POOL,))


def test_an_offer_whose_accept_is_lost_is_withdrawn_when_the_agent_comes_back() -> None:
    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        first = await rig.online(token, boot="same")
        run = await rig.run()
        offer = await first.offered()
        first.wire.cut()
        second = rig.connect(token, boot="same")
        held = HeldJob(job_id=offer.job_id, attempt=offer.attempt, state=HeldState.ACCEPTED, sequence=0)
        await second.hello(held)
        welcome = await second.expect(Welcome)
        assert [answer.action for answer in welcome.jobs] == ["stop"]
        again = await second.take()
        assert (again.job_id, again.attempt) == (offer.job_id, 2)
        assert not any(isinstance(message, Withdraw) for message in second.heard)
        assert (await rig.job(run)).state == "running"

    virtual(scenario)


def test_56_what_was_printed_last_is_stored_before_the_end_is_acknowledged() -> None:
    async def scenario(rig: Rig) -> None:
        puppet = await rig.online(await rig.token())
        run = await rig.run()
        offer = await puppet.take()
        await puppet.finish(offer, size=5)
        await puppet.silent(2.0)
        assert (await rig.job(run)).state == "running"
        await puppet.print(offer, b"last\n")
        assert isinstance(await puppet.next(), LogAck)
        await puppet.expect(FinishedAck)
        view = await rig.job(run)
        assert view.steps[0].log_stored == 5
        assert [each async for each in await rig.coordinator.read_log(JobId(view.id), step=0)] == [b"last\n"]

    virtual(scenario)


@pytest.mark.parametrize("lost_start", [False, True], ids=["at-accept", "at-welcome"])
def test_a_job_whose_secrets_cannot_be_opened_fails_by_that_and_its_agent_takes_the_next(lost_start: bool) -> None:
    """The key file is another one after a restart: also where the start was committed and its agent never heard it."""

    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        first = await rig.online(token, boot="same")
        run = await rig.run(job("j", secrets=("TOKEN",)), secrets={"TOKEN": "s3cret"})
        offer = await first.offered()
        accept = Accept(job_id=offer.job_id, attempt=offer.attempt)
        if lost_start:
            await first.say(accept)
            assert (await first.expect(Start)).secrets == {"TOKEN": "s3cret"}
        await rig.coordinator.stop(grace=1.0)
        rig.sealer = Sealer(b"another key, of thirty-two bytes", rig.chance)
        await rig.start()
        second = rig.connect(token, boot="same")
        held = HeldJob(job_id=offer.job_id, attempt=offer.attempt, state=HeldState.ACCEPTED, sequence=0)
        await second.hello(*((held,) if lost_start else ()))
        welcome = await second.expect(Welcome)
        if lost_start:
            assert [(answer.action, answer.secrets) for answer in welcome.jobs] == [("stop", {})]
        else:
            again = await second.offered()
            await second.say(Accept(job_id=again.job_id, attempt=again.attempt))
            await second.expect(Withdraw)
        view = await rig.job(run)
        assert (view.state, view.reason) == ("failed", "secret_unavailable")
        assert "key file" in view.detail
        other = await rig.run(job("other"))
        await second.finish(await second.take())
        await second.expect(FinishedAck)
        assert await rig.state(other) == "succeeded"

    virtual(scenario)


def test_q8_a_job_whose_instance_never_registers_gets_another_and_the_next_job_is_not_its_victim() -> None:
    """Done is when the job starts, not when an instance is made: nobody stays behind by one for ever."""
    pool = Pool(name="p", backend="fake", labels=frozenset({"x"}), max_agents=1, spawn_timeout=60.0)

    async def scenario(rig: Rig) -> None:
        runs = [await rig.run(job("first")), await rig.run(job("second"))]
        # Its boot fails: nobody ever hears of it.
        met = {await rig.unheard()}
        await rig.clock.sleep(pool.spawn_timeout + 35)
        for run in runs:
            agent = await rig.instance()
            offer = await agent.take()
            assert offer.job_id == run.jobs[0].id
            assert agent.agent_id not in met
            met.add(agent.agent_id)
            await agent.finish(offer)
            await agent.expect(FinishedAck)
            assert await rig.state(run) == "succeeded"
        await _given_back(rig)

    virtual(scenario, pools=(pool,))


def test_positions_in_hello_are_answered_with_what_is_stored() -> None:
    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        first = await rig.online(token, boot="same")
        await rig.run()
        offer = await first.take()
        await first.print(offer, b"0123")
        await first.expect(LogAck)
        first.wire.cut()
        second = rig.connect(token, boot="same")
        logs = (LogPosition(step=0, offset=10),)
        held = HeldJob(job_id=offer.job_id, attempt=offer.attempt, state=HeldState.RUNNING, sequence=1, logs=logs)
        await second.hello(held)
        welcome = await second.expect(Welcome)
        assert welcome.jobs[0].logs == (LogPosition(step=0, offset=4),)
        assert welcome.jobs[0].sequence == 1

    virtual(scenario)


def test_beyond_the_runs_limit_log_is_dropped_acknowledged_and_stated() -> None:
    """Over two jobs of the run, and over a restart of the coordinator."""

    async def scenario(rig: Rig) -> None:
        token, other = await rig.token(), await rig.token(name="other")
        first, second = await rig.online(token, boot="one"), await rig.online(other, boot="two")
        run = await rig.run(job("a"), job("b"))
        offer, small = await first.take(), await second.take()
        await second.print(small, b"y" * 400)
        await second.expect(LogAck)
        await first.print(offer, b"x" * 500)
        await first.expect(LogAck)
        await first.print(offer, b"z" * 200, offset=500)
        assert (await first.expect(LogAck)).offset == 700
        assert not any(log.data.endswith(b"z") for log in rig.logs.logs.values())
        await rig.coordinator.stop(grace=1.0)
        await rig.start()
        again = rig.connect(token, boot="one")
        held = HeldJob(job_id=offer.job_id, attempt=offer.attempt, state=HeldState.RUNNING, sequence=1)
        await again.hello(held)
        await again.expect(Welcome)
        # After a cut nothing more is taken: the log would have a gap.
        await again.print(offer, b"w" * 300, offset=700)
        assert (await again.expect(LogAck)).offset == 1000
        began = rig.loop.time()
        await again.finish(offer, size=1000, digest="d")
        await again.expect(FinishedAck)
        assert rig.loop.time() - began < 1
        view = await rig.coordinator.run(RunId(run.id))
        assert view.log_incomplete
        step = (await rig.job(view)).steps[0]
        assert step.log_missing == 500
        data = b"".join([each async for each in await rig.coordinator.read_log(JobId(view.jobs[0].id), step=0)])
        assert data.startswith(b"x" * 500 + b"\n[corral: the run's log limit of 1000 bytes is reached; 500 bytes")
        assert step.log_size == len(data)

    virtual(scenario, run_log_limit=1000)


def test_a_replay_of_what_is_stored_does_not_count_towards_the_runs_limit() -> None:
    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        puppet = await rig.online(token)
        run = await rig.run()
        offer = await puppet.take()
        for _ in range(5):
            await puppet.print(offer, b"x" * 900)
            assert (await puppet.expect(LogAck)).offset == 900
        await puppet.print(offer, b"y" * 100, offset=900)
        assert (await puppet.expect(LogAck)).offset == 1000
        await puppet.finish(offer, size=1000)
        await puppet.expect(FinishedAck)
        assert not (await rig.coordinator.run(RunId(run.id))).log_incomplete

    virtual(scenario, run_log_limit=1000)


def test_an_order_carries_the_configured_limit_of_a_steps_log() -> None:
    async def scenario(rig: Rig) -> None:
        puppet = await rig.online(await rig.token())
        await rig.run()
        assert (await puppet.offered()).order.log_limit == 12345

    virtual(scenario, step_log_limit=12345)


def test_a_job_timeout_that_the_agent_does_not_enforce_is_enforced_by_the_coordinator() -> None:
    async def scenario(rig: Rig) -> None:
        puppet = await rig.online(await rig.token())
        run = await rig.run(job("j", timeout=5.0))
        await puppet.take()
        began = rig.loop.time()
        told = await puppet.expect(Cancel, timeout=5 + DEADLINE_MARGIN + 5)
        assert told.reason == "job_timeout"
        assert 5 + DEADLINE_MARGIN <= rig.loop.time() - began <= 5 + DEADLINE_MARGIN + 2
        # Nor does it do as it is told.
        await puppet.silent(CANCEL_GRACE + CANCEL_MARGIN + 2)
        view = await rig.job(run)
        assert (view.state, view.reason) == ("failed", "job_timeout")

    virtual(scenario)
