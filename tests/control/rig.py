# SPDX-License-Identifier: Apache-2.0
"""A coordinator over real SQL in virtual time, and agents whose every word the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection

from corral.agent.interface import LinkClosed
from corral.backends.fake import FakeBackend, FakeHost
from corral.backends.interface import InstanceSpec
from corral.control.coordinator import Coordinator, CoordinatorSettings, Stores, identify
from corral.control.fleet import Configured, Fleet
from corral.model.ids import AgentId, JobId, RunId, TokenId
from corral.model.pools import Caps, Pool
from corral.model.spec import JobSpec, Result, StepSpec, WorkflowSpec
from corral.model.views import AgentView, CreatedToken, JobView, NewRun, NewToken, RunView
from corral.runtime.chance import SeededChance
from corral.runtime.sealing import Sealer
from corral.sim.actors import Actor
from corral.sim.clock import VirtualClock
from corral.sim.link import Wire
from corral.sim.loop import VirtualLoop, run
from corral.store.inline import InlineDatabase
from corral.store.logmemory import MemoryLogs
from corral.store.sourcememory import MemorySources
from corral.wire.codec import decode_to_agent, encode
from corral.wire.messages import (
    PROTOCOL,
    Accept,
    Facts,
    FromAgent,
    Heartbeat,
    HeartbeatAck,
    HeldJob,
    Hello,
    JobFinished,
    JobStarted,
    Log,
    LogPosition,
    Offer,
    Start,
    StepFinished,
    ToAgent,
    Welcome,
)
from corral.workflow.lock import make_lock

M = TypeVar("M", bound=ToAgent)
T = TypeVar("T")

LATENCY = 0.001
"""Seconds of one way of a frame."""
PATIENCE = 5.0
"""Virtual seconds a test waits for a message unless it says otherwise."""


def virtual(scenario: Callable[[Rig], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Run ``scenario`` against a started coordinator. ``settings``: fields of its settings, ``pools`` and ``caps``."""
    pools, caps = settings.pop("pools", ()), settings.pop("caps", Caps())
    loop = VirtualLoop()

    async def whole() -> None:
        rig = Rig(loop, CoordinatorSettings(**settings), pools, caps)
        await rig.start()
        try:
            await scenario(rig)
        finally:
            await rig.coordinator.stop(grace=1.0)
            await rig.end()

    run(whole(), loop)


def job(name: str = "j", *scripts: str, label: str = "x", **options: Any) -> JobSpec:
    steps = tuple(StepSpec(name=f"s{n}", script=script) for n, script in enumerate(scripts or ("true",)))
    return JobSpec(name=name, steps=steps, runs_on=(label,), checkout=False, **options)


class Rig:
    def __init__(self, loop: VirtualLoop, settings: CoordinatorSettings, pools: tuple[Pool, ...], caps: Caps) -> None:
        self.loop = loop
        self.settings = settings
        self.pools = pools
        """What stands in the configuration: in force from a start or a reload on."""
        self.caps = caps
        self.clock = VirtualClock(loop)
        self.chance = SeededChance("rig")
        self.database = InlineDatabase(self.clock)
        self.logs = MemoryLogs()
        self.sealer = Sealer(b"k" * 32, self.chance)
        self.sources = MemorySources()
        self.host = FakeHost()
        self._specs: list[InstanceSpec] = []
        self.coordinator: Coordinator
        self._tasks: set[asyncio.Task[None]] = set()
        self._boots = 0

    async def start(self) -> None:
        """A coordinator on the stores that are there."""
        identity = await identify(self.database, self.chance, take_lease=True)
        backend = FakeBackend(
            cluster_id=identity.cluster_id, clock=self.clock, host=self.host, on_create=self._specs.append
        )
        self.coordinator = Coordinator(
            clock=self.clock,
            chance=self.chance,
            stores=Stores(database=self.database, logs=self.logs, sources=self.sources),
            sealer=self.sealer,
            identity=identity,
            backends={backend.kind: backend},
            fleet=Fleet(self.pools, self.caps, self._load),
            settings=self.settings,
        )
        await self.coordinator.start()

    async def _load(self, fleet: Fleet) -> Configured:
        return Configured(pools=self.pools, caps=self.caps)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- what users do -----------------------------------------------------------------------------------------

    async def token(self, *labels: str, name: str = "agent") -> CreatedToken:
        """A static agent's token."""
        return await self.coordinator.create_token(NewToken(name=name, role="agent", labels=labels or ("x",)))

    async def run(self, *jobs: JobSpec, timeout: float | None = None, secrets: dict[str, str] | None = None) -> RunView:
        lock = make_lock([WorkflowSpec(name="w", jobs=jobs or (job(),), timeout=timeout)], {})
        return await self.coordinator.create_run(NewRun(lock=lock, workflow="w", secrets=secrets or {}))

    async def job(self, run_: RunView, number: int = 0) -> JobView:
        return await self.coordinator.job(JobId(run_.jobs[number].id))

    async def state(self, run_: RunView) -> str:
        return (await self.coordinator.run(RunId(run_.id))).state

    async def agent(self, agent_id: str) -> AgentView:
        return next(each for each in await self.coordinator.agents() if each.id == agent_id)

    def look(self, fn: Callable[[Connection], T]) -> T:
        return self.database.look(fn)

    async def until(self, what: Callable[[], Awaitable[object]], timeout: float = PATIENCE) -> float:
        """Until it is true; virtual seconds that took."""
        began = self.loop.time()
        while not await what():
            assert self.loop.time() - began < timeout, "not in time"
            await asyncio.sleep(0.05)
        return self.loop.time() - began

    # --- agents ------------------------------------------------------------------------------------------------

    def connect(self, token: CreatedToken | str, *, boot: str = "", peer: str = "10.0.0.1:1") -> Puppet:
        """A connection of the token's agent; nothing is said yet. ``boot``: the process, a new one by default."""
        text = token if isinstance(token, str) else token.token
        agent_id, _, key = text.partition(".")
        self._boots += 1
        wire = Wire(
            self.loop,
            agent=Actor("agent", self.loop),
            server=Actor("server", self.loop),
            address=peer,
            latency=lambda: LATENCY,
            seen=lambda direction, frame: None,
        )
        task = self.loop.create_task(self.coordinator.serve_agent(wire.server))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return Puppet(wire=wire, agent_id=AgentId(agent_id), key=key, boot_id=boot or f"boot-{self._boots}")

    async def unheard(self) -> AgentId:
        """The agent of the next instance that is made; it never says a word."""
        return (await self._made()).agent_id

    async def _made(self) -> InstanceSpec:
        async def made() -> bool:
            return bool(self._specs)

        await self.until(made)
        return self._specs.pop(0)

    async def instance(self) -> Puppet:
        """The agent on the next instance that is made, welcomed."""
        spec = await self._made()
        puppet = self.connect(f"{spec.agent_id}.key-of-{spec.agent_id}")
        await puppet.hello(claim_code=spec.claim_code.reveal())
        await puppet.expect(Welcome)
        return puppet

    async def online(self, token: CreatedToken | str, **how: Any) -> Puppet:
        """A connection that is welcomed."""
        puppet = self.connect(token, **how)
        await puppet.hello()
        await puppet.expect(Welcome)
        return puppet


@dataclass(kw_only=True)
class Puppet:
    """One connection of an agent. Heartbeats are answered by themselves while it waits for something."""

    wire: Wire
    agent_id: AgentId
    key: str
    boot_id: str
    heard: list[ToAgent] = field(default_factory=list)
    """Everything but heartbeats, in order."""

    async def say(self, *messages: FromAgent) -> None:
        for message in messages:
            await self.wire.agent.send(encode(message))

    async def hello(
        self, *held: HeldJob, draining: bool = False, protocol: int = PROTOCOL, claim_code: str = ""
    ) -> None:
        facts = Facts(os="linux", arch="x86_64", host="rig", version="0")
        await self.say(
            Hello(
                protocol=protocol,
                agent_id=self.agent_id,
                key=self.key,
                boot_id=self.boot_id,
                facts=facts,
                claim_code=claim_code,
                jobs=held,
                draining=draining,
            )
        )

    async def next(self, timeout: float = PATIENCE) -> ToAgent:
        """The next message that is no heartbeat. :raises TimeoutError: none came."""
        async with asyncio.timeout(timeout):
            while True:
                message = decode_to_agent(await self.wire.agent.receive())
                if isinstance(message, Heartbeat):
                    await self.say(HeartbeatAck(number=message.number))
                elif not isinstance(message, HeartbeatAck):
                    self.heard.append(message)
                    return message

    async def expect(self, kind: type[M], timeout: float = PATIENCE) -> M:
        """The next message, which has to be of this kind."""
        message = await self.next(timeout)
        assert isinstance(message, kind), message
        return message

    async def silent(self, seconds: float) -> None:
        """Nothing but heartbeats comes for so long."""
        try:
            message = await self.next(seconds)
        except TimeoutError:
            return
        raise AssertionError(f"not silent: {message}")

    async def closed(self, timeout: float = PATIENCE) -> int:
        """Read to the end of the connection; its close code."""
        try:
            while True:
                await self.next(timeout)
        except LinkClosed as over:
            return over.close_code

    # --- work --------------------------------------------------------------------------------------------------

    async def offered(self, timeout: float = PATIENCE) -> Offer:
        return await self.expect(Offer, timeout)

    async def take(self, timeout: float = PATIENCE) -> Offer:
        """Accept the next offer and be told to start."""
        offer = await self.offered(timeout)
        await self.say(Accept(job_id=offer.job_id, attempt=offer.attempt))
        await self.expect(Start)
        await self.say(JobStarted(job_id=offer.job_id, attempt=offer.attempt, sequence=1, time=0))
        return offer

    async def print(self, offer: Offer, data: bytes, *, offset: int = 0, step: int = 0) -> None:
        await self.say(Log(job_id=offer.job_id, attempt=offer.attempt, step=step, offset=offset, time=0, data=data))

    async def finish(self, offer: Offer, *, result: Result = Result.SUCCEEDED, size: int = 0, digest: str = "") -> None:
        """The end of the only step and of the job, with ``size`` bytes of log."""
        job_id, attempt = offer.job_id, offer.attempt
        logs = (LogPosition(step=0, offset=size),) if size else ()
        code = 0 if result is Result.SUCCEEDED else 1
        await self.say(
            StepFinished(
                job_id=job_id,
                attempt=attempt,
                sequence=2,
                step=0,
                time=0,
                result=result,
                exit_code=code,
                log_size=size,
                log_digest=digest,
            ),
            JobFinished(job_id=job_id, attempt=attempt, sequence=3, time=0, result=result, logs=logs),
        )


def token_of(created: CreatedToken) -> TokenId:
    return TokenId(created.view.id)
