# SPDX-License-Identifier: Apache-2.0
"""What operators see of provisions, and say of those that could not be confirmed gone."""

from __future__ import annotations

import pytest

from corral.control import ledger
from corral.model.errors import NotFound, Refused
from corral.model.events import EventKind
from corral.model.ids import AgentId
from corral.model.states import AgentState, ProvisionEvent, ProvisionState
from corral.store.repo import deliveries
from corral.store.repo import provisions as provisions_rows
from tests.control.leading import Leader, creation, event_pool
from tests.control.worlds import World

ONE = AgentId("agent_a")


def leak(world: World) -> Leader:
    """One instance that could not be ended."""
    leader = Leader(world, event_pool(most=20, cost_per_hour=0.5))
    leader.admit(creation(), ONE)
    for event in (ProvisionEvent.RELEASE, ProvisionEvent.EXHAUSTED):
        world.write(provisions_rows.advance, world.provision(ONE), event, error="it refuses")
    return leader


def test_the_list_tells_what_each_costs(world: World) -> None:
    leader = leak(world)
    leader.admit(creation(), "agent_b")
    world.clock.pass_time(5400)
    found = world.read(ledger.listed)
    assert {(each.id, each.state, each.cost, each.age) for each in found} == {
        ("agent_a", "abandoned", 0.75, 5400.0),
        ("agent_b", "requested", 0.75, 5400.0),
    }
    assert [each.id for each in world.read(ledger.listed, state="abandoned")] == ["agent_a"]
    assert world.read(ledger.listed, pool="other") == ()


def test_the_cost_ends_with_the_instance(world: World) -> None:
    leak(world)
    world.clock.pass_time(3600)
    world.write(ledger.forget, ONE, "tok_1")
    world.clock.pass_time(3600)
    (view,) = world.read(ledger.listed, state="gone")
    assert (view.cost, view.age) == (0.5, 3600.0)


def test_one_is_shown_with_its_story_and_its_events(world: World) -> None:
    leak(world)
    view = world.read(ledger.shown, ONE)
    assert [(event.sequence, event.kind) for event in view.deliveries] == [
        (1, EventKind.SCALE_UP),
        (2, EventKind.SCALE_DOWN),
    ]
    assert [sentence.split(" ", 1)[1] for sentence in view.story] == [
        "instance agent_a was asked for in pool p (event)",
        "the instance was released: it refuses",
        "scale-up is dropped after 0 sendings",
        "scale-down is failed after 0 sendings: given up",
    ]
    with pytest.raises(NotFound):
        world.read(ledger.shown, AgentId("agent_q"))


def test_a_retried_one_is_asked_to_end_again(world: World) -> None:
    leak(world)
    world.write(ledger.retry, ONE, "tok_1")
    assert (world.provision(ONE).state, world.provision(ONE).release_attempts) == (ProvisionState.RELEASING, 0)
    last = world.read(deliveries.of_agent, ONE)[-1]
    assert (last.kind, last.sequence) == (EventKind.SCALE_DOWN, 3)
    with pytest.raises(Refused, match="is releasing, only abandoned ones are tried again"):
        world.write(ledger.retry, ONE, "tok_1")


def test_a_forgotten_one_is_off_the_ledger_and_it_is_known_who_said_so(world: World) -> None:
    leak(world)
    world.write(ledger.forget, ONE, "tok_1")
    row = world.provision(ONE)
    assert (row.state, row.error) == (ProvisionState.GONE, "it refuses; forgotten by tok_1")
    assert world.agent(ONE).state is AgentState.ENDED
    with pytest.raises(Refused, match="is gone"):
        world.write(ledger.forget, ONE, "tok_1")


def test_only_what_is_abandoned_can_be_forgotten(world: World) -> None:
    """An instance that runs does not cease to be because somebody says so."""
    leader = Leader(world, event_pool())
    leader.admit(creation(), ONE)
    with pytest.raises(Refused, match="drain its agent"):
        world.write(ledger.forget, ONE, "tok_1")
    assert world.provision(ONE).state is ProvisionState.REQUESTED
