# SPDX-License-Identifier: Apache-2.0
"""A coordinator with an event pool over a provisioner in memory, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from corral.backends.event.fake import Cloud, FakeProvisioner
from corral.control.coordinator import Coordinator, CoordinatorSettings, Stores, identify
from corral.control.fleet import Fleet
from corral.model.events import EventKind, Webhook
from corral.model.ids import AgentId
from corral.model.labels import labels
from corral.model.pools import EVENT, Caps, Pool
from corral.model.records import Delivery, Provision
from corral.sim.loop import VirtualLoop, run
from corral.store.repo import deliveries
from corral.store.repo import provisions as provisions_rows
from corral.wire.messages import Welcome
from tests.control.rig import Puppet, Rig

TARGET = Webhook(url="http://provisioner.sim/", secret="hook", timeout=30.0)


def pool(max_agents: int = 4, **more: Any) -> Pool:
    values = {"name": "cloud", "labels": labels(("x",)), "spawn_timeout": 120.0, "idle_timeout": 30.0, **more}
    return Pool(backend=EVENT, target=TARGET, max_agents=max_agents, **values)


class EventRig(Rig):
    """``cloud`` outlives every coordinator."""

    def __init__(self, loop: VirtualLoop, settings: CoordinatorSettings, pools: tuple[Pool, ...], caps: Caps) -> None:
        super().__init__(loop, settings, pools, caps)
        self.cloud = Cloud()

    async def start(self) -> None:
        identity = await identify(self.database, self.chance, take_lease=True)
        self.coordinator = Coordinator(
            clock=self.clock,
            chance=self.chance,
            stores=Stores(database=self.database, logs=self.logs, sources=self.sources),
            sealer=self.sealer,
            identity=identity,
            backends={},
            fleet=Fleet(self.pools, self.caps, self._load),
            settings=self.settings,
            deliverer=FakeProvisioner(self.clock, self.cloud),
        )
        await self.coordinator.start()

    async def restart(self) -> None:
        await self.coordinator.stop(grace=1.0)
        await self.start()

    def provisions(self) -> tuple[Provision, ...]:
        return self.look(provisions_rows.live)

    def provision(self, agent_id: str) -> Provision:
        found = self.look(lambda c: provisions_rows.get(c, AgentId(agent_id)))
        assert found is not None
        return found

    def events(self, agent_id: str) -> tuple[Delivery, ...]:
        return self.look(lambda c: deliveries.of_agent(c, AgentId(agent_id)))

    def heard(self, kind: EventKind) -> list[str]:
        """Agents of the events of this kind that arrived, in order."""
        return [one.agent_id for one in self.cloud.heard if one.kind is kind]

    async def so(self, look: Callable[[], object], timeout: float = 60.0) -> None:
        async def asked() -> object:
            return look()

        await self.until(asked, timeout)

    async def agent_of(self, agent_id: str) -> Puppet:
        """The agent on an instance that was made, welcomed."""
        puppet = self.connect(f"{agent_id}.key-of-{agent_id}")
        await puppet.hello(claim_code=str(self.cloud.instances[agent_id].event["claim_code"]))
        await puppet.expect(Welcome)
        return puppet


def with_events(scenario: Callable[[EventRig], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Run ``scenario`` against a started coordinator with one event pool."""
    pools, caps = settings.pop("pools", (pool(),)), settings.pop("caps", Caps())
    prepare = settings.pop("prepare", lambda rig: None)
    loop = VirtualLoop()

    async def whole() -> None:
        rig = EventRig(loop, CoordinatorSettings(**settings), pools, caps)
        prepare(rig)
        await rig.start()
        try:
            await scenario(rig)
        finally:
            await rig.coordinator.stop(grace=1.0)
            await rig.end()

    run(whole(), loop)
