# SPDX-License-Identifier: Apache-2.0
"""What a scaling plan reads and what it says: frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from corral.decide.matching import Offered, Wanted
from corral.model.ids import AgentId, JobId, RunId
from corral.model.labels import NO_LABELS, Labels
from corral.model.states import ProvisionState


class NotDone(StrEnum):
    """Why a queued job (or a warm pool) gets no new instance now."""

    AT_POOL_MAX = "at_pool_max"
    AT_MAX_RUNNING = "at_max_running"
    AT_GLOBAL_MAX = "at_global_max"
    AT_CPU_CAP = "at_cpu_cap"
    AT_MEMORY_CAP = "at_memory_cap"
    AT_MACHINE_CAP = "at_machine_cap"
    AT_SPEND_CAP = "at_spend_cap"
    AT_PROVISIONER_SLOTS = "at_provisioner_slots"
    AT_RATE = "at_rate"
    BACKING_OFF = "backing_off"
    LEAKING = "leaking"
    DRAINING = "draining"
    AGENT_OFFLINE = "agent_offline"
    """Only a static agent could run it, and none that could is connected."""
    AGENT_BUSY = "agent_busy"
    """Only a static agent could run it; those that are connected have a job, or are held."""
    CREATES_EXHAUSTED = "creates_exhausted"
    NO_POOL = "no_pool"
    NOT_WAITING = "not_waiting"
    """It was given an agent or ended between the plan and the admission."""


class ReleaseReason(StrEnum):
    JOB_COMPLETE = "job-complete"
    JOB_CANCELLED = "job-cancelled"
    CREATE_FAILED = "create-failed"
    INSTANCE_ENDED = "instance-ended"
    SPAWN_TIMEOUT = "spawn-timeout"
    IDLE = "idle"
    CAP_CUT = "cap-cut"
    """A cap was lowered, or a waiting job needs what a warm instance holds."""
    DRAIN = "drain"
    UNRESPONSIVE = "unresponsive"
    LOST = "lost"
    """Its job was given up while it was silent. What it still has of the log is waited for."""
    RETURNED = "returned"
    """After that it came back, and what it had of the log is here."""
    OPERATOR = "operator"


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A queued job, in the order in which they are to be served. ``provisioning``: it belongs to a run that makes or
    ends instances itself, so it never causes one of an event pool."""

    job_id: JobId
    run_id: RunId
    wanted: Wanted
    creates: int = 0
    cpu: float | None = None
    memory: int | None = None
    provisioning: bool = False


@dataclass(frozen=True, kw_only=True)
class Supply:
    """A provision that is not gone, with what is known of its agent; or a static agent, whose ``pool`` is empty: it
    serves demand, no cap counts it, and it is nobody's to release.

    ``lost``: its agent's job was given up for lost; it stays until the agent has returned and sent the rest of its log,
    or its instance is gone.
    """

    agent_id: AgentId
    pool: str
    state: ProvisionState
    offered: Offered
    bound: JobId | None = None
    bound_live: bool = False
    """The job it was made for has not ended."""
    online: bool = False
    assigned: bool = False
    ever_assigned: bool = False
    cordon: str | None = None
    held: bool = False
    """An operator wants nothing offered to it: it serves nobody and stays."""
    draining: bool = False
    """An operator wants it back once it has no job."""
    idle_since: int | None = None
    deadline_at: int | None = None
    failed: bool = False
    ended: bool = False
    lost: bool = False
    static: bool = False
    """Of no pool: it serves demand, counts for no cap, and is nobody's to release."""
    requested_at: int | None = None
    unsent: bool = False
    """Nobody began to make it: once released it is gone at once."""
    event: bool = False
    """Made by a user's own provisioner."""
    provisioning: bool = False
    """Made for a run that provisions: it counts against ``provisioner_slots`` and against nothing else."""
    cpu: float | None = None
    memory: int | None = None
    cost: float = 0.0
    machine: str = ""


class Creation(Struct, frozen=True, kw_only=True):
    """One instance to be asked for, fully specified. ``job_id`` None: a warm one."""

    pool: str
    labels: Labels
    mandatory: Labels = NO_LABELS
    job_id: JobId | None = None
    run_id: RunId | None = None
    cpu: float | None = None
    memory: int | None = None
    provisioning: bool = False


class Release(Struct, frozen=True, kw_only=True):
    agent_id: AgentId
    reason: ReleaseReason


class Unplaced(Struct, frozen=True, kw_only=True):
    """``pool``: the one that came nearest. ``until``: when the reason ends by itself (microseconds)."""

    job_id: JobId
    reason: NotDone
    pool: str = ""
    detail: str = ""
    until: int | None = None


class Shortfall(Struct, frozen=True, kw_only=True):
    """A pool that is not as warm as it should be, and why: ``missing`` agents."""

    pool: str
    missing: int
    reason: NotDone
    detail: str = ""
    until: int | None = None


class ScalingPlan(Struct, frozen=True, kw_only=True):
    creations: tuple[Creation, ...] = ()
    releases: tuple[Release, ...] = ()
    uncordons: tuple[AgentId, ...] = ()
    """Agents that were to go and are wanted after all."""
    unplaced: tuple[Unplaced, ...] = ()
    covered: tuple[JobId, ...] = ()
    """Jobs that something existing or under way will serve."""
    short: tuple[Shortfall, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.creations or self.releases or self.uncordons)
