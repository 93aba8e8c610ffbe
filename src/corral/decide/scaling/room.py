# SPDX-License-Identifier: Apache-2.0
"""What the caps still allow. A plan and an admission count differently (one from a look, one in its transaction) and
ask here alike, so that no cap is checked in one place and forgotten in the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from corral.decide.scaling.terms import Creation, NotDone, Supply
from corral.model.pools import Caps, Machine, Pool
from corral.model.records import PoolHealth
from corral.model.states import ProvisionState

LEAK_SHARE = 0.1
"""Of a pool's ``max_agents``: so many that could not be destroyed, and it makes no more."""
ROUNDING = 1e-9
"""Sums of cores and money are floats: three times 0.1 may fill a cap of 0.3."""


class Holding(Struct, kw_only=True):
    """What some provisions hold. ``agents``: slots; ``creating``: of them not registered yet."""

    pool: str
    machine: str = ""
    agents: int = 0
    cpu: float = 0.0
    memory: int = 0
    cost: float = 0.0
    creating: int = 0
    abandoned: int = 0
    provisioners: int = 0


class Refusal(Struct, frozen=True, kw_only=True):
    """``shared``: another pool's instances fill the cap as well."""

    reason: NotDone
    pool: str
    detail: str
    until: int | None = None
    shared: bool = False


def holding(item: Supply) -> Holding:
    """What one provision holds."""
    return held(
        item.pool,
        item.state,
        machine=item.machine,
        event=item.event,
        failed=item.failed,
        provisioning=item.provisioning,
        cpu=item.cpu or 0.0,
        memory=item.memory or 0,
        cost=item.cost,
    )


def held(
    pool: str,
    state: ProvisionState,
    *,
    machine: str = "",
    event: bool = False,
    failed: bool = False,
    provisioning: bool = False,
    cpu: float = 0.0,
    memory: int = 0,
    cost: float = 0.0,
    count: int = 1,
) -> Holding:
    """What ``count`` alike provisions hold; cores, memory and money are their sums.

    An instance that a provisioner could not end frees its slot (nobody knows whether it is there), but what it may
    use up stays counted. One made for a run that provisions counts for nothing but the slots of such.
    """
    if provisioning:
        return Holding(pool=pool, provisioners=count)
    abandoned = event and state is ProvisionState.ABANDONED
    return Holding(
        pool=pool,
        machine=machine,
        agents=0 if abandoned else count,
        cpu=cpu,
        memory=memory,
        cost=cost,
        creating=count if state is ProvisionState.REQUESTED and not failed else 0,
        abandoned=count if abandoned else 0,
    )


@dataclass(kw_only=True)
class _Amount:
    agents: int = 0
    cpu: float = 0.0
    memory: int = 0
    cost: float = 0.0
    abandoned: int = 0

    def add(self, item: Holding, sign: int = 1) -> None:
        self.agents += sign * item.agents
        self.cpu += sign * item.cpu
        self.memory += sign * item.memory
        self.cost += sign * item.cost
        self.abandoned += sign * item.abandoned


@dataclass(kw_only=True)
class Room:
    """Taking lowers it, so that neither a plan nor a transaction exceeds what it began with.

    ``tokens``: creations that the rate allows now, None: any number. ``running``: jobs that may begin, of pools that
    limit it.
    """

    caps: Caps
    now: int
    tokens: float | None = None
    closed: dict[str, Refusal] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    creating: int = 0
    provisioners: int = 0
    total: _Amount = field(default_factory=_Amount)
    pools: dict[str, _Amount] = field(default_factory=lambda: defaultdict(_Amount))
    machines: dict[str, _Amount] = field(default_factory=lambda: defaultdict(_Amount))

    def hold(self, item: Holding) -> None:
        self._count(item, 1)

    def give_back(self, item: Holding) -> None:
        self._count(item, -1)

    def take(self, pool: Pool, creation: Creation) -> None:
        self.hold(requested(pool, creation))
        if creation.job_id is not None and pool.name in self.running and not creation.provisioning:
            self.running[pool.name] -= 1
        if self.tokens is not None and not creation.provisioning:
            self.tokens -= 1

    def _count(self, item: Holding, sign: int) -> None:
        self.total.add(item, sign)
        self.pools[item.pool].add(item, sign)
        if item.machine:
            self.machines[item.machine].add(item, sign)
        self.creating += sign * item.creating
        self.provisioners += sign * item.provisioners

    # --- asking ---

    def refuses(self, pool: Pool, creation: Creation) -> Refusal | None:
        """Why this instance cannot be made now, or None. What is nearest to the pool is named first."""
        closed = self.closed.get(pool.name)
        if closed is not None:
            return closed
        if creation.provisioning:
            return self._slots(pool)
        return (
            self._leaking(pool)
            or self._of_pool(pool, creation)
            or self._of_machine(pool, creation)
            or self._of_cluster(pool, creation)
            or self._rate(pool)
        )

    def exceeds(self, pool: Pool | None, item: Holding) -> bool:
        """Is more held than a cap allows to which this holding contributes?"""
        caps, machine = self.caps, self._machine(item.machine)
        total = _surpass(self.total, item, caps.max_agents, caps.max_cpu, caps.max_memory)
        total = total or _over(self.total.cost, item.cost, caps.max_cost_per_hour)
        own = pool is not None and _surpass(self.pools[pool.name], item, pool.max_agents, pool.max_cpu, pool.max_memory)
        shared = machine is not None and _surpass(
            self.machines[machine.name], item, None, machine.max_cpu, machine.max_memory
        )
        return total or own or shared

    def _slots(self, pool: Pool) -> Refusal | None:
        if self.provisioners < self.caps.provisioner_slots:
            return None
        detail = f"{self.provisioners} instances for runs that provision are there, as many as provisioner_slots"
        return _refusal(NotDone.AT_PROVISIONER_SLOTS, pool, detail)

    def _leaking(self, pool: Pool) -> Refusal | None:
        abandoned = self.pools[pool.name].abandoned
        if abandoned < max(1.0, LEAK_SHARE * pool.max_agents):
            return None
        detail = f"{abandoned} instances of pool {pool.name} could not be confirmed gone"
        return _refusal(NotDone.LEAKING, pool, detail)

    def _of_pool(self, pool: Pool, creation: Creation) -> Refusal | None:
        own, name = self.pools[pool.name], f"pool {pool.name}"
        if own.agents >= pool.max_agents:
            return _refusal(NotDone.AT_POOL_MAX, pool, f"{name} has its {pool.max_agents} agents")
        if _full(own.cpu, creation.cpu, pool.max_cpu):
            return _refusal(NotDone.AT_CPU_CAP, pool, _cores(name, own.cpu, creation.cpu, pool.max_cpu))
        if _full(own.memory, creation.memory, pool.max_memory):
            return _refusal(NotDone.AT_MEMORY_CAP, pool, _bytes(name, own.memory, creation.memory, pool.max_memory))
        if creation.job_id is not None and self.running.get(pool.name, 1) <= 0:
            return at_max_running(pool)
        return None

    def _of_machine(self, pool: Pool, creation: Creation) -> Refusal | None:
        machine = self._machine(pool.machine)
        if machine is None:
            return None
        used, name = self.machines[machine.name], f"machine {machine.name}"
        if _full(used.cpu, creation.cpu, machine.max_cpu):
            detail = _cores(name, used.cpu, creation.cpu, machine.max_cpu)
        elif _full(used.memory, creation.memory, machine.max_memory):
            detail = _bytes(name, used.memory, creation.memory, machine.max_memory)
        else:
            return None
        return _refusal(NotDone.AT_MACHINE_CAP, pool, detail, shared=True)

    def _of_cluster(self, pool: Pool, creation: Creation) -> Refusal | None:
        caps, used, name = self.caps, self.total, "the cluster"
        if used.agents >= caps.max_agents:
            return _refusal(NotDone.AT_GLOBAL_MAX, pool, "the cluster's max_agents is reached", shared=True)
        if _full(used.cpu, creation.cpu, caps.max_cpu):
            return _refusal(NotDone.AT_CPU_CAP, pool, _cores(name, used.cpu, creation.cpu, caps.max_cpu), shared=True)
        if _full(used.memory, creation.memory, caps.max_memory):
            detail = _bytes(name, used.memory, creation.memory, caps.max_memory)
            return _refusal(NotDone.AT_MEMORY_CAP, pool, detail, shared=True)
        if _full(used.cost, pool.cost_per_hour, caps.max_cost_per_hour):
            detail = (
                f"what is there costs {used.cost:g} an hour, one of pool {pool.name} {pool.cost_per_hour:g} more, "
                f"and max_cost_per_hour is {caps.max_cost_per_hour:g}"
            )
            return _refusal(NotDone.AT_SPEND_CAP, pool, detail, shared=True)
        return None

    def _rate(self, pool: Pool) -> Refusal | None:
        if self.creating >= self.caps.concurrent_creates:
            return _refusal(NotDone.AT_RATE, pool, "as many instances as allowed are being created")
        rate = self.caps.creates_per_second
        if self.tokens is None or rate is None or self.tokens >= 1:
            return None
        until = self.now + int((1 - self.tokens) / rate * 1_000_000) + 1
        return _refusal(NotDone.AT_RATE, pool, f"no more than {rate:g} instances are created a second", until)

    def _machine(self, name: str) -> Machine | None:
        return next((machine for machine in self.caps.machines if machine.name == name), None) if name else None


def requested(pool: Pool, creation: Creation) -> Holding:
    """What the instance will hold."""
    return held(
        pool.name,
        ProvisionState.REQUESTED,
        machine=pool.machine,
        provisioning=creation.provisioning,
        cpu=creation.cpu or 0.0,
        memory=creation.memory or 0,
        cost=pool.cost_per_hour,
    )


def close(pools: Sequence[Pool], health: Mapping[str, PoolHealth], now: int) -> dict[str, Refusal]:
    """Pools that make nothing now, whatever the room."""
    found = ((pool.name, _closed(pool, health.get(pool.name), now)) for pool in pools)
    return {name: refusal for name, refusal in found if refusal is not None}


def _closed(pool: Pool, health: PoolHealth | None, now: int) -> Refusal | None:
    if pool.draining:
        return _refusal(NotDone.DRAINING, pool, f"pool {pool.name} is draining")
    if health is not None and health.backoff_until is not None and now < health.backoff_until:
        seconds = (health.backoff_until - now + 999_999) // 1_000_000
        detail = f"pool {pool.name} failed {health.failures} times in a row and is tried again in {seconds} s"
        if health.last_error:
            detail += f"; last: {health.last_error}"
        return _refusal(NotDone.BACKING_OFF, pool, detail, health.backoff_until)
    return None


def at_max_running(pool: Pool) -> Refusal:
    detail = f"pool {pool.name} runs no more than {pool.max_running} jobs at the same time"
    return _refusal(NotDone.AT_MAX_RUNNING, pool, detail)


def running(supply: Iterable[Supply], pools: Sequence[Pool]) -> dict[str, int]:
    """How many more jobs may begin, of pools that limit it."""
    busy: dict[str, int] = defaultdict(int)
    for item in supply:
        busy[item.pool] += item.assigned
    return {pool.name: max(0, pool.max_running - busy[pool.name]) for pool in pools if pool.max_running is not None}


def _refusal(reason: NotDone, pool: Pool, detail: str, until: int | None = None, *, shared: bool = False) -> Refusal:
    return Refusal(reason=reason, pool=pool.name, detail=detail, until=until, shared=shared)


def _full(used: float, more: float | None, cap: float | None) -> bool:
    return cap is not None and bool(more) and used + (more or 0) > cap + ROUNDING


def _over(used: float, own: float, cap: float | None) -> bool:
    return cap is not None and own > 0 and used > cap + ROUNDING


def _surpass(used: _Amount, item: Holding, agents: int | None, cpu: float | None, memory: int | None) -> bool:
    return (
        (agents is not None and item.agents > 0 and used.agents > agents)
        or _over(used.cpu, item.cpu, cpu)
        or _over(used.memory, item.memory, memory)
    )


def _cores(name: str, used: float, more: float | None, cap: float | None) -> str:
    return f"{name} uses {used:g} of {cap:g} cores and {more:g} are asked for"


def _bytes(name: str, used: int, more: int | None, cap: int | None) -> str:
    return f"{name} uses {size(used)} of {size(cap or 0)} of memory and {size(more or 0)} are asked for"


def size(count: int) -> str:
    """Bytes as the configuration writes them, where that is exact."""
    for unit, factor in (("g", 1024**3), ("m", 1024**2), ("k", 1024)):
        if count and count % factor == 0:
            return f"{count // factor}{unit}"
    return f"{count} bytes"
