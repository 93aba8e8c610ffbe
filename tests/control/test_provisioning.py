# SPDX-License-Identifier: Apache-2.0
"""Events delivered to a registered workflow, against a whole coordinator in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from corral.control.provisioning import WorkflowDeliverer
from corral.model.errors import Refused
from corral.model.events import Answer, EventKind, Listing, Verdict, Webhook, WorkflowTarget
from corral.model.ids import CoordinatorId, RunId
from corral.model.records import Run
from corral.model.spec import JobSpec, Reason, Result, WorkflowSpec
from corral.model.triggers import CLAIM_SECRET, KNOWN_EVENTS
from corral.model.views import RegisterWorkflows, Rerun, RunView
from corral.store.repo import lease as lease_rows
from corral.store.repo import runs as run_rows
from corral.store.repo import secrets
from corral.store.repo.lease import LEASE
from corral.store.tables import runs as runs_table
from corral.wire.messages import Accept, FinishedAck, JobFinished, JobStarted, Start, StepFinished
from corral.workflow.lock import make_lock
from tests.control.rig import Puppet, Rig, job, virtual

CLAIM = "claim_c4n4ry"
TARGET = WorkflowTarget(workflow="machines", timeout=100.0)


def event(kind: EventKind = EventKind.SCALE_UP, event_id: str = "evt_1", agent: str = "agent_1") -> bytes:
    data: dict[str, Any] = {"cluster_id": "c", "agent_id": agent, "sequence": 1, "pool": "cloud", "labels": ["cloud"]}
    if kind is EventKind.SCALE_UP:
        data["claim_code"] = CLAIM
    if kind is EventKind.SCALE_DOWN:
        data |= {"reason": "idle", "evidence": {"idle_for": "301"}}
    envelope = {"specversion": "1.0", "id": event_id, "source": "/corral/c", "type": kind.value, "subject": agent}
    return msgspec.json.encode({**envelope, "time": "2026-01-01T00:00:00Z", "data": data})


def workflow(*jobs: JobSpec, events: tuple[str, ...] = KNOWN_EVENTS, **more: Any) -> WorkflowSpec:
    jobs = jobs or (job("work", secrets=(CLAIM_SECRET,)),)
    return WorkflowSpec(name="machines", jobs=jobs, events=events, **more)


async def register(rig: Rig, spec: WorkflowSpec | None = None) -> None:
    await rig.coordinator.register_workflows(RegisterWorkflows(lock=make_lock([spec or workflow()], {})))


@dataclass
class Hands:
    """A static agent that takes jobs and ends them as it is told. ``given``: the secrets of each."""

    puppet: Puppet
    given: list[dict[str, str]] = field(default_factory=list)

    async def work(
        self, result: Result = Result.SUCCEEDED, *, reason: Reason = Reason.NONE, detail: str = "", **outputs: str
    ) -> dict[str, str]:
        """One job from offer to end; the event it saw."""
        offer = await self.puppet.offered(30)
        await self.end(offer.job_id, offer.attempt, result, reason, detail, outputs)
        return offer.order.event

    async def end(
        self, job_id: str, attempt: int, result: Result, reason: Reason, detail: str, outputs: dict[str, str]
    ) -> None:
        await self.puppet.say(Accept(job_id=job_id, attempt=attempt))
        self.given.append((await self.puppet.expect(Start)).secrets)
        code = 0 if result is Result.SUCCEEDED else 1
        await self.puppet.say(
            JobStarted(job_id=job_id, attempt=attempt, sequence=1, time=0),
            StepFinished(
                job_id=job_id,
                attempt=attempt,
                sequence=2,
                step=0,
                time=0,
                result=result,
                exit_code=code,
                log_size=0,
                log_digest="",
            ),
            JobFinished(
                job_id=job_id,
                attempt=attempt,
                sequence=3,
                time=0,
                result=result,
                reason=reason,
                detail=detail,
                outputs=outputs,
            ),
        )
        await self.puppet.expect(FinishedAck)


async def hands(rig: Rig) -> Hands:
    return Hands(await rig.online(await rig.token("x")))


def sending(
    rig: Rig, data: bytes | None = None, *, event_id: str = "evt_1", timeout: float = 100.0
) -> asyncio.Task[Answer]:
    deliverer = rig.coordinator.workflow_targets
    return asyncio.create_task(deliverer.deliver(TARGET, data or event(), event_id=event_id, timeout=timeout))


async def own_runs(rig: Rig) -> tuple[RunView, ...]:
    return (await rig.coordinator.runs(provisioning=True)).items


def test_a_delivery_is_a_run_and_its_end_the_answer() -> None:
    async def scenario(rig: Rig) -> None:
        agent = await hands(rig)
        await register(rig)
        sent = sending(rig)
        seen = await agent.work(provider_id="i-7")
        answer = await sent
        assert (answer.verdict, answer.provider_id, answer.body) == (Verdict.DONE, "i-7", b"")
        assert (seen["type"], seen["agent_id"], seen["labels"]) == (EventKind.SCALE_UP, "agent_1", "cloud")
        (run,) = await own_runs(rig)
        assert (run.workflow, run.title, run.provisioning) == ("machines", "scale-up agent_1", True)
        assert (await rig.coordinator.runs()).items == (), "a user's list holds the users' runs"
        with pytest.raises(Refused, match="delivered again by itself"):
            await rig.coordinator.rerun(RunId(run.id), Rerun())

    virtual(scenario)


def test_the_claim_code_is_a_sealed_secret_of_the_run_and_nothing_else() -> None:
    """Reference 11.1.16: a scale-up that waits or failed shows its claim code to nobody."""

    async def scenario(rig: Rig) -> None:
        await register_with_agent_away(rig)
        sent = sending(rig)
        await rig.until(lambda: _has_runs(rig))
        (run,) = await own_runs(rig)
        sealed = rig.look(lambda c: secrets.of_run(c, RunId(run.id)))
        assert set(sealed) == {CLAIM_SECRET}
        assert CLAIM.encode() not in sealed[CLAIM_SECRET]
        shown = msgspec.json.encode([await rig.coordinator.run(RunId(run.id)), await rig.job(await _view(rig, run.id))])
        rows = rig.look(lambda c: repr(c.execute(select(runs_table)).all()))
        assert CLAIM not in rows and CLAIM.encode() not in shown
        agent = await hands(rig)
        await agent.work(Result.FAILED, reason=Reason.EXIT_CODE, detail=f"curl said {CLAIM} is not known")
        assert agent.given == [{CLAIM_SECRET: CLAIM}]
        answer = await sent
        assert answer.verdict is Verdict.REFUSED
        assert "job work: exit_code: curl said *** is not known" in answer.detail
        assert rig.look(lambda c: secrets.of_run(c, RunId(run.id))) == {}

    virtual(scenario)


async def register_with_agent_away(rig: Rig) -> None:
    """There has to be a static agent; it need not be connected."""
    await rig.token("x", name="away")
    await register(rig)


async def _has_runs(rig: Rig) -> bool:
    return bool(await own_runs(rig))


async def _view(rig: Rig, run_id: str) -> RunView:
    return await rig.coordinator.run(RunId(run_id))


def test_an_event_that_comes_twice_is_one_run() -> None:
    """W2: the run's key is the event's id, so a repeat finds the same run: while it goes, and after its end."""

    async def scenario(rig: Rig) -> None:
        agent = await hands(rig)
        await register(rig)
        first, second = sending(rig), sending(rig)
        await agent.work(provider_id="i-7")
        assert [(await each).provider_id for each in (first, second)] == ["i-7", "i-7"]
        third = await sending(rig)
        assert (third.verdict, third.provider_id) == (Verdict.DONE, "i-7")
        assert len(await own_runs(rig)) == 1
        other = sending(rig, event(event_id="evt_2"), event_id="evt_2")
        await agent.work(provider_id="i-8")
        assert (await other).provider_id == "i-8"
        assert len(await own_runs(rig)) == 2

    virtual(scenario)


def test_a_restart_in_between_makes_no_second_run() -> None:
    """W1, W2: the key is in the database, not in the memory of a process."""

    async def scenario(rig: Rig) -> None:
        await register_with_agent_away(rig)
        lost = sending(rig)
        await rig.until(lambda: _has_runs(rig))
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)
        await rig.coordinator.stop(grace=1.0)
        await rig.start()
        again = sending(rig)
        agent = await hands(rig)
        await agent.work(provider_id="i-7")
        assert (await again).provider_id == "i-7"
        assert len(await own_runs(rig)) == 1
        assert agent.given == [{CLAIM_SECRET: CLAIM}], "what was sealed before the restart is opened after it"

    virtual(scenario)


def test_an_event_that_comes_before_the_loops_have_begun_waits_for_them() -> None:
    """Reference 11.1.3: at a start there is no failure that only says that the server was not ready yet."""

    async def scenario(rig: Rig) -> None:
        await register_with_agent_away(rig)
        await rig.coordinator.stop(grace=1.0)
        sent = sending(rig)
        await rig.until(lambda: _has_runs(rig))
        await rig.start()
        agent = await hands(rig)
        await agent.work()
        assert (await sent).verdict is Verdict.DONE

    virtual(scenario)


def test_a_run_in_which_no_job_was_for_the_event_has_destroyed_nothing() -> None:
    """An instance must not count as gone because every job was skipped."""

    async def scenario(rig: Rig) -> None:
        await hands(rig)
        await register(rig, workflow(job("create", condition=f'event.type == "{EventKind.SCALE_UP}"')))
        answer = await sending(rig, event(EventKind.SCALE_DOWN))
        assert answer.verdict is Verdict.REFUSED
        assert "did nothing" in answer.detail

    virtual(scenario)


def test_a_run_that_failed_gives_its_key_to_the_next_try() -> None:
    async def scenario(rig: Rig) -> None:
        agent = await hands(rig)
        await register(rig)
        sent = sending(rig)
        await agent.work(Result.FAILED, reason=Reason.EXIT_CODE, detail="no quota", provider_id="i-half")
        first = await sent
        assert (first.verdict, first.provider_id) == (Verdict.REFUSED, "i-half")
        assert "no quota" in first.detail
        again, beside = sending(rig), sending(rig)
        await agent.work()
        assert (await again).verdict is (await beside).verdict is Verdict.DONE
        assert len(await own_runs(rig)) == 2

    virtual(scenario)


def test_a_run_that_somebody_cancelled_is_asked_for_later() -> None:
    async def scenario(rig: Rig) -> None:
        await register_with_agent_away(rig)
        sent = sending(rig)
        await rig.until(lambda: _has_runs(rig))
        (run,) = await own_runs(rig)
        await rig.coordinator.cancel_run(RunId(run.id))
        answer = await sent
        assert answer.verdict is Verdict.LATER
        assert "was cancelled" in answer.detail

    virtual(scenario)


def test_a_run_that_does_not_end_in_time_is_cancelled_and_may_have_done_something() -> None:
    async def scenario(rig: Rig) -> None:
        agent = await hands(rig)
        await register(rig)
        began = rig.loop.time()
        sent = sending(rig, timeout=20.0)
        await agent.puppet.take(10)
        answer = await sent
        assert answer.verdict is Verdict.UNANSWERED
        assert 20.0 <= rig.loop.time() - began < 22.0
        (run,) = await own_runs(rig)
        assert (await _view(rig, run.id)).state == "cancelling"
        await rig.until(lambda: _ended(rig, run.id), 60)
        assert (await _view(rig, run.id)).state == "failed"
        second = sending(rig)
        await rig.until(lambda: _count(rig, 2))
        second.cancel()

    virtual(scenario)


def test_a_run_for_which_nobody_waits_ends_in_the_targets_time() -> None:
    async def scenario(rig: Rig) -> None:
        await register_with_agent_away(rig)
        lost = sending(rig)
        await rig.until(lambda: _has_runs(rig))
        lost.cancel()
        (run,) = await own_runs(rig)
        await rig.until(lambda: _ended(rig, run.id), 110)
        view = await _view(rig, run.id)
        assert (view.state, view.reason) == ("failed", Reason.RUN_TIMEOUT)
        assert 100 <= rig.loop.time() < 110

    virtual(scenario)


async def _ended(rig: Rig, run_id: str) -> bool:
    return (await _view(rig, run_id)).finished_at is not None


async def _count(rig: Rig, count: int) -> bool:
    return len(await own_runs(rig)) == count


def test_no_run_begins_beside_another_for_the_same_instance() -> None:
    """A slow create must not land behind a finished destroy."""

    async def scenario(rig: Rig) -> None:
        agent = await hands(rig)
        await register(rig)
        up = sending(rig)
        await rig.until(lambda: _has_runs(rig))
        down = event(EventKind.SCALE_DOWN, "evt_2")
        early = await sending(rig, down, event_id="evt_2")
        assert early.verdict is Verdict.LATER
        assert "for the same instance goes on" in early.detail
        other = sending(rig, event(event_id="evt_3", agent="agent_3"), event_id="evt_3")
        await agent.work()
        await agent.work()
        assert (await up).verdict is (await other).verdict is Verdict.DONE
        late = sending(rig, down, event_id="evt_2")
        seen = await agent.work()
        assert (seen["reason"], seen["evidence_idle_for"]) == ("idle", "301")
        assert (await late).verdict is Verdict.DONE
        assert agent.given[-1] == {CLAIM_SECRET: ""}, "a scale-down brings no claim code"

    virtual(scenario)


def test_who_leads_no_more_begins_nothing() -> None:
    async def scenario(rig: Rig) -> None:
        await register_with_agent_away(rig)
        rig.look(lambda c: lease_rows.take(c, LEASE, CoordinatorId("another")))
        answer = await sending(rig)
        assert answer.verdict is Verdict.LATER
        assert await own_runs(rig) == ()

    virtual(scenario)


EVENTS = {"agent_1.1": "agent_1", "agent_1.2": "agent_1", "agent_2.1": "agent_2"}
STEPS = st.one_of(
    st.sampled_from([f"deliver {each}" for each in EVENTS]),
    st.sampled_from(["succeed", "fail", "cancel", "restart"]),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, min_size=3, max_size=12))
def test_whatever_happens_an_event_is_done_once_and_an_instance_has_one_run(steps: list[str]) -> None:
    """W2, for any order of deliveries, ends and restarts."""

    async def scenario(rig: Rig) -> None:
        await register_with_agent_away(rig)
        waiting: list[asyncio.Task[Answer]] = []
        for step in steps:
            word, _, event_id = step.partition(" ")
            if word == "deliver":
                data = event(event_id=event_id, agent=EVENTS[event_id])
                waiting.append(sending(rig, data, event_id=event_id, timeout=10**6))
            elif word == "restart":
                await _abandon(waiting)
                await rig.coordinator.stop(grace=1.0)
                await rig.start()
            elif live := rig.look(run_rows.live_provisioning):
                await _end_one(rig, word, live[0])
            await asyncio.sleep(1.0)
            _check_one_each(rig)
        await _abandon(waiting)

    virtual(scenario)


async def _abandon(waiting: list[asyncio.Task[Answer]]) -> None:
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def _end_one(rig: Rig, how: str, run: Run) -> None:
    if how == "cancel":
        await rig.coordinator.cancel_run(run.id)
        return
    agent = await hands(rig)
    await agent.work(Result.SUCCEEDED if how == "succeed" else Result.FAILED)
    await agent.puppet.wire.agent.close(1000, "done")


def _check_one_each(rig: Rig) -> None:
    live = [run.event["agent_id"] for run in rig.look(run_rows.live_provisioning)]
    assert len(live) == len(set(live))
    query = select(runs_table.c.event).where(runs_table.c.state == "succeeded")
    done = [row.event["id"] for row in rig.look(lambda c: c.execute(query).all())]
    assert len(done) == len(set(done))


def test_a_workflow_that_is_not_registered_refuses_in_a_sentence() -> None:
    async def scenario(rig: Rig) -> None:
        answer = await sending(rig)
        assert answer.verdict is Verdict.REFUSED
        assert answer.detail.startswith("no workflow 'machines' is registered with this server: corral workflows regis")
        assert await own_runs(rig) == ()

    virtual(scenario)


def test_an_inventory_is_the_listings_of_all_jobs_or_unsupported() -> None:
    listed = '{"instances": [{"agent_id": "agent_%s", "cluster_id": "c"}], "request": "r"}'

    async def scenario(rig: Rig) -> None:
        agent = await hands(rig)
        await register(rig, workflow(job("a"), job("b")))
        ask = event(EventKind.INVENTORY)
        sent = sending(rig, ask)
        await agent.work(instances=listed % 1)
        await agent.work(instances=listed % 2)
        answer = await sent
        assert answer.verdict is Verdict.DONE
        listing = msgspec.json.decode(answer.body, type=Listing)
        assert [each.agent_id for each in listing.instances] == ["agent_1", "agent_2"]
        assert (listing.request, listing.complete) == ("r", True)
        await register(rig, workflow(events=(EventKind.SCALE_UP, EventKind.SCALE_DOWN)))
        without = await sending(rig, ask, event_id="evt_2")
        assert without.verdict is Verdict.DONE
        assert msgspec.json.decode(without.body, type=Listing) == Listing(unsupported=True)
        await register(rig, workflow(job("a")))
        silent = sending(rig, ask, event_id="evt_3")
        await agent.work()
        assert (await silent).verdict is Verdict.REFUSED
        wrong = sending(rig, ask, event_id="evt_4")
        await agent.work(instances="[1")
        assert (await wrong).verdict is Verdict.REFUSED

    virtual(scenario)


def test_what_is_no_event_and_what_cannot_run_are_answers_not_errors() -> None:
    async def scenario(rig: Rig) -> None:
        await register_with_agent_away(rig)
        for data in (b"", b"{}", event()[:-1]):
            answer = await sending(rig, data or b"x")
            assert answer.verdict is Verdict.REFUSED
            assert CLAIM not in answer.detail
        with pytest.raises(TypeError):
            await rig.coordinator.workflow_targets.deliver(
                Webhook(url="http://x", secret="s"), event(), event_id="e", timeout=1.0
            )

    virtual(scenario)


def test_the_deliverer_is_the_one_of_the_interface() -> None:
    from corral.backends.event.interface import Deliverer

    def takes(deliverer: Deliverer) -> Deliverer:
        return deliverer

    async def scenario(rig: Rig) -> None:
        assert isinstance(takes(rig.coordinator.workflow_targets), WorkflowDeliverer)

    virtual(scenario)
