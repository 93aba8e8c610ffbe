# SPDX-License-Identifier: Apache-2.0
"""From demand to instances and back: what to create, what to release, and a reason for everything else.

Pure and level-triggered: the whole state goes in, the difference to what should be comes out; planning again after
committing yields the empty plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum

from corral.decide.dispatching import RELEASE_GRACE
from corral.decide.matching import Offered, Wanted, fits, nearest, route
from corral.model.ids import AgentId, JobId, RunId
from corral.model.labels import Labels
from corral.model.pools import Caps, Pool
from corral.model.records import PoolHealth
from corral.model.states import ProvisionState

BACKOFF_BASE = 30 * 1_000_000
"""Microseconds a pool's creations wait after its first failure in a row."""
BACKOFF_MAX = 15 * 60 * 1_000_000


SPAWN_TIMEOUT_ERROR = "no agent registered before the spawn deadline"


class NotDone(StrEnum):
    """Why a queued job gets no new instance now."""

    AT_POOL_MAX = "at_pool_max"
    AT_MAX_RUNNING = "at_max_running"
    AT_GLOBAL_MAX = "at_global_max"
    AT_RATE = "at_rate"
    BACKING_OFF = "backing_off"
    DRAINING = "draining"
    CREATES_EXHAUSTED = "creates_exhausted"
    NO_POOL = "no_pool"


class ReleaseReason(StrEnum):
    JOB_COMPLETE = "job-complete"
    JOB_CANCELLED = "job-cancelled"
    CREATE_FAILED = "create-failed"
    INSTANCE_ENDED = "instance-ended"
    SPAWN_TIMEOUT = "spawn-timeout"
    IDLE = "idle"
    DRAIN = "drain"
    UNRESPONSIVE = "unresponsive"
    LOST = "lost"
    """Its job was given up while it was silent, and it has come back since."""
    OPERATOR = "operator"


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A queued job, in the order in which they are to be served."""

    job_id: JobId
    run_id: RunId
    wanted: Wanted
    creates: int = 0
    cpu: float | None = None
    memory: int | None = None


@dataclass(frozen=True, kw_only=True)
class Supply:
    """A provision that is not gone, with what is known of its agent; or a static agent, whose ``pool`` is empty: it
    serves demand, no cap counts it, and it is nobody's to release.

    ``lost``: its agent's job was given up for lost; it stays until the agent returns or its instance is gone.
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


@dataclass(frozen=True, kw_only=True)
class Creation:
    pool: str
    job_id: JobId
    run_id: RunId
    labels: Labels
    cpu: float | None = None
    memory: int | None = None


@dataclass(frozen=True, kw_only=True)
class Release:
    agent_id: AgentId
    reason: ReleaseReason


@dataclass(frozen=True, kw_only=True)
class Unplaced:
    """``pool``: the one that came nearest. ``until``: when the reason ends by itself (microseconds)."""

    job_id: JobId
    reason: NotDone
    pool: str = ""
    detail: str = ""
    until: int | None = None


@dataclass(frozen=True, kw_only=True)
class ScalingPlan:
    creations: tuple[Creation, ...] = ()
    releases: tuple[Release, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    covered: tuple[JobId, ...] = ()
    """Jobs that something existing or under way will serve."""

    def __bool__(self) -> bool:
        return bool(self.creations or self.releases)


def backoff(failures_before: int) -> int:
    """Microseconds to wait after one more failure in a row."""
    return int(min(BACKOFF_BASE * 2 ** min(failures_before, 20), BACKOFF_MAX))


def plan(
    demand: Sequence[Demand],
    supply: Sequence[Supply],
    pools: Sequence[Pool],
    caps: Caps,
    health: Mapping[str, PoolHealth],
    now: int,
) -> ScalingPlan:
    """What to do now. ``now`` in microseconds, of the database's clock, as all moments are."""
    by_pool = {pool.name: pool for pool in pools}
    queued = {item.job_id for item in demand}
    releases = [
        Release(agent_id=item.agent_id, reason=reason)
        for item in supply
        if (reason := _release(item, by_pool.get(item.pool), now)) is not None
    ]
    by_id = {item.agent_id: item for item in supply}
    leaving = {release.agent_id for release in releases}
    usable = _Usable.of([item for item in supply if item.agent_id not in leaving], queued, now)
    late = {by_id[r.agent_id].pool for r in releases if r.reason is ReleaseReason.SPAWN_TIMEOUT}
    room = _Room.of(supply, leaving, pools, caps, _after_failure(health, late, now), now)
    creations: list[Creation] = []
    unplaced: list[Unplaced] = []
    covered: list[JobId] = []
    for item in demand:
        taken = usable.take(item)
        if taken is not None:
            waits = room.runs(by_pool.get(taken.pool), item.job_id)
            if waits is None:
                covered.append(item.job_id)
            else:
                unplaced.append(waits)
            continue
        outcome = _place(item, pools, caps, room)
        if isinstance(outcome, Creation):
            creations.append(outcome)
        else:
            unplaced.append(outcome)
    releases += _idle(usable.left(), by_pool, now)
    return ScalingPlan(
        creations=tuple(creations), releases=tuple(releases), unplaced=tuple(unplaced), covered=tuple(covered)
    )


# --- giving back -------------------------------------------------------------------------------------------


def _release(item: Supply, pool: Pool | None, now: int) -> ReleaseReason | None:
    """Reasons that need no comparison with demand, in order."""
    if item.static or item.assigned or item.state not in (ProvisionState.REQUESTED, ProvisionState.ACTIVE):
        return None
    if item.ended:
        return ReleaseReason.INSTANCE_ENDED
    if item.failed:
        return ReleaseReason.CREATE_FAILED
    if item.lost:
        return None
    if item.cordon is not None:
        return _cordon_reason(item.cordon)
    if item.draining:
        return ReleaseReason.DRAIN
    if item.state is ProvisionState.REQUESTED:
        return _never_registered(item, now)
    if pool is None or pool.draining:
        return ReleaseReason.DRAIN
    return None


def _never_registered(item: Supply, now: int) -> ReleaseReason | None:
    if item.bound is not None and not item.bound_live:
        return ReleaseReason.JOB_CANCELLED
    if item.deadline_at is not None and now >= item.deadline_at:
        return ReleaseReason.SPAWN_TIMEOUT
    return None


def _cordon_reason(cordon: str) -> ReleaseReason:
    return ReleaseReason(cordon) if cordon in set(ReleaseReason) else ReleaseReason.OPERATOR


def _idle(left: Sequence[Supply], by_pool: Mapping[str, Pool], now: int) -> list[Release]:
    """Agents that no demand wants any more, after their pool's idle timeout."""
    return [
        Release(agent_id=item.agent_id, reason=ReleaseReason.IDLE)
        for item in left
        if item.state is ProvisionState.ACTIVE
        and item.online
        and item.idle_since is not None
        and (pool := by_pool.get(item.pool)) is not None
        and now - item.idle_since >= pool.idle_timeout * 1_000_000
    ]


def _after_failure(health: Mapping[str, PoolHealth], failed: Set[str], now: int) -> Mapping[str, PoolHealth]:
    """As it will be when this plan is committed: a pool that just failed is not asked again at once."""
    return {**health, **{pool: _failing(health.get(pool), pool, now) for pool in failed}}


def _failing(known: PoolHealth | None, pool: str, now: int) -> PoolHealth:
    if known is not None and known.backoff_until is not None and now < known.backoff_until:
        return known
    before = known.failures if known is not None else 0
    return PoolHealth(
        pool=pool,
        failures=before + 1,
        backoff_began_at=now,
        backoff_until=now + backoff(before),
        last_error=SPAWN_TIMEOUT_ERROR,
    )


# --- what is there -----------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Usable:
    """Supply that can still serve a job: idle agents and provisions under way."""

    bound: dict[JobId, Supply]
    free: dict[Offered, list[Supply]]

    @classmethod
    def of(cls, supply: Sequence[Supply], queued: set[JobId], now: int) -> _Usable:
        usable = cls(bound={}, free={})
        for item in supply:
            if not _can_serve(item, now):
                continue
            if item.bound is not None and item.bound in queued:
                usable.bound.setdefault(item.bound, item)
            elif _free(item, now):
                usable.free.setdefault(item.offered, []).append(item)
        return usable

    def take(self, demand: Demand) -> Supply | None:
        """Its own instance first, then one of the smallest class that fits: an order that does not depend on what
        else is there, so that releasing what is left over changes no choice."""
        own = self.bound.pop(demand.job_id, None)
        if own is not None:
            return own
        fitting = [offered for offered, items in self.free.items() if items and fits(demand.wanted, offered)]
        return self.free[min(fitting, key=_size)].pop() if fitting else None

    def left(self) -> list[Supply]:
        return [item for items in self.free.values() for item in items]


def _size(offered: Offered) -> tuple[int, list[str], list[str], bool]:
    return len(offered.labels), sorted(offered.labels), sorted(offered.mandatory), offered.default


def _can_serve(item: Supply, now: int) -> bool:
    if item.cordon is not None or item.held or item.failed or item.ended or item.lost or item.assigned:
        return False
    if item.state is ProvisionState.REQUESTED:
        return item.deadline_at is None or now < item.deadline_at
    return item.state is ProvisionState.ACTIVE and item.online


def _free(item: Supply, now: int) -> bool:
    """A bound agent whose job went elsewhere serves others after the grace."""
    if item.bound is None:
        return True
    return item.idle_since is not None and now - item.idle_since >= RELEASE_GRACE


# --- creating ----------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Room:
    """What the caps still allow; taking lowers it, so that a plan never exceeds them."""

    pool: dict[str, int]
    total: int
    creating: int
    running: dict[str, int]
    """Jobs that may begin, of pools that limit it."""
    refused: dict[str, Unplaced] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        supply: Sequence[Supply],
        leaving: Set[AgentId],
        pools: Sequence[Pool],
        caps: Caps,
        health: Mapping[str, PoolHealth],
        now: int,
    ) -> _Room:
        """What leaves now holds its slot until it is gone, but is not being created any more."""
        held = Counter(item.pool for item in supply if not item.static)
        creating = sum(1 for item in supply if _being_created(item) and item.agent_id not in leaving)
        room = cls(
            pool={pool.name: max(0, pool.max_agents - held[pool.name]) for pool in pools},
            total=max(0, caps.max_agents - held.total()),
            creating=max(0, caps.concurrent_creates - creating),
            running=_running(supply, pools),
        )
        for pool in pools:
            reason = _pool_refuses(pool, health.get(pool.name), now)
            if reason is not None:
                room.refused[pool.name] = reason
        return room

    def refuses(self, pool: Pool) -> Unplaced | None:
        """Why no instance of this pool can be made now (without its job), or None."""
        if pool.name in self.refused:
            return self.refused[pool.name]
        if self.pool[pool.name] <= 0:
            return _unplaced(NotDone.AT_POOL_MAX, pool, f"pool {pool.name} has its {pool.max_agents} agents")
        if self.running.get(pool.name, 1) <= 0:
            return _at_max_running(pool)
        if self.total <= 0:
            return _unplaced(NotDone.AT_GLOBAL_MAX, pool, "the cluster's max_agents is reached")
        if self.creating <= 0:
            return _unplaced(NotDone.AT_RATE, pool, "as many instances as allowed are being created")
        return None

    def runs(self, pool: Pool | None, job_id: JobId) -> Unplaced | None:
        """The job begins on an agent of this pool (None: of none that is configured), or why it may not yet."""
        if pool is None or pool.name not in self.running:
            return None
        if self.running[pool.name] <= 0:
            return replace(_at_max_running(pool), job_id=job_id)
        self.running[pool.name] -= 1
        return None

    def take(self, pool: Pool) -> None:
        if pool.name in self.running:
            self.running[pool.name] -= 1
        self.pool[pool.name] -= 1
        self.total -= 1
        self.creating -= 1


def _running(supply: Sequence[Supply], pools: Sequence[Pool]) -> dict[str, int]:
    busy = Counter(item.pool for item in supply if item.assigned)
    return {pool.name: max(0, pool.max_running - busy[pool.name]) for pool in pools if pool.max_running is not None}


def _at_max_running(pool: Pool) -> Unplaced:
    detail = f"pool {pool.name} runs no more than {pool.max_running} jobs at the same time"
    return _unplaced(NotDone.AT_MAX_RUNNING, pool, detail)


def _being_created(item: Supply) -> bool:
    return item.state is ProvisionState.REQUESTED and not item.failed


_NOBODY = JobId("")


def _unplaced(reason: NotDone, pool: Pool, detail: str, until: int | None = None) -> Unplaced:
    return Unplaced(job_id=_NOBODY, reason=reason, pool=pool.name, detail=detail, until=until)


def _pool_refuses(pool: Pool, health: PoolHealth | None, now: int) -> Unplaced | None:
    if pool.draining:
        return _unplaced(NotDone.DRAINING, pool, f"pool {pool.name} is draining")
    if health is not None and health.backoff_until is not None and now < health.backoff_until:
        seconds = (health.backoff_until - now + 999_999) // 1_000_000
        detail = f"pool {pool.name} failed {health.failures} times in a row and is tried again in {seconds} s"
        if health.last_error:
            detail += f"; last: {health.last_error}"
        return _unplaced(NotDone.BACKING_OFF, pool, detail, health.backoff_until)
    return None


def _place(item: Demand, pools: Sequence[Pool], caps: Caps, room: _Room) -> Creation | Unplaced:
    candidates = route(item.wanted, pools)
    if not candidates:
        return no_pool(item.job_id, item.wanted, pools)
    if item.creates >= caps.creates_per_job:
        return Unplaced(
            job_id=item.job_id,
            reason=NotDone.CREATES_EXHAUSTED,
            pool=candidates[0].name,
            detail=f"{item.creates} instances were made for this job and none of them ran it",
        )
    first: Unplaced | None = None
    for pool in candidates:
        refused = room.refuses(pool)
        if refused is None:
            room.take(pool)
            return _creation(item, pool)
        first = first or refused
    assert first is not None
    return Unplaced(job_id=item.job_id, reason=first.reason, pool=first.pool, detail=first.detail, until=first.until)


def _creation(item: Demand, pool: Pool) -> Creation:
    return Creation(
        pool=pool.name,
        job_id=item.job_id,
        run_id=item.run_id,
        labels=pool.labels,
        cpu=item.cpu if item.cpu is not None else pool.cpu,
        memory=item.memory if item.memory is not None else pool.memory,
    )


def no_pool(job_id: JobId, wanted: Wanted, pools: Sequence[Pool]) -> Unplaced:
    """No pool fits: which comes nearest, and what stands between."""
    near = nearest(wanted, pools)
    if near is None:
        return Unplaced(job_id=job_id, reason=NotDone.NO_POOL, detail="no pool is configured")
    pool, difference = near
    return Unplaced(
        job_id=job_id,
        reason=NotDone.NO_POOL,
        pool=pool.name,
        detail=f"no pool fits; the nearest is {pool.name}: {difference.sentence(pool.name)}",
    )
