# SPDX-License-Identifier: Apache-2.0
"""A configured source of instances, and what bounds them all."""

from __future__ import annotations

from msgspec import Struct

from corral.model.events import Target
from corral.model.labels import NO_LABELS, Labels

EVENT = "event"
"""The backend of pools whose instances a user's own provisioner makes."""


class Window(Struct, frozen=True, kw_only=True):
    """When another warm target holds. ``days``: 0 is Monday. ``start`` and ``end``: minutes after midnight in the
    ``timezone`` (an IANA name); an ``end`` at or before the ``start`` is on the next day."""

    days: frozenset[int]
    start: int
    end: int
    timezone: str
    min_idle: int


class Pool(Struct, frozen=True, kw_only=True):
    """``labels`` are its own and the reserved ones Corral adds. ``inherit_env`` None: the documented default.
    Durations are seconds, cpu is cores, memory bytes, cost money per hour in whatever currency the operator thinks in.

    ``max_agents`` counts every provision of the pool that is not gone, ``max_running`` the jobs that its agents have at
    the same time; ``max_cpu`` and ``max_memory`` count requests; None: unbounded. ``min_idle``: agents kept ready for
    jobs that have not come, outside every window of ``schedule`` (where windows overlap, the largest target holds).

    ``cpu`` and ``memory`` are what an instance requests (what caps count), ``cpu_limit`` and ``memory_limit`` what is
    enforced on it; None: nothing. ``machine``: name of a machine pool whose cores and memory several pools share.
    ``target``: the provisioner of an event pool, None for every other backend.
    """

    name: str
    backend: str
    labels: Labels
    mandatory: Labels = NO_LABELS
    max_agents: int
    max_running: int | None = None
    max_cpu: float | None = None
    max_memory: int | None = None
    min_idle: int = 0
    schedule: tuple[Window, ...] = ()
    user: str = ""
    inherit_env: tuple[str, ...] | None = None
    spawn_timeout: float = 300.0
    idle_timeout: float = 300.0
    default: bool = False
    draining: bool = False
    cpu: float | None = None
    memory: int | None = None
    cpu_limit: float | None = None
    memory_limit: int | None = None
    cost_per_hour: float = 0.0
    machine: str = ""
    target: Target | None = None

    @property
    def event(self) -> bool:
        """Its instances are made by a user's own provisioner."""
        return self.backend == EVENT


class Machine(Struct, frozen=True, kw_only=True):
    """A host's cores and bytes, shared by the pools that name it; None: unbounded."""

    name: str
    max_cpu: float | None = None
    max_memory: int | None = None


class Backoff(Struct, frozen=True, kw_only=True):
    """Seconds that a pool's next creation waits after a failure: ``base``, doubled by each in a row up to ``most``."""

    base: float = 30.0
    most: float = 900.0


class Caps(Struct, frozen=True, kw_only=True):
    """Cluster-wide bounds; None: unbounded. ``concurrent_creates``: requested at the same time and not yet registered.
    ``creates_per_second`` is the rate of a bucket that holds ``creates_burst``. ``max_cost_per_hour`` is the sum over
    every provision that is not gone. ``provisioner_slots``: instances for runs that themselves make and end instances,
    outside every other bound, so that releasing never waits for capacity.
    ``backoff_base`` and ``backoff_max``: seconds that a failing pool's creations wait, doubling from the one to the
    other."""

    max_agents: int = 1000
    max_cpu: float | None = None
    max_memory: int | None = None
    max_cost_per_hour: float | None = None
    concurrent_creates: int = 8
    creates_per_job: int = 5
    creates_per_second: float | None = None
    creates_burst: int = 10
    machines: tuple[Machine, ...] = ()
    backoff_base: float = 30.0
    backoff_max: float = 900.0
    provisioner_slots: int = 2

    @property
    def backoff(self) -> Backoff:
        return Backoff(base=self.backoff_base, most=self.backoff_max)
