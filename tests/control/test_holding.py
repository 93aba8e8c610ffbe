# SPDX-License-Identifier: Apache-2.0
"""Cordon, uncordon and drain, by operators and by Corral itself."""

from __future__ import annotations

import pytest

from corral.model.errors import NotFound, Refused
from corral.model.ids import AgentId, JobId, RunId
from corral.model.pools import Pool
from corral.model.spec import OnLost, Result
from corral.model.views import DrainAgent
from corral.wire import close
from corral.wire.messages import (
    Accept,
    Decline,
    DeclineReason,
    Drain,
    Draining,
    FinishedAck,
    HeldJob,
    HeldState,
    JobFinished,
    Offer,
    Start,
    Welcome,
    Withdraw,
)
from tests.control.rig import Puppet, Rig, job, token_of, virtual


async def _rests(rig: Rig, puppet: Puppet) -> None:
    """A job that only this agent fits stays queued."""
    run = await rig.run(job("waits"))
    await puppet.silent(5.0)
    assert (await rig.job(run)).state == "queued"
    await rig.coordinator.cancel_run(RunId(run.id))


def test_a_cordoned_agent_is_offered_nothing_and_goes_on_with_its_job() -> None:
    async def scenario(rig: Rig) -> None:
        puppet = await rig.online(await rig.token())
        run = await rig.run()
        offer = await puppet.take()
        view = await rig.coordinator.cordon_agent(puppet.agent_id, by="tok_me")
        assert (view.hold, view.held_by) == ("cordon", "tok_me")
        assert view.held_at is not None
        await puppet.finish(offer)
        await puppet.expect(FinishedAck)
        assert await rig.state(run) == "succeeded"
        await _rests(rig, puppet)
        await rig.coordinator.uncordon_agent(puppet.agent_id)
        await rig.run()
        await puppet.take()

    virtual(scenario)


def test_an_operators_cordon_stays_over_a_registration_and_a_restart_of_the_coordinator() -> None:
    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        puppet = await rig.online(token)
        await rig.coordinator.cordon_agent(puppet.agent_id)
        puppet.wire.cut()
        await rig.clock.sleep(0.1)
        again = await rig.online(token)
        await _rests(rig, again)
        await rig.coordinator.stop(grace=1.0)
        await rig.start()
        third = await rig.online(token)
        await _rests(rig, third)
        assert (await rig.agent(third.agent_id)).hold == "cordon"

    virtual(scenario)


def test_an_offer_in_flight_when_an_operator_cordons_is_not_made() -> None:
    """The hold and the offer are compare-and-sets on the one agent row: the offerer's view of the agent may be old."""
    from corral.control import offers
    from corral.control.settle import Wake
    from corral.decide.dispatching import Placement
    from corral.model.errors import Conflict

    async def scenario(rig: Rig) -> None:
        puppet = await rig.online(await rig.token())
        rig.coordinator.dispatcher.draining = True
        run = await rig.run()
        await rig.coordinator.cordon_agent(puppet.agent_id)
        placement = Placement(job_id=JobId(run.jobs[0].id), agent_id=puppet.agent_id)
        with pytest.raises(Conflict):
            await rig.database.write(
                lambda c: offers.make(c, placement, session=1, boot_id=puppet.boot_id, ack_timeout=10, wake=Wake())
            )
        assert (await rig.job(run)).state == "queued"

    virtual(scenario)


def test_a_cordon_that_corral_set_on_a_static_agent_ends_when_it_registers_again() -> None:
    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        deaf = await rig.online(token)
        run = await rig.run()
        for _ in range(2):
            await deaf.offered(timeout=40)
            await deaf.expect(Withdraw, timeout=40)

        async def cordoned() -> bool:
            return bool((await rig.agent(deaf.agent_id)).cordon_reason)

        await rig.until(cordoned, timeout=40)
        assert (await rig.agent(deaf.agent_id)).cordon_reason == "unresponsive"
        deaf.wire.cut()
        await rig.clock.sleep(0.1)
        heals = await rig.online(token)
        offer = await heals.take(timeout=40)
        await heals.finish(offer)
        await heals.expect(FinishedAck)
        assert await rig.state(run) == "succeeded"

    virtual(scenario)


def test_Q19_a_connected_agent_that_was_deaf_for_a_while_is_used_again_and_one_more_miss_cordons_it_at_once() -> None:
    async def scenario(rig: Rig) -> None:
        deaf = await rig.online(await rig.token())
        run = await rig.run()
        for _ in range(3):
            await deaf.offered(timeout=80)
            await deaf.expect(Withdraw, timeout=40)
        agent = await rig.agent(deaf.agent_id)
        assert agent.cordon_reason == "unresponsive"
        again = rig.loop.time()
        await deaf.finish(await deaf.take(timeout=80))
        assert rig.loop.time() - again >= 29
        await deaf.expect(FinishedAck)
        assert await rig.state(run) == "succeeded"
        assert not (await rig.agent(deaf.agent_id)).cordon_reason

    virtual(scenario)


def test_a_deaf_agent_that_corral_cordoned_holds_up_no_job_that_another_would_take() -> None:
    async def scenario(rig: Rig) -> None:
        deaf = await rig.online(await rig.token(name="deaf"))
        run = await rig.run()
        for _ in range(2):
            await deaf.offered(timeout=40)
            await deaf.expect(Withdraw, timeout=40)
        other = await rig.online(await rig.token(name="other"))
        await other.finish(await other.take(timeout=20))
        await other.expect(FinishedAck)
        assert await rig.state(run) == "succeeded"
        # The deaf one is connected and has been idle for longest: it is no candidate all the same.
        began = rig.loop.time()
        for _ in range(3):
            await rig.run()
            await other.finish(await other.take(timeout=20))
            await other.expect(FinishedAck)
        assert rig.loop.time() - began < 5

    virtual(scenario)


def test_after_its_job_was_given_up_a_static_agent_is_offered_the_next_once_it_has_flushed() -> None:
    """50: not before, or it would decline it again and again while it tears the old one down."""

    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        first = await rig.online(token, boot="same")
        lost = await rig.run(job("lost"))
        offer = await first.take()
        first.wire.cut()

        async def settled() -> bool:
            return await rig.state(lost) == "failed"

        await rig.until(settled, timeout=200)
        assert (await rig.agent(first.agent_id)).cordon_reason == "lost"
        waits = await rig.run(job("waits"))
        second = rig.connect(token, boot="same")
        await second.hello(HeldJob(job_id=offer.job_id, attempt=offer.attempt, state=HeldState.RUNNING, sequence=1))
        welcome = await second.expect(Welcome)
        assert [answer.action for answer in welcome.jobs] == ["stop"]
        await second.silent(10.0)
        await second.say(
            JobFinished(
                job_id=offer.job_id, attempt=offer.attempt, sequence=2, time=0, result=Result.LOST, reason="agent_lost"
            )
        )
        await second.expect(FinishedAck)
        following = await second.take()
        await second.finish(following)
        await second.expect(FinishedAck)
        assert await rig.state(waits) == "succeeded"
        assert await rig.state(lost) == "failed"

    virtual(scenario)


def test_r8_an_agent_that_says_it_is_draining_is_offered_nothing_more() -> None:
    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        puppet = await rig.online(token)
        run = await rig.run()
        offer = await puppet.take()
        await puppet.say(Draining(reason="SIGTERM"))
        await puppet.finish(offer)
        await puppet.expect(FinishedAck)
        assert await rig.state(run) == "succeeded"
        await _rests(rig, puppet)
        # Nor when it says so at its registration.
        puppet.wire.cut()
        await rig.clock.sleep(0.1)
        again = rig.connect(token)
        await again.hello(draining=True)
        await again.expect(Welcome)
        await _rests(rig, again)
        assert (await rig.agent(again.agent_id)).cordon_reason == "drain"

    virtual(scenario)


def test_r8_an_offer_that_meets_a_draining_agent_is_declined_and_goes_to_another() -> None:
    async def scenario(rig: Rig) -> None:
        leaving = await rig.online(await rig.token(name="leaving"))
        run = await rig.run()
        offer = await leaving.offered()
        await leaving.say(Decline(job_id=offer.job_id, attempt=offer.attempt, reason=DeclineReason.DRAINING))
        await leaving.silent(5.0)
        other = await rig.online(await rig.token(name="other"))
        await other.finish(await other.take(timeout=10))
        await other.expect(FinishedAck)
        assert await rig.state(run) == "succeeded"

    virtual(scenario)


def test_a_drained_static_agent_is_told_at_once_and_again_at_every_registration_until_it_is_uncordoned() -> None:
    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        puppet = await rig.online(token)
        await rig.coordinator.drain_agent(puppet.agent_id, DrainAgent(), by="tok_me")
        told = await puppet.expect(Drain)
        assert told.deadline > 86400
        await _rests(rig, puppet)
        puppet.wire.cut()
        await rig.clock.sleep(0.1)
        again = await rig.online(token)
        await again.expect(Drain)
        with pytest.raises(Refused, match="uncordon"):
            await rig.coordinator.cordon_agent(puppet.agent_id)
        await rig.coordinator.uncordon_agent(puppet.agent_id)
        again.wire.cut()
        await rig.clock.sleep(0.1)
        third = await rig.online(token)
        await rig.run()
        await third.take()

    virtual(scenario)


def test_a_drain_with_a_deadline_says_how_long_is_left_and_the_earlier_one_counts() -> None:
    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        puppet = await rig.online(token)
        await rig.coordinator.drain_agent(puppet.agent_id, DrainAgent(hand_back_after=60))
        assert (await puppet.expect(Drain)).deadline == pytest.approx(60, abs=0.1)
        await rig.coordinator.drain_agent(puppet.agent_id, DrainAgent(hand_back_after=600))
        assert (await puppet.expect(Drain)).deadline == pytest.approx(60, abs=0.1)
        await rig.clock.sleep(20)
        puppet.wire.cut()
        await rig.clock.sleep(0.1)
        again = await rig.online(token)
        assert (await again.expect(Drain)).deadline == pytest.approx(40, abs=1)

    virtual(scenario)


def test_r9_a_job_that_a_drained_agent_hands_back_runs_elsewhere_at_once() -> None:
    async def scenario(rig: Rig) -> None:
        drained = await rig.online(await rig.token(name="drained"))
        run = await rig.run(job("j", on_lost=OnLost.RETRY))
        offer = await drained.take()
        other = await rig.online(await rig.token(name="other"))
        await rig.coordinator.drain_agent(drained.agent_id, DrainAgent(hand_back_after=0))
        assert (await drained.expect(Drain)).deadline == 0
        began = rig.loop.time()
        await drained.say(
            JobFinished(
                job_id=offer.job_id, attempt=offer.attempt, sequence=2, time=0, result=Result.LOST, reason="agent_lost"
            )
        )
        second = await other.take()
        assert rig.loop.time() - began < 1
        await other.finish(second)
        await other.expect(FinishedAck)
        assert await rig.state(run) == "succeeded"

    virtual(scenario)


def test_a_drained_instance_ends_its_job_and_is_given_back() -> None:
    pool = Pool(name="p", backend="fake", labels=frozenset({"x"}), max_agents=2)

    async def scenario(rig: Rig) -> None:
        run = await rig.run()
        puppet = await rig.instance()
        offer = await puppet.take()
        await rig.coordinator.drain_agent(puppet.agent_id, DrainAgent())
        await puppet.expect(Drain)
        await rig.clock.sleep(5.0)
        assert (await rig.agent(puppet.agent_id)).provision_state == "active"
        await puppet.finish(offer)
        await puppet.expect(FinishedAck)

        async def gone() -> bool:
            return not rig.host.instances

        await rig.until(gone)
        assert await rig.state(run) == "succeeded"
        # An idle one is given back at once; one that is only cordoned is kept, and serves nobody.
        await rig.run(job("kept"))
        kept = await rig.instance()
        waiting = await kept.offered()
        await rig.coordinator.cordon_agent(kept.agent_id)
        await kept.say(Decline(job_id=waiting.job_id, attempt=waiting.attempt, reason=DeclineReason.UNFIT))
        await rig.clock.sleep(2 * pool.idle_timeout)
        assert (await rig.agent(kept.agent_id)).provision_state == "active"
        await rig.coordinator.drain_agent(kept.agent_id, DrainAgent())
        await rig.until(lambda: _released(rig, kept.agent_id))
        with pytest.raises((Refused, NotFound)):
            await rig.coordinator.uncordon_agent(kept.agent_id)

    virtual(scenario, pools=(pool,), agent_dead_after=3600.0)


async def _released(rig: Rig, agent_id: AgentId) -> bool:
    return all(each.id != agent_id or each.provision_state != "active" for each in await rig.coordinator.agents())


def test_holding_an_agent_that_is_not_there_or_has_ended_is_refused() -> None:
    async def scenario(rig: Rig) -> None:
        token = await rig.token()
        puppet = await rig.online(token)
        with pytest.raises(NotFound):
            await rig.coordinator.cordon_agent(AgentId("agent_nobody"))
        await rig.coordinator.revoke_token(token_of(token))
        assert await puppet.closed() == close.REFUSED
        for ask in (
            rig.coordinator.cordon_agent(puppet.agent_id),
            rig.coordinator.uncordon_agent(puppet.agent_id),
            rig.coordinator.drain_agent(puppet.agent_id, DrainAgent()),
        ):
            with pytest.raises(Refused, match="ended"):
                await ask

    virtual(scenario)


def test_a_job_that_fits_only_a_cordoned_agent_says_so() -> None:
    async def scenario(rig: Rig) -> None:
        puppet = await rig.online(await rig.token(name="build-1"))
        await rig.coordinator.cordon_agent(puppet.agent_id)
        run = await rig.run()
        await rig.clock.sleep(2.0)
        story = " ".join((await rig.coordinator.why(run.jobs[0].id)).sentences)  # type: ignore[arg-type]
        assert "build-1" in story
        assert "cordoned" in story

    virtual(scenario)


def test_50_an_agent_that_is_busy_for_a_moment_does_not_fail_the_job() -> None:
    """Five refusals in 200 ms failed it once: here each pause is longer, and four of them fit into seven seconds."""

    async def scenario(rig: Rig) -> None:
        puppet = await rig.online(await rig.token())
        run = await rig.run()
        for _ in range(3):
            offer = await puppet.offered(timeout=20)
            await puppet.say(Decline(job_id=offer.job_id, attempt=offer.attempt, reason=DeclineReason.BUSY))
        assert rig.loop.time() > 3
        offer = await puppet.offered(timeout=20)
        assert isinstance(offer, Offer)
        await puppet.say(Accept(job_id=offer.job_id, attempt=offer.attempt))
        await puppet.expect(Start)
        await puppet.finish(offer)
        await puppet.expect(FinishedAck)
        view = await rig.job(run)
        assert view.state == "succeeded"
        assert view.attempt == 4

    virtual(scenario)


def test_a_pool_runs_no_more_jobs_than_it_may_although_it_has_more_agents() -> None:
    """61: the limit is the pool's, counted by the coordinator; no agent has a setting of its own."""
    pool = Pool(name="p", backend="fake", labels=frozenset({"x"}), max_agents=3, max_running=1)

    async def scenario(rig: Rig) -> None:
        run = await rig.run(job("a"), job("b"))
        first = await rig.instance()
        offer = await first.take()
        await rig.clock.sleep(30)
        assert len(rig.host.instances) == 1
        why = await rig.coordinator.why(JobId(run.jobs[1].id))
        assert why.code == "at_max_running"
        assert "max_running" in why.fix
        await first.finish(offer)
        await first.expect(FinishedAck)
        second = await rig.instance()
        await second.finish(await second.take())
        await second.expect(FinishedAck)
        assert await rig.state(run) == "succeeded"

    virtual(scenario, pools=(pool,))
