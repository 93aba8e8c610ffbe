# SPDX-License-Identifier: Apache-2.0
"""From a queued job to an instance of a user's own provisioner and back, whatever the provisioner does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from corral.backends.event.fake import Accept, Fault, Hang, Late, LoseAnswer, Say
from corral.model.events import Answer, EventKind, Verdict
from corral.model.ids import RunId
from corral.model.states import DeliveryState, ProvisionState
from corral.store.repo import pool_health as pool_health_rows
from tests.control.events import EventRig, pool, with_events

UP, DOWN, INVENTORY = EventKind.SCALE_UP, EventKind.SCALE_DOWN, EventKind.INVENTORY


async def one_up(rig: EventRig) -> str:
    """A job, and the instance made for it."""
    await rig.run()
    await rig.so(lambda: rig.cloud.created)
    return rig.cloud.created[0]


async def worked(rig: EventRig) -> str:
    """An instance whose agent has done its job and left."""
    agent_id = await one_up(rig)
    puppet = await rig.agent_of(agent_id)
    await puppet.finish(await puppet.take())
    return agent_id


def test_a_job_brings_an_instance_and_its_end_takes_it_back() -> None:
    async def scenario(rig: EventRig) -> None:
        agent_id = await worked(rig)
        await rig.so(lambda: rig.provision(agent_id).state is ProvisionState.GONE)
        assert rig.heard(UP) == [agent_id]
        assert rig.heard(DOWN) == [agent_id]
        assert not rig.cloud.instances
        assert [event.state for event in rig.events(agent_id)] == [DeliveryState.DELIVERED] * 2
        assert [event.sequence for event in rig.events(agent_id)] == [1, 2]

    with_events(scenario)


def test_the_first_event_of_a_term_is_the_inventory_request() -> None:
    """Also before the first creation, and again in the next term."""

    async def scenario(rig: EventRig) -> None:
        await one_up(rig)
        assert rig.cloud.heard[0].kind is INVENTORY
        before = len(rig.cloud.heard)
        await rig.restart()
        await rig.so(lambda: len(rig.cloud.heard) > before)
        assert rig.cloud.heard[before].kind is INVENTORY
        assert rig.cloud.heard[before].epoch != rig.cloud.heard[0].epoch

    with_events(scenario)


@pytest.mark.parametrize("silence", [Hang(), Say(answer=Answer(verdict=Verdict.LATER, detail="503"))])
def test_nothing_is_destroyed_before_the_inventory_request_was_received(silence: Fault) -> None:
    async def scenario(rig: EventRig) -> None:
        agent_id = await worked(rig)
        rig.cloud.heard.clear()
        await asyncio.sleep(300)
        assert rig.heard(DOWN) == []
        await rig.so(lambda: rig.heard(DOWN) == [agent_id], timeout=700)
        assert rig.coordinator.outbox is not None
        assert rig.coordinator.outbox.unanswered

    with_events(scenario, prepare=lambda rig: rig.cloud.next_inventory.extend([silence] * 500))


def test_an_unsupported_inventory_is_a_receipt() -> None:
    async def scenario(rig: EventRig) -> None:
        agent_id = await worked(rig)
        await rig.so(lambda: rig.provision(agent_id).state is ProvisionState.GONE, timeout=30)

    def prepare(rig: EventRig) -> None:
        rig.cloud.lists = False

    with_events(scenario, prepare=prepare)


def test_a_lost_answer_is_asked_again_with_the_same_key() -> None:
    """L3, D10: the same event id, the same agent id, one instance."""

    async def scenario(rig: EventRig) -> None:
        agent_id = await one_up(rig)
        await rig.so(lambda: rig.heard(UP) == [agent_id, agent_id])
        ids = {one.event_id for one in rig.cloud.heard if one.kind is UP}
        assert len(ids) == 1
        assert rig.cloud.created == [agent_id]

    with_events(scenario, prepare=lambda rig: rig.cloud.next_up.append(LoseAnswer()))


def test_an_agent_that_registers_before_the_answer_ends_the_delivery() -> None:
    """Q14: any report may overtake the answer."""

    async def scenario(rig: EventRig) -> None:
        agent_id = await worked(rig)
        await rig.so(lambda: rig.provision(agent_id).state is ProvisionState.GONE, timeout=120)
        assert rig.heard(UP) == [agent_id]

    with_events(scenario, prepare=lambda rig: rig.cloud.next_up.append(Late(seconds=1.0)))


def test_what_fails_for_good_is_followed_by_a_scale_down() -> None:
    """L15, reference 11.1 no. 6: it may have made something all the same; the id in the error is kept."""
    refused = Answer(verdict=Verdict.ABSENT, detail="410 quota", provider_id="i-broken")

    async def scenario(rig: EventRig) -> None:
        await rig.run()
        await rig.so(lambda: rig.heard(DOWN))
        agent_id = rig.heard(DOWN)[0]
        assert rig.provision(agent_id).provider_id == "i-broken"
        await rig.so(lambda: rig.provision(agent_id).state is ProvisionState.GONE)

    with_events(scenario, prepare=lambda rig: rig.cloud.next_up.append(Say(answer=refused)))


def test_a_cancelled_job_takes_its_instance_back() -> None:
    """Reference 11.1 no. 15: it is no failure of the pool."""

    async def scenario(rig: EventRig) -> None:
        run = await rig.run()
        await rig.so(lambda: rig.cloud.created)
        await rig.coordinator.cancel_run(RunId(run.id))
        await rig.so(lambda: not rig.cloud.instances, timeout=120)
        assert rig.look(pool_health_rows.every) == ()

    with_events(scenario)


def test_a_creation_under_way_is_over_before_its_end_is_asked_for() -> None:
    """A slow create must not land behind a finished destroy."""

    async def scenario(rig: EventRig) -> None:
        run = await rig.run()
        await rig.so(lambda: rig.heard(UP))
        began = rig.loop.time()
        await rig.coordinator.cancel_run(RunId(run.id))
        await rig.so(lambda: rig.heard(DOWN), timeout=120)
        assert rig.loop.time() - began >= 29
        await rig.so(lambda: not rig.provisions(), timeout=120)
        assert not rig.cloud.instances

    with_events(scenario, prepare=lambda rig: rig.cloud.next_up.append(Late(seconds=20.0)))


def test_a_refusal_is_retried_and_given_up_on_the_ledger() -> None:
    """L10: capped, then abandoned; nothing more is sent until somebody says so."""
    refusal = Say(answer=Answer(verdict=Verdict.REFUSED, detail="400 malformed zone"))

    async def scenario(rig: EventRig) -> None:
        agent_id = await worked(rig)
        await rig.so(lambda: rig.provision(agent_id).state is ProvisionState.ABANDONED, timeout=3 * 3600)
        assert len(rig.heard(DOWN)) == 20
        assert "malformed zone" in rig.provision(agent_id).error
        await asyncio.sleep(3600)
        assert len(rig.heard(DOWN)) == 20
        rig.cloud.next_down.clear()
        await rig.coordinator.retry_provision(rig.provision(agent_id).agent_id)
        await rig.so(lambda: rig.provision(agent_id).state is ProvisionState.GONE)

    with_events(scenario, prepare=lambda rig: rig.cloud.next_down.extend([refusal] * 100))


def test_a_provisioner_that_is_down_for_an_hour_is_waited_for() -> None:
    """Bounded, visible, recovered: nothing is abandoned, and everything goes at the end."""

    async def scenario(rig: EventRig) -> None:
        agent_id = await worked(rig)
        rig.cloud.down = True
        await asyncio.sleep(3600)
        assert rig.provision(agent_id).state is ProvisionState.RELEASING
        rig.cloud.down = False
        await rig.so(lambda: rig.provision(agent_id).state is ProvisionState.GONE, timeout=400)
        assert not rig.cloud.instances

    def prepare(rig: EventRig) -> None:
        rig.cloud.next_down.append(Hang())

    with_events(scenario, prepare=prepare)


def test_an_accepted_end_needs_a_second_look() -> None:
    """L16: 'not found' right after an asynchronous delete is not believed at once."""

    async def scenario(rig: EventRig) -> None:
        agent_id = await worked(rig)
        await rig.so(lambda: len(rig.heard(DOWN)) == 2)
        assert rig.provision(agent_id).state is ProvisionState.RELEASING
        await rig.so(lambda: rig.provision(agent_id).state is ProvisionState.GONE, timeout=120)
        assert len(rig.heard(DOWN)) == 3

    with_events(scenario, prepare=lambda rig: rig.cloud.next_down.append(Accept(seconds=1.0)))


def test_a_lie_is_found_by_the_next_inventory() -> None:
    """Gone, said the provisioner, and lists it: it goes back to being destroyed."""
    lie = Say(answer=Answer(verdict=Verdict.DONE))

    async def scenario(rig: EventRig) -> None:
        agent_id = await worked(rig)
        await rig.so(lambda: rig.provision(agent_id).state is ProvisionState.GONE)
        assert agent_id in rig.cloud.instances
        await rig.so(lambda: not rig.cloud.instances, timeout=700)
        await rig.so(lambda: rig.provision(agent_id).state is ProvisionState.GONE)

    with_events(scenario, prepare=lambda rig: rig.cloud.next_down.append(lie))


def test_one_that_hangs_starves_nobody() -> None:
    """S5: every external call is bounded; ends are asked for while creations hang."""

    async def scenario(rig: EventRig) -> None:
        agent_id = await worked(rig)
        rig.cloud.next_up.extend([Hang()] * 100)
        for _ in range(12):
            await rig.run()
        await rig.so(lambda: rig.provision(agent_id).state is ProvisionState.GONE, timeout=20)

    with_events(scenario, pools=(pool(20),))


def test_a_claim_stands_nowhere_but_in_the_event() -> None:
    """Reference 11.1 no. 16: neither in the outbox nor in a view."""

    async def scenario(rig: EventRig) -> None:
        agent_id = await one_up(rig)
        code = str(rig.cloud.instances[agent_id].event["claim_code"])
        assert code.startswith("claim_")
        assert code not in repr(rig.events(agent_id))
        assert code not in repr(await rig.coordinator.provision(rig.provision(agent_id).agent_id))

    with_events(scenario)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(lambda rig: rig.provisions(), id="intent written"),
        pytest.param(lambda rig: rig.heard(UP), id="send recorded, created, answer lost"),
        pytest.param(lambda rig: rig.cloud.instances, id="created"),
    ],
)
@pytest.mark.parametrize("fault", [None, LoseAnswer(), Late(seconds=20.0)])
def test_after_a_restart_in_the_middle_the_same_instance_is_asked_for(
    moment: Callable[[EventRig], object], fault: Fault | None
) -> None:
    """L3, L9: intent, then the same key; never a second instance, none is left."""

    async def scenario(rig: EventRig) -> None:
        await rig.run()
        await rig.so(lambda: moment(rig))
        await rig.restart()
        await rig.so(lambda: rig.cloud.created, timeout=120)
        assert set(rig.heard(UP)) == {rig.cloud.created[0]}
        puppet = await rig.agent_of(rig.cloud.created[0])
        await puppet.finish(await puppet.take(timeout=60))
        await rig.so(lambda: not rig.provisions(), timeout=300)
        assert not rig.cloud.instances
        assert len(rig.cloud.created) == 1

    with_events(scenario, prepare=lambda rig: rig.cloud.next_up.extend([fault] if fault else []))
