# SPDX-License-Identifier: Apache-2.0
"""Instances that exist only here, with a memory of every call and switches for every failure.

Deterministic and without threads; time is the clock's, so the simulator can run it in virtual time. Held to the
same conformance suite as the real backends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from corral.backends.interface import (
    Created,
    Ending,
    Finding,
    Instance,
    InstanceSpec,
    Isolation,
    Misconfigured,
    NoCapacity,
    Transient,
)
from corral.model.errors import CorralError
from corral.model.ids import AgentId, ClusterId
from corral.runtime.clock import Clock


@dataclass(frozen=True, kw_only=True)
class Fail:
    """The call raises ``error``; nothing happened."""

    error: CorralError


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Nothing happens until the deadline, then Transient."""


@dataclass(frozen=True, kw_only=True)
class LoseAnswer:
    """It is done, and the caller gets Transient."""


@dataclass(frozen=True, kw_only=True)
class Late:
    """Transient at the deadline, and the instance appears ``seconds`` after the call all the same."""

    seconds: float


Fault = Fail | Hang | LoseAnswer | Late


@dataclass(kw_only=True)
class FakeInstance:
    """``number``: how many this backend had made before it."""

    spec: InstanceSpec
    number: int
    ended: bool = False
    detail: str = ""

    @property
    def provider_id(self) -> str:
        return f"fake-{self.number}"


class FakeHost:
    """What outlives a coordinator: the instances, of every installation. Share one between backends to restart."""

    def __init__(self) -> None:
        self.instances: dict[AgentId, FakeInstance] = {}
        self.made = 0


class FakeBackend:
    """A :class:`~corral.backends.interface.Backend`.

    ``on_create`` and ``on_destroy`` let a simulated agent live and die with its instance; they are called inside
    the call, once per instance. ``capacity``: instances of all installations the host can hold.
    ``next_create`` and ``next_destroy``: faults, one per call, in order.
    """

    kind = "fake"
    local = True
    can_list = True
    isolation = Isolation.NONE

    def __init__(
        self,
        *,
        cluster_id: ClusterId,
        clock: Clock,
        host: FakeHost | None = None,
        capacity: int | None = None,
        on_create: Callable[[InstanceSpec], None] | None = None,
        on_destroy: Callable[[AgentId], None] | None = None,
    ) -> None:
        self.cluster_id = cluster_id
        self.host = host or FakeHost()
        self.capacity = capacity
        self.next_create: deque[Fault] = deque()
        self.next_destroy: deque[Fault] = deque()
        self.create_calls: list[AgentId] = []
        self.destroy_calls: list[AgentId] = []
        self.claims_forgotten: list[AgentId] = []
        self._clock = clock
        self._on_create = on_create
        self._on_destroy = on_destroy
        self._watchers: list[Callable[[Ending], None]] = []
        self._late: dict[AgentId, asyncio.Task[None]] = {}

    # --- the contract ------------------------------------------------------------------------------------------

    async def create(self, spec: InstanceSpec, deadline: float) -> Created:
        self.create_calls.append(spec.agent_id)
        match self._next(self.next_create):
            case Fail(error=error):
                raise error
            case Hang():
                await self._clock.sleep(deadline)
                raise Transient(f"instance {spec.agent_id} was not up within {deadline:g} s")
            case Late(seconds=seconds):
                self._late[spec.agent_id] = asyncio.create_task(self._make_late(spec, seconds))
                await self._clock.sleep(deadline)
                raise Transient(f"instance {spec.agent_id} was not up within {deadline:g} s")
            case LoseAnswer():
                self._make(spec)
                raise Transient("the answer was lost on purpose")
            case None:
                return self._make(spec)

    async def destroy(self, agent_id: AgentId, deadline: float) -> None:
        self.destroy_calls.append(agent_id)
        match self._next(self.next_destroy):
            case Fail(error=error):
                raise error
            case Hang():
                await self._clock.sleep(deadline)
                raise Transient(f"instance {agent_id} is not confirmed gone within {deadline:g} s")
            case LoseAnswer() | Late():
                self._remove(agent_id)
                raise Transient("the answer was lost on purpose")
            case None:
                self._remove(agent_id)

    async def list(self) -> tuple[Instance, ...]:
        return tuple(
            Instance(
                agent_id=agent_id,
                pool=one.spec.pool,
                provider_id=one.provider_id,
                ended=one.ended,
                detail=one.detail,
            )
            for agent_id, one in self.host.instances.items()
            if one.spec.cluster_id == self.cluster_id
        )

    async def check(self) -> tuple[Finding, ...]:
        return (Finding(level="warning", message="instances are pretended: nothing runs"),)

    def watch(self, on_ending: Callable[[Ending], None]) -> None:
        """Instances that have ended unwatched are reported soon after the call."""
        self._watchers.append(on_ending)
        ended = [Ending(agent_id=i, detail=one.detail) for i, one in self._ours().items() if one.ended]
        for ending in ended:
            asyncio.get_running_loop().call_soon(on_ending, ending)

    async def close(self) -> None:
        for task in self._late.values():
            task.cancel()
        self._watchers.clear()

    async def forget_claim(self, agent_id: AgentId) -> None:
        self.claims_forgotten.append(agent_id)

    # --- what tests do to it -----------------------------------------------------------------------------------

    def end(self, agent_id: AgentId, detail: str = "the agent exited with code 0") -> None:
        """The instance ends by itself: it stays, with nothing running, until it is destroyed."""
        one = self.host.instances[agent_id]
        if one.ended:
            return
        one.ended, one.detail = True, detail
        for watcher in self._watchers:
            watcher(Ending(agent_id=agent_id, detail=detail))

    def vanish(self, agent_id: AgentId) -> None:
        """Somebody else removes the instance, traces and all."""
        self.end(agent_id, "the instance was removed from outside")
        del self.host.instances[agent_id]

    # --- inside ------------------------------------------------------------------------------------------------

    def _next(self, faults: deque[Fault]) -> Fault | None:
        return faults.popleft() if faults else None

    def _ours(self) -> dict[AgentId, FakeInstance]:
        return {i: one for i, one in self.host.instances.items() if one.spec.cluster_id == self.cluster_id}

    def _make(self, spec: InstanceSpec) -> Created:
        one = self.host.instances.get(spec.agent_id)
        if one is not None and one.spec.cluster_id != self.cluster_id:
            raise Misconfigured(f"instance {spec.agent_id} belongs to {one.spec.cluster_id}")
        if one is None:
            if self.capacity is not None and len(self.host.instances) >= self.capacity:
                raise NoCapacity(f"the host holds {self.capacity} instances; wait for one to end")
            one = FakeInstance(spec=spec, number=self.host.made)
            self.host.made += 1
            self.host.instances[spec.agent_id] = one
            if self._on_create is not None:
                self._on_create(spec)
        return Created(provider_id=one.provider_id)

    async def _make_late(self, spec: InstanceSpec, seconds: float) -> None:
        await self._clock.sleep(seconds)
        del self._late[spec.agent_id]
        self._make(spec)

    def _remove(self, agent_id: AgentId) -> None:
        if agent_id in self._ours():
            del self.host.instances[agent_id]
            if self._on_destroy is not None:
                self._on_destroy(agent_id)
