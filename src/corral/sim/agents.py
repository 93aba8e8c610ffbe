# SPDX-License-Identifier: Apache-2.0
"""Simulated instances: each holds one real agent :class:`~corral.agent.worker.Worker`, its own clock and its jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from corral.agent.ending import Ending
from corral.agent.interface import Link
from corral.agent.interface import LinkClosed as AgentLinkClosed
from corral.agent.worker import Worker
from corral.backends.interface import InstanceSpec
from corral.model.agentconfig import AgentConfig
from corral.model.ids import AgentId
from corral.runtime.chance import SeededChance
from corral.runtime.clock import Clock
from corral.sim.actors import Actor
from corral.sim.jobs import SimRunner
from corral.sim.link import Wire
from corral.wire.messages import Facts

if TYPE_CHECKING:
    from corral.sim.world import World


class SimAgent:
    """One instance from its creation to its end. ``cut_until``: nobody is reached before that second."""

    def __init__(self, world: World, config: AgentConfig, name: str, *, static: bool = False) -> None:
        self.name = name
        self.config = config
        self.id = AgentId(config.agent_id)
        self.static = static
        """Nobody made it and nobody destroys it: somebody's own machine."""
        self.actor = Actor(name, world.loop)
        self.cut_until = 0.0
        self.wire: Wire | None = None
        self.worker: Worker | None = None
        self.ending: Ending | None = None
        self.destroyed = False
        self.crashed = False
        self._world = world

    @property
    def alive(self) -> bool:
        return self.actor.alive and self.ending is None

    async def live(self, boot: float, clock: Clock, chance: SeededChance, on_end: Callable[[SimAgent], None]) -> None:
        """The instance's whole life: boot, the agent's process, its end. Runs as a part of the actor."""
        await asyncio.sleep(boot)
        self.worker = Worker(
            config=self.config,
            dial=self,
            runner=SimRunner(self._world.truth, self.id, self._world.report),
            clock=clock,
            chance=chance,
            facts=Facts(os="linux", arch="x86_64", host=self.name, version="0"),
        )
        self.ending = await self.worker.run()
        self._world.journal.note(self.name, f"ends: {self.ending.code.name.lower()}, {self.ending.message}")
        on_end(self)

    async def dial(self, url: str) -> Link:
        """A :class:`~corral.agent.interface.Dial`."""
        await asyncio.sleep(self._world.network.latency())
        if self._world.loop.time() < self.cut_until:
            await asyncio.sleep(self.cut_until - self._world.loop.time())
        wire = self._world.connect(self)
        if wire is None:
            raise AgentLinkClosed(f"connection refused by {url}")
        self.wire = wire
        return wire.agent


def config_of(spec: InstanceSpec) -> AgentConfig:
    """What a backend hands an instance."""
    return AgentConfig(
        agent_id=spec.agent_id,
        coordinator_urls=spec.coordinator_urls,
        claim_code=spec.claim_code.reveal(),
        single_use=spec.single_use,
        work_dir="/",
        cache_dir="/",
    )
