# SPDX-License-Identifier: Apache-2.0
"""A provisioner in memory that keeps the published rule, with switches for everything that real ones do wrong.

Deterministic and without threads; time is the clock's, so the simulator can run it in virtual time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

import msgspec

from corral.model.events import Answer, EventKind, ListedInstance, Listing, Target, Verdict
from corral.runtime.chance import Chance, SeededChance
from corral.runtime.clock import Clock


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Nothing happens, and nothing is answered within the timeout."""


@dataclass(frozen=True, kw_only=True)
class LoseAnswer:
    """It is done, and the answer is lost."""


@dataclass(frozen=True, kw_only=True)
class Late:
    """Not answered, and done ``seconds`` after it was asked."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Say:
    """Answered so; nothing is done. ``DONE`` to a scale-down is a lie: the instance lives on."""

    answer: Answer


@dataclass(frozen=True, kw_only=True)
class Accept:
    """Answered 202, and done ``seconds`` later."""

    seconds: float


Fault = Hang | LoseAnswer | Late | Say | Accept


@dataclass(frozen=True, kw_only=True)
class Made:
    """An instance: what the provisioner tagged it with."""

    agent_id: str
    cluster_id: str
    provider_id: str
    pool: str
    event: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Heard:
    """One delivery, as it arrived."""

    kind: EventKind
    event_id: str
    agent_id: str
    sequence: int
    epoch: str


@dataclass(kw_only=True)
class Cloud:
    """What outlives a coordinator: instances, and what the provisioner remembers. ``on_create`` and ``on_destroy`` let
    a simulated agent live and die with its instance. ``refuse``: the share of creations that fail, answered.
    ``down``: nothing answers. ``list_lag``: the listing is the one before the latest change.
    ``hourly``: what an instance costs."""

    instances: dict[str, Made] = field(default_factory=dict)
    heard: list[Heard] = field(default_factory=list)
    next_up: deque[Fault] = field(default_factory=deque)
    next_down: deque[Fault] = field(default_factory=deque)
    next_inventory: deque[Fault] = field(default_factory=deque)
    created: list[str] = field(default_factory=list)
    destroyed: list[str] = field(default_factory=list)
    epochs: dict[str, tuple[int, int]] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    down: bool = False
    refuse: float = 0.0
    list_lag: bool = False
    lists: bool = True
    hourly: float = 1.0
    chance: Chance = field(default_factory=lambda: SeededChance(0))
    on_create: Callable[[Made], None] = lambda made: None
    on_destroy: Callable[[str], None] = lambda agent_id: None
    _before: tuple[Made, ...] = ()

    def create(self, data: dict[str, Any]) -> Made:
        """Idempotent by agent id."""
        agent_id = str(data["agent_id"])
        found = self.instances.get(agent_id)
        if found is None:
            self._before = tuple(self.instances.values())
            found = Made(
                agent_id=agent_id,
                cluster_id=str(data["cluster_id"]),
                provider_id=f"i-{len(self.created)}",
                pool=str(data["pool"]),
                event=data,
            )
            self.created.append(agent_id)
            self.instances[agent_id] = found
            self.on_create(found)
        return found

    def destroy(self, agent_id: str) -> bool:
        """False: there is none."""
        if agent_id not in self.instances:
            return False
        self._before = tuple(self.instances.values())
        del self.instances[agent_id]
        self.destroyed.append(agent_id)
        self.on_destroy(agent_id)
        return True

    def listing(self) -> Listing:
        shown = self._before if self.list_lag else tuple(self.instances.values())
        return Listing(
            instances=tuple(
                ListedInstance(
                    agent_id=one.agent_id,
                    cluster_id=one.cluster_id,
                    provider_id=one.provider_id,
                    pool=one.pool,
                    hourly=self.hourly,
                )
                for one in shown
            )
        )


class FakeProvisioner:
    """A :class:`~corral.backends.event.interface.Deliverer`: one way to the cloud, which dies with its coordinator."""

    def __init__(self, clock: Clock, cloud: Cloud | None = None, *, latency: Callable[[], float] = lambda: 0.0) -> None:
        self.cloud = cloud or Cloud()
        self._clock = clock
        self._latency = latency
        self._late: set[asyncio.Task[None]] = set()

    async def deliver(self, target: Target, event: bytes, *, event_id: str, timeout: float) -> Answer:
        await self._clock.sleep(self._latency())
        decoded = msgspec.json.decode(event)
        kind, data = EventKind(decoded["type"]), decoded["data"]
        if self.cloud.down:
            return Answer(verdict=Verdict.UNANSWERED, detail="connection refused")
        self.cloud.heard.append(
            Heard(
                kind=kind,
                event_id=event_id,
                agent_id=str(data.get("agent_id", "")),
                sequence=int(data.get("sequence", 0)),
                epoch=str(data["epoch"]),
            )
        )
        stale = self._stale(data)
        if stale is not None:
            return stale
        answer = await self._do(kind, data, timeout)
        await self._clock.sleep(self._latency())
        return answer

    def _stale(self, data: dict[str, Any]) -> Answer | None:
        """The published rule: no epoch below the highest seen, of an instance no lower sequence."""
        generation, _, counter = str(data["epoch"]).partition(".")
        epoch, cluster = (int(generation), int(counter)), str(data["cluster_id"])
        highest = self.cloud.epochs.get(cluster, (0, 0))
        if epoch < highest:
            return Answer(verdict=Verdict.STALE, detail=f"412 stale: {highest[0]}.{highest[1]} was seen")
        self.cloud.epochs[cluster] = epoch
        agent_id, sequence = str(data.get("agent_id", "")), int(data.get("sequence", 0))
        if agent_id and sequence < self.cloud.sequences.get(agent_id, 0):
            return Answer(verdict=Verdict.ABSENT, detail="410 a later event came first")
        if agent_id:
            self.cloud.sequences[agent_id] = sequence
        return None

    async def _do(self, kind: EventKind, data: dict[str, Any], timeout: float) -> Answer:
        faults = {
            EventKind.SCALE_UP: self.cloud.next_up,
            EventKind.SCALE_DOWN: self.cloud.next_down,
            EventKind.INVENTORY: self.cloud.next_inventory,
        }[kind]
        match faults.popleft() if faults else None:
            case Hang():
                return await self._silence(timeout)
            case LoseAnswer():
                self._carry_out(kind, data)
                return Answer(verdict=Verdict.UNANSWERED, detail="the connection was cut")
            case Late(seconds=seconds):
                self._later(kind, data, seconds)
                return await self._silence(timeout)
            case Accept(seconds=seconds):
                self._later(kind, data, seconds)
                return Answer(verdict=Verdict.ACCEPTED, detail="202")
            case Say(answer=answer):
                return answer
            case None:
                if kind is EventKind.SCALE_UP and self.cloud.chance.uniform(0.0, 1.0) < self.cloud.refuse:
                    return Answer(verdict=Verdict.ABSENT, detail="410 no capacity of this kind")
                return self._carry_out(kind, data)

    async def _silence(self, timeout: float) -> Answer:
        await self._clock.sleep(timeout)
        return Answer(verdict=Verdict.UNANSWERED, detail=f"no answer within {timeout:g} s")

    def _later(self, kind: EventKind, data: dict[str, Any], seconds: float) -> None:
        """In nobody's context: the provisioner outlives the coordinator that asked."""

        async def work() -> None:
            await self._clock.sleep(seconds)
            self._carry_out(kind, data)

        task = asyncio.get_running_loop().create_task(work(), context=Context())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def _carry_out(self, kind: EventKind, data: dict[str, Any]) -> Answer:
        match kind:
            case EventKind.SCALE_UP:
                return Answer(verdict=Verdict.DONE, provider_id=self.cloud.create(data).provider_id)
            case EventKind.SCALE_DOWN:
                there = self.cloud.destroy(str(data["agent_id"]))
                return Answer(verdict=Verdict.DONE if there else Verdict.ABSENT)
            case EventKind.INVENTORY:
                listing = self.cloud.listing() if self.cloud.lists else Listing(unsupported=True)
                return Answer(verdict=Verdict.DONE, body=msgspec.json.encode(listing))
