# SPDX-License-Identifier: Apache-2.0
"""The simulated installation: one coordinator at a time over stores that outlive it, and the instances it asks for.

Everything that decides is the real thing: :class:`~corral.control.coordinator.Coordinator` with its services and the
real SQL, and :class:`~corral.agent.worker.Worker` on every instance. What is simulated is what lies between and below
them: time, network, backend, jobs.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection, select

from corral.backends.event.fake import Cloud, FakeProvisioner, Made
from corral.backends.fake import FakeBackend, FakeHost
from corral.backends.interface import Created, Ending, Finding, Instance, InstanceSpec, Isolation
from corral.control.bell import Bell
from corral.control.coordinator import Coordinator, CoordinatorSettings, Stores, identify
from corral.control.fleet import Fleet
from corral.model.agentconfig import AgentConfig
from corral.model.errors import CorralError
from corral.model.events import Answer, Target
from corral.model.ids import AgentId
from corral.model.pools import Caps, Pool
from corral.runtime.chance import SeededChance
from corral.runtime.sealing import Sealer
from corral.sim.actors import Actor
from corral.sim.agents import SimAgent, config_of
from corral.sim.clock import VirtualClock
from corral.sim.describe import describe_change, describe_frame
from corral.sim.invariants import Watch
from corral.sim.journal import Journal
from corral.sim.link import Wire
from corral.sim.loop import VirtualLoop
from corral.sim.stores import Change, DatabaseWay, LogsWay, SharedDatabase
from corral.sim.truth import Truth, Violation
from corral.store.logmemory import MemoryLogs
from corral.store.sourcememory import MemorySources

T = TypeVar("T")

URL = "http://corral.sim:7420"
RESTART_PAUSE = 1.0
"""Seconds before a coordinator that could not start is started again."""


@dataclass(kw_only=True)
class Network:
    """Seconds of one way of a frame: mostly a little, sometimes more."""

    random: random.Random
    least: float = 0.0002
    most: float = 0.004

    def latency(self) -> float:
        return self.random.uniform(self.least, self.most)


@dataclass(kw_only=True)
class Settings:
    """``boot``: seconds from a create call to the agent's first dial, drawn between the two.
    ``lost_rings``: the probability with which a notification inside the coordinator or from the backend is lost.
    ``tied``: instances end with the coordinator's process and leave no trace, as under ``corral run``."""

    coordinator: CoordinatorSettings = field(default_factory=lambda: CoordinatorSettings(urls=(URL,)))
    caps: Caps = field(default_factory=Caps)
    boot: tuple[float, float] = (0.05, 3.0)
    create: tuple[float, float] = (0.0, 0.5)
    destroy: tuple[float, float] = (0.0, 0.5)
    lost_rings: float = 0.0
    tied: bool = False


class DeafBell(Bell):
    """Loses notifications."""

    def __init__(self, lost: Callable[[], bool]) -> None:
        super().__init__()
        self._lost = lost

    def ring(self, *topics: str) -> None:
        super().ring(*(topic for topic in topics if not self._lost()))


class BackendWay:
    """One coordinator's :class:`~corral.backends.interface.Backend`: takes its time, and dies with its process."""

    kind = "fake"
    local = True
    can_list = True
    isolation = Isolation.NONE

    def __init__(self, world: World, inner: FakeBackend, actor: Actor) -> None:
        self.inner = inner
        self._world = world
        self._actor = actor

    async def create(self, spec: InstanceSpec, deadline: float) -> Created:
        await self._travel(self._world.settings.create)
        created = await self.inner.create(spec, deadline)
        await self._travel(self._world.settings.create)
        return created

    async def destroy(self, agent_id: AgentId, deadline: float) -> None:
        await self._travel(self._world.settings.destroy)
        await self.inner.destroy(agent_id, deadline)
        await self._travel(self._world.settings.destroy)

    async def _travel(self, bounds: tuple[float, float]) -> None:
        self._actor.check()
        await asyncio.sleep(self._world.chance.uniform(*bounds))
        self._actor.check()

    async def list(self) -> tuple[Instance, ...]:
        return await self.inner.list()

    async def check(self) -> tuple[Finding, ...]:
        return await self.inner.check()

    def watch(self, on_ending: Callable[[Ending], None]) -> None:
        def heard(ending: Ending) -> None:
            if self._actor.alive and not self._world.loses_ring():
                self._actor.call_soon(on_ending, ending)

        self.inner.watch(heard)

    async def forget_claim(self, agent_id: AgentId) -> None:
        await self.inner.forget_claim(agent_id)

    async def close(self) -> None:
        await self.inner.close()


class ProvisionerWay:
    """One coordinator's :class:`~corral.backends.event.interface.Deliverer`: it dies with its process, what it asked
    for does not."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._inner = FakeProvisioner(world.clock, world.cloud, latency=lambda: world.chance.uniform(0.0, 0.2))
        self._actor = actor

    async def deliver(self, target: Target, event: bytes, *, event_id: str, timeout: float) -> Answer:
        self._actor.check()
        answer = await self._inner.deliver(target, event, event_id=event_id, timeout=timeout)
        self._actor.check()
        return answer


@dataclass(kw_only=True)
class Site:
    """One coordinator's process."""

    actor: Actor
    coordinator: Coordinator
    backend: BackendWay


class World:
    """:param keep: keep the whole timeline for reading."""

    def __init__(
        self,
        seed: str,
        loop: VirtualLoop,
        *,
        pools: tuple[Pool, ...],
        settings: Settings | None = None,
        keep: bool = False,
    ) -> None:
        self.loop = loop
        self.settings = settings or Settings()
        self.pools = pools
        self.random = random.Random(f"world/{seed}")
        self.chance = SeededChance(f"chance/{seed}")
        self.network = Network(random=random.Random(f"network/{seed}"))
        self.clock = VirtualClock(loop)
        self.journal = Journal(loop.time, keep=keep)
        self.violations: list[Violation] = []
        self.watch = Watch(self)
        self.truth = Truth(loop.time, self.report, self.watch.begins)
        self.database = SharedDatabase(self.clock, self._committed)
        self.logs = MemoryLogs()
        self.sources = MemorySources(self.clock)
        self.host = FakeHost()
        self.cloud = Cloud(on_create=self._cloud_made, on_destroy=lambda name: self._instance_destroyed(AgentId(name)))
        """What the users' provisioners made; it outlives every coordinator."""
        self.agents: dict[AgentId, SimAgent] = {}
        self.wires: list[Wire] = []
        self.site: Site | None = None
        self.generations = 0
        self.serving = True
        """False: nobody starts the coordinator again."""
        self.on_connect: list[Callable[[SimAgent, Wire], None]] = []
        """Told of every connection before a byte crosses it."""
        self.on_frame: list[Callable[[SimAgent, str, bytes], None]] = []
        """Told of every frame (``up``: from the agent) just before the other side gets it."""
        self._seed = seed
        self._boots = 0
        self._killings: set[asyncio.Task[None]] = set()
        self._sealer_key = self.chance.token_bytes(32)

    # --- watching ----------------------------------------------------------------------------------------------

    def report(self, violation: Violation) -> None:
        self.violations.append(violation)
        self.journal.note("INVARIANT", str(violation))

    def _committed(self, changes: list[Change]) -> None:
        for change in changes:
            self.journal.note("database", describe_change(change, self.journal))
        self.watch.committed(changes)

    def query(self, fn: Callable[[Connection], T]) -> T:
        """Look at the database past everything simulated: for invariants, never for the system."""
        return self.database.look(fn)

    def query_all(self, connection: Connection, column: Any) -> list[str]:
        return list(connection.execute(select(column).order_by(column)).scalars())

    def lost_host(self, agent_id: str) -> bool:
        """A fault killed it."""
        return self.agents[AgentId(agent_id)].crashed

    def loses_ring(self) -> bool:
        return self.settings.lost_rings > 0 and self.random.random() < self.settings.lost_rings

    # --- the coordinator ---------------------------------------------------------------------------------------

    @property
    def coordinator(self) -> Coordinator:
        assert self.site is not None, "the coordinator is down"
        return self.site.coordinator

    async def start(self) -> None:
        """Start a coordinator over the same stores; again while the database is away, as a supervisor would."""
        while not await self._try_start():  # noqa: ASYNC110 - nobody could set an event
            await asyncio.sleep(RESTART_PAUSE)

    async def _try_start(self) -> bool:
        self.generations += 1
        actor = Actor(f"coordinator-{self.generations}", self.loop)
        self.journal.note(actor.name, "starts")
        try:
            self.site = await actor.spawn(self._bring_up(actor))
            self.watch.takes_over()
        except CorralError as error:
            self.journal.note(actor.name, f"cannot start: {error}")
            await actor.kill()
            return False
        return True

    async def _bring_up(self, actor: Actor) -> Site:
        database = DatabaseWay(self.database, actor, self._latency)
        identity = await identify(database, self.chance, take_lease=True)
        inner = FakeBackend(
            cluster_id=identity.cluster_id,
            clock=self.clock,
            host=self.host,
            on_create=self._instance_made,
            on_destroy=self._instance_destroyed,
        )
        backend = BackendWay(self, inner, actor)
        coordinator = Coordinator(
            clock=self.clock,
            chance=self.chance,
            stores=Stores(database=database, logs=LogsWay(self.logs, actor, self._latency), sources=self.sources),
            sealer=Sealer(self._sealer_key, self.chance),
            identity=identity,
            backends={backend.kind: backend},
            fleet=Fleet(self.pools, self.settings.caps),
            settings=self.settings.coordinator,
            bell_=DeafBell(self.loses_ring),
            deliverer=ProvisionerWay(self, actor) if any(pool.target for pool in self.pools) else None,
        )
        if self.settings.tied:
            await coordinator.host.settle_vanished()
        await coordinator.start()
        return Site(actor=actor, coordinator=coordinator, backend=backend)

    def _latency(self) -> float:
        return self.random.uniform(0.0001, 0.002)

    async def crash(self) -> None:
        """kill -9: nothing of it runs any more, connections break, stores keep what was committed."""
        site, self.site = self.site, None
        if site is None:
            return
        self.journal.note(site.actor.name, "is killed")
        await site.actor.kill()
        self._cut_all()
        if self.settings.tied:
            await self._lose_instances()

    async def reboot(self) -> None:
        """The whole host: the coordinator, every instance and every trace of them but the stores."""
        await self.crash()
        self.journal.note("host", "is restarted")
        await self._lose_instances()

    async def _lose_instances(self) -> None:
        for agent_id in list(self.host.instances):
            agent = self.agents[agent_id]
            await self.crash_agent(agent)
            # One that had ended by itself waited to be destroyed; there is nothing left to destroy.
            await self._kill(agent)
            agent.destroyed = True
            self.watch.vanishes(agent_id)
        self.host.instances.clear()

    async def stop(self) -> None:
        """An orderly end."""
        site, self.site = self.site, None
        if site is None:
            return
        self.journal.note(site.actor.name, "stops")
        await site.actor.spawn(site.coordinator.stop())
        await site.actor.kill()
        self._cut_all()

    def _cut_all(self) -> None:
        for wire in self.wires:
            wire.cut()
        self.wires.clear()

    # --- connections -------------------------------------------------------------------------------------------

    def connect(self, agent: SimAgent) -> Wire | None:
        """A new connection of this agent to the coordinator; None: nobody listens."""
        site = self.site
        if site is None or not agent.actor.alive:
            return None

        def seen(direction: str, frame: bytes) -> None:
            self._frame(agent, direction, frame)

        wire = Wire(
            self.loop,
            agent=agent.actor,
            server=site.actor,
            address=f"{agent.name}:1",
            latency=self.network.latency,
            seen=seen,
        )
        self.wires = [one for one in self.wires if not one.over]
        self.wires.append(wire)
        for look in self.on_connect:
            look(agent, wire)
        site.actor.spawn(site.coordinator.serve_agent(wire.server), name=f"serve-{agent.name}")
        return wire

    def _frame(self, agent: SimAgent, direction: str, frame: bytes) -> None:
        arrow = "→" if direction == "up" else "←"
        told = describe_frame(frame, self.journal, direction) if self.journal.keeping else ""
        self.journal.note(agent.name, f"{arrow} {zlib.crc32(frame):08x}", f"{arrow} {told}" if told else "")
        for look in self.on_frame:
            look(agent, direction, frame)

    # --- instances ---------------------------------------------------------------------------------------------

    def _instance_made(self, spec: InstanceSpec) -> None:
        name = self.journal.name(spec.agent_id, f"agent-{len(self.agents) + 1}")
        agent = SimAgent(self, config_of(spec), name)
        self.journal.note(name, f"is created in pool {spec.pool}")
        self._boot(
            agent,
            self.random.uniform(*self.settings.boot),
            lambda ended: self._instance_ended(ended, f"the agent exited: {ended.ending}"),
        )

    def _cloud_made(self, made: Made) -> None:
        name = self.journal.name(made.agent_id, f"agent-{len(self.agents) + 1}")
        config = AgentConfig(
            agent_id=made.agent_id,
            coordinator_urls=(URL,),
            claim_code=str(made.event["claim_code"]),
            single_use=True,
            work_dir="/",
            cache_dir="/",
        )
        self.journal.note(name, f"is created by a provisioner for pool {made.pool}")
        agent = SimAgent(self, config, name)
        self._boot(agent, self.random.uniform(*self.settings.boot), lambda ended: self.truth.killed_host(ended.id))

    def _boot(self, agent: SimAgent, seconds: float, on_end: Callable[[SimAgent], None]) -> None:
        self.agents[agent.id] = agent
        self._boots += 1
        chance = SeededChance(f"{self._seed}/{agent.name}/{self._boots}")
        agent.actor.spawn(agent.live(seconds, self.clock, chance, on_end))

    def run_static(self, config: AgentConfig, name: str) -> SimAgent:
        """Start the agent's process on somebody's own machine; also again, after it ended."""
        agent = SimAgent(self, config, self.journal.name(config.agent_id, name), static=True)
        self.journal.note(name, "starts")
        self._boot(agent, 0.0, lambda ended: self.truth.killed_host(ended.id))
        return agent

    def _instance_ended(self, agent: SimAgent, detail: str) -> None:
        self.truth.killed_host(agent.id)
        if agent.id not in self.host.instances:
            return
        if self.site is not None:
            self.site.backend.inner.end(agent.id, detail)
        else:
            instance = self.host.instances[agent.id]
            instance.ended, instance.detail = True, detail

    def _instance_destroyed(self, agent_id: AgentId) -> None:
        agent = self.agents[agent_id]
        agent.destroyed = True
        self.journal.note(agent.name, "is destroyed")
        self.watch.destroys(agent_id)
        self.truth.killed_host(agent_id)
        # In nobody's context: the coordinator that asked may die meanwhile.
        task = self.loop.create_task(self._kill(agent), context=Context())
        self._killings.add(task)
        task.add_done_callback(self._killings.discard)

    async def _kill(self, agent: SimAgent) -> None:
        await agent.actor.kill()
        if agent.wire is not None:
            agent.wire.cut()

    async def crash_agent(self, agent: SimAgent) -> None:
        """kill -9 of the agent: its warden kills the rest, and the backend sees the instance end."""
        if not agent.alive:
            return
        agent.crashed = True
        self.journal.note(agent.name, "is killed")
        self.truth.killed_host(agent.id)
        await self._kill(agent)
        self._instance_ended(agent, "killed by signal 9")
