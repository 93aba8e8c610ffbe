# SPDX-License-Identifier: Apache-2.0
"""The coordinator is killed at every point between an event provision's intent and its end; the world converges."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from corral.backends.event.fake import Fault, Late, LoseAnswer
from corral.model.events import EventKind, Webhook
from corral.model.states import ProvisionState
from corral.sim.load import job, pool, step, workflow
from corral.sim.run import play
from corral.sim.waiting import ended, rest, submit, until
from corral.sim.world import World
from corral.store import tables

TARGET = Webhook(url="http://provisioner.sim/", secret="hook")


def states(world: World) -> list[str]:
    return world.query(lambda c: world.query_all(c, tables.provisions.c.state))


def heard(world: World, kind: EventKind) -> list[str]:
    return [one.agent_id for one in world.cloud.heard if one.kind is kind]


POINTS: dict[str, Callable[[World], object]] = {
    "intent written": lambda world: states(world),
    "send recorded": lambda world: "sending" in world.query(lambda c: world.query_all(c, tables.deliveries.c.state)),
    "it arrived": lambda world: heard(world, EventKind.SCALE_UP),
    "created": lambda world: world.cloud.created,
    "registered": lambda world: ProvisionState.ACTIVE in states(world),
    "working": lambda world: world.truth.running,
    "scale-down recorded": lambda world: ProvisionState.RELEASING in states(world),
    "scale-down arrived": lambda world: heard(world, EventKind.SCALE_DOWN),
    "destroyed": lambda world: world.cloud.destroyed,
}


@pytest.mark.parametrize("fault", [None, LoseAnswer(), Late(seconds=3.0)], ids=["no fault", "lost", "late"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_point(point: str, fault: Fault | None) -> None:
    """L1, L3, L9: the same key is asked for again, the job is done, nothing is left."""

    async def script(world: World) -> None:
        if fault is not None:
            world.cloud.next_up.append(fault)
            world.cloud.next_down.append(fault)
        await world.start()
        run = await submit(world, workflow(job("j", step(seconds=20.0, log=100))))
        await until(world, lambda: POINTS[point](world), 300.0, point)
        await world.crash()
        await world.start()
        assert (await ended(world, run, within=1200.0)).state == "succeeded"
        await rest(world)
        assert set(heard(world, EventKind.SCALE_UP)) == set(world.cloud.created)
        assert len(world.cloud.created) == 1
        terms: dict[str, list[EventKind]] = {}
        for one in world.cloud.heard:
            terms.setdefault(one.epoch, []).append(one.kind)
        assert all(kinds[0] is EventKind.INVENTORY for kinds in terms.values())

    pools = (pool("cloud", backend="event", target=TARGET),)
    world = play(script, lambda loop: World(f"events/{point}", loop, pools=pools, keep=True))
    assert not world.violations, world.violations
