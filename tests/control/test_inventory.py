# SPDX-License-Identifier: Apache-2.0
"""Reports, listings, strays and ghosts: what a provisioner says is weighed, never obeyed."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from corral.backends.event.fake import Accept, Say
from corral.model.errors import NotFound
from corral.model.events import Answer, EventKind, ListedInstance, Listing, ProvisionReport, Verdict
from corral.model.ids import AgentId
from corral.model.states import ProvisionState
from tests.control.events import EventRig, with_events
from tests.control.test_outbox import one_up, worked

EVERY = {"inventory_every": 130.0}


def stray(rig: EventRig, agent_id: str = "agent_lost", cluster: str = "") -> None:
    own = cluster or str(rig.coordinator.identity.cluster_id)
    rig.cloud.create({"agent_id": agent_id, "cluster_id": own, "pool": "cloud"})


async def report(rig: EventRig, agent_id: str, state: str, **more: Any) -> Any:
    return await rig.coordinator.report_provision(AgentId(agent_id), ProvisionReport(state=state, **more))


def test_a_stray_is_destroyed_after_two_listings_a_grace_apart() -> None:
    """L9, L20: seen on the ledger with its cost at once, ended by way of a provision of its own."""

    async def scenario(rig: EventRig) -> None:
        stray(rig)
        await rig.so(lambda: rig.cloud.heard, timeout=5)
        await asyncio.sleep(1)
        leaks = (await rig.coordinator.ledger()).leaks
        assert [(leak.kind, leak.agent_id, leak.cost_per_hour) for leak in leaks] == [("stray", "agent_lost", 1.0)]
        assert "agent_lost" in rig.cloud.instances
        await rig.so(lambda: not rig.cloud.instances, timeout=300)
        row = rig.provision("agent_lost")
        assert row.release_reason == "inventory-stray"
        await rig.so(lambda: rig.provision("agent_lost").state is ProvisionState.GONE)

    with_events(scenario, **EVERY)


def test_a_foreign_instance_is_never_touched() -> None:
    async def scenario(rig: EventRig) -> None:
        stray(rig, cluster="corral-other")
        await asyncio.sleep(1000)
        assert "agent_lost" in rig.cloud.instances
        assert (await rig.coordinator.ledger()).leaks == ()

    with_events(scenario, **EVERY)


def test_a_stray_whose_agent_knocks_is_left_alone() -> None:
    """K2: a hello, verified or not, is evidence that somebody lives there."""

    async def scenario(rig: EventRig) -> None:
        stray(rig)
        for _ in range(10):
            await rig.connect("agent_lost.some-key").hello(claim_code="claim_unknown")
            await asyncio.sleep(100)
        assert "agent_lost" in rig.cloud.instances

    with_events(scenario, **EVERY)


def test_after_a_restore_strays_wait_for_an_operator() -> None:
    """What a lost commit knew is listed as a stray."""

    async def scenario(rig: EventRig) -> None:
        await asyncio.sleep(1)
        await rig.run()
        await rig.so(lambda: rig.cloud.created)
        await rig.coordinator.raise_epoch()
        stray(rig)
        await asyncio.sleep(1000)
        assert "agent_lost" in rig.cloud.instances
        assert "STRAYS_HELD" in [alarm.code for alarm in (await rig.coordinator.ledger()).alarms]
        await rig.coordinator.approve_strays()
        await rig.so(lambda: "agent_lost" not in rig.cloud.instances, timeout=400)

    with_events(scenario, **EVERY)


def test_a_ghost_is_shown_and_never_torn_down() -> None:
    """K2: a list that lags, or forgets, condemns nobody."""

    async def scenario(rig: EventRig) -> None:
        agent_id = await one_up(rig)
        puppet = await rig.agent_of(agent_id)
        await puppet.take()
        del rig.cloud.instances[agent_id]
        reading = asyncio.create_task(puppet.silent(500))
        await asyncio.sleep(450)
        leaks = (await rig.coordinator.ledger()).leaks
        assert [(leak.kind, leak.agent_id) for leak in leaks] == [("ghost", agent_id)]
        assert rig.provision(agent_id).state is ProvisionState.ACTIVE
        assert await gauge(rig, "corral_ghosts") == 1
        assert [row.name for row in (await rig.coordinator.diagnose("leaks")).rows] == ["ghosts"]
        await reading

    with_events(scenario, **EVERY)


def test_an_instance_that_works_is_a_leak_nowhere() -> None:
    """Ledger, metrics and diagnosis count from one place."""

    async def scenario(rig: EventRig) -> None:
        agent_id = await one_up(rig)
        puppet = await rig.agent_of(agent_id)
        await puppet.take()
        reading = asyncio.create_task(puppet.silent(500))
        await asyncio.sleep(450)
        assert rig.heard(EventKind.INVENTORY), "it was listed meanwhile"
        assert (await rig.coordinator.ledger()).leaks == ()
        for name in ("corral_ghosts", "corral_strays", "corral_provisions_abandoned"):
            assert await gauge(rig, name) == 0
        assert [row.status for row in (await rig.coordinator.diagnose("leaks")).rows] == ["ok"]
        await reading

    with_events(scenario, **EVERY)


async def gauge(rig: EventRig, name: str) -> float:
    page = (await rig.coordinator.metrics()).decode()
    return float(next(line for line in page.splitlines() if line.startswith(name)).split()[-1])


def test_two_listings_without_an_abandoned_instance_end_it() -> None:
    refusal = Say(answer=Answer(verdict=Verdict.REFUSED, detail="no"))

    async def scenario(rig: EventRig) -> None:
        agent_id = await worked(rig)
        await rig.so(lambda: rig.provision(agent_id).state is ProvisionState.ABANDONED, timeout=3 * 3600)
        view = await rig.coordinator.ledger()
        assert view.hourly("abandoned") >= 0
        assert [alarm.code for alarm in view.alarms] == ["ABANDONED"]
        assert await gauge(rig, "corral_provisions_abandoned") == 1
        # Given up on, it frees its slot: shown, scraped and planned with alike.
        (shown,) = await rig.coordinator.pools()
        assert shown.agents == 0
        assert await gauge(rig, "corral_pool_headroom_agents") == shown.max_agents
        del rig.cloud.instances[agent_id]
        await asyncio.sleep(100)
        assert rig.provision(agent_id).state is ProvisionState.ABANDONED
        await rig.so(lambda: rig.provision(agent_id).state is ProvisionState.GONE, timeout=400)

    with_events(scenario, prepare=lambda rig: rig.cloud.next_down.extend([refusal] * 20), **EVERY)


@pytest.mark.parametrize("state", ["gone", "failed"])
def test_a_report_about_an_agent_that_is_here_changes_nothing(state: str) -> None:
    """It lies, or speaks of another: only a warning."""

    async def scenario(rig: EventRig) -> None:
        agent_id = await one_up(rig)
        await rig.agent_of(agent_id)
        view = await report(rig, agent_id, state, provider_id="i-late")
        assert not view.taken
        assert rig.provision(agent_id).state is ProvisionState.ACTIVE
        assert rig.provision(agent_id).ended_at is None
        assert rig.provision(agent_id).provider_id == "i-late"

    with_events(scenario)


def test_a_failure_reported_after_the_acceptance_releases_it() -> None:
    """L8, L15."""

    async def scenario(rig: EventRig) -> None:
        agent_id = await one_up(rig)
        await report(rig, agent_id, "failed", reason="no image", provider_id="i-9")
        await rig.so(lambda: rig.heard(EventKind.SCALE_DOWN))
        assert rig.provision(agent_id).provider_id == "i-9"

    with_events(scenario)


def test_gone_is_believed_of_one_that_is_being_released() -> None:
    async def scenario(rig: EventRig) -> None:
        agent_id = await worked(rig)
        await rig.so(lambda: rig.heard(EventKind.SCALE_DOWN))
        await asyncio.sleep(125)
        assert rig.provision(agent_id).state is ProvisionState.RELEASING
        assert (await report(rig, agent_id, "gone")).taken
        assert rig.provision(agent_id).state is ProvisionState.GONE

    accepted = Say(answer=Answer(verdict=Verdict.ACCEPTED))
    with_events(scenario, prepare=lambda rig: rig.cloud.next_down.extend([accepted] * 50))


def test_a_listing_comes_in_parts_and_only_for_what_was_asked() -> None:
    async def scenario(rig: EventRig) -> None:
        await rig.so(lambda: rig.cloud.heard)
        await asyncio.sleep(1)
        key = next(iter(rig.coordinator.inventories._requests))
        cluster = str(rig.coordinator.identity.cluster_id)
        parts = [ListedInstance(agent_id=f"agent_{n}", cluster_id=cluster) for n in range(2)]
        await rig.coordinator.take_listing(Listing(request=key, instances=(parts[0],), complete=False))
        assert (await rig.coordinator.ledger()).leaks == ()
        view = await rig.coordinator.take_listing(Listing(request=key, instances=(parts[1],)))
        assert {leak.agent_id for leak in view.leaks} == {"agent_0", "agent_1"}
        with pytest.raises(NotFound):
            await rig.coordinator.take_listing(Listing(instances=(), request="1.1.9"))

    def prepare(rig: EventRig) -> None:
        rig.cloud.next_inventory.append(Say(answer=Answer(verdict=Verdict.ACCEPTED)))

    with_events(scenario, prepare=prepare)


def test_a_higher_epoch_is_an_alarm_and_neither_done_nor_failed() -> None:
    """EPOCH_BEHIND; raising ours begins a new term at once, and what waited is done."""

    async def whole(rig: EventRig) -> None:
        agent_id = await one_up(rig)
        rig.cloud.epochs[str(rig.coordinator.identity.cluster_id)] = (2, 0)
        puppet = await rig.agent_of(agent_id)
        await puppet.finish(await puppet.take())
        await asyncio.sleep(600)
        assert rig.provision(agent_id).state is ProvisionState.RELEASING
        assert [alarm.code for alarm in (await rig.coordinator.ledger()).alarms] == ["EPOCH_BEHIND"]
        assert await gauge(rig, "corral_targets_epoch_behind") == 1
        before = await gauge(rig, "corral_lease_generation")
        await rig.coordinator.raise_epoch()
        await rig.so(lambda: rig.provision(agent_id).state is ProvisionState.GONE, timeout=400)
        assert await gauge(rig, "corral_lease_generation") > before
        assert (await rig.coordinator.ledger()).alarms == ()

    with_events(whole)


def test_an_accepted_end_is_believed_after_two_listings() -> None:
    forever = Accept(seconds=0.5)

    async def scenario(rig: EventRig) -> None:
        agent_id = await worked(rig)
        await rig.so(lambda: rig.provision(agent_id).state is ProvisionState.GONE, timeout=1500)

    with_events(scenario, prepare=lambda rig: rig.cloud.next_down.extend([forever] * 100), **EVERY)


def test_the_fake_lists_what_it_tagged() -> None:
    async def scenario(rig: EventRig) -> None:
        agent_id = await one_up(rig)
        listed = msgspec.to_builtins(rig.cloud.listing())
        assert [one["agent_id"] for one in listed["instances"]] == [agent_id]

    with_events(scenario)
