# SPDX-License-Identifier: Apache-2.0
"""One pass: jobs in their order, then what a job needs of warm agents, then the caps, then warmth."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as changed

from corral.decide.matching import Wanted, fits, nearest, route
from corral.decide.scaling import releases as giving
from corral.decide.scaling.backoff import after_failure
from corral.decide.scaling.room import Refusal, Room, at_max_running, close, holding, running
from corral.decide.scaling.terms import (
    Creation,
    Demand,
    NotDone,
    Release,
    ReleaseReason,
    ScalingPlan,
    Shortfall,
    Supply,
    Unplaced,
)
from corral.decide.scaling.usable import Usable
from corral.decide.scaling.warm import warm_target
from corral.model.ids import AgentId, JobId
from corral.model.pools import Caps, Pool
from corral.model.records import PoolHealth
from corral.model.states import ProvisionState

_Kind = tuple[Wanted, float | None, int | None, bool]
"""Jobs that are answered alike: as room only shrinks, what one of them is refused the next is refused too."""
_NOBODY = JobId("")


def plan(
    demand: Sequence[Demand],
    supply: Sequence[Supply],
    pools: Sequence[Pool],
    caps: Caps,
    health: Mapping[str, PoolHealth],
    now: int,
    tokens: float | None = None,
) -> ScalingPlan:
    """What to do now. ``now`` in microseconds, of the database's clock, as all moments are. ``tokens``: creations that
    ``creates_per_second`` allows now."""
    by_pool = {pool.name: pool for pool in pools}
    due = {
        item.agent_id: reason
        for item in supply
        if (reason := giving.due(item, by_pool.get(item.pool), now)) is not None
    }
    pass_ = _Pass.of(demand, supply, pools, caps, health, due, now, tokens)
    alike: dict[Wanted, Wanted] = {}
    for item in demand:
        # One object for what many jobs ask alike: it is looked up several times for each, and found by identity.
        pass_.serve(item, alike.setdefault(item.wanted, item.wanted))
    pass_.outrank_warmth()
    pass_.cut()
    pass_.expire()
    pass_.keep_warm()
    return pass_.result()


@dataclass(kw_only=True)
class _Pass:
    pools: Sequence[Pool]
    by_pool: Mapping[str, Pool]
    by_label: Mapping[str, list[Pool]]
    supply: Sequence[Supply]
    caps: Caps
    now: int
    due: dict[AgentId, ReleaseReason]
    usable: Usable
    returning: Usable
    """Agents whose cordon the scaler may take back."""
    room: Room
    queued: set[JobId]
    creations: list[Creation] = field(default_factory=list)
    unplaced: list[Unplaced] = field(default_factory=list)
    covered: list[JobId] = field(default_factory=list)
    uncordons: list[AgentId] = field(default_factory=list)
    short: list[Shortfall] = field(default_factory=list)
    blocked: list[tuple[Pool, Creation]] = field(default_factory=list)
    """What jobs wait for at a cap that other pools fill as well."""
    _ways: dict[tuple[Wanted, bool], tuple[Pool, ...]] = field(default_factory=dict)
    _refused: dict[_Kind, tuple[Unplaced, tuple[Pool, Creation] | None]] = field(default_factory=dict)
    _left: list[Supply] | None = None

    @classmethod
    def of(
        cls,
        demand: Sequence[Demand],
        supply: Sequence[Supply],
        pools: Sequence[Pool],
        caps: Caps,
        health: Mapping[str, PoolHealth],
        due: dict[AgentId, ReleaseReason],
        now: int,
        tokens: float | None,
    ) -> _Pass:
        by_pool = {pool.name: pool for pool in pools}
        queued = {item.job_id for item in demand}
        late = [item for item in supply if due.get(item.agent_id) is ReleaseReason.SPAWN_TIMEOUT]
        room = Room(caps=caps, now=now, tokens=tokens)
        room.closed = close(pools, after_failure(health, late, caps.backoff, now), now)
        room.running = running(supply, pools)
        for item in supply:
            if not item.static and not (item.unsent and item.agent_id in due):
                held = holding(item)
                # What leaves holds its slot until it is gone, but is not being created any more.
                held.creating = 0 if item.agent_id in due else held.creating
                room.hold(held)
        back = (replace(item, cordon=None) for item in supply if giving.may_return(item, by_pool.get(item.pool)))
        by_label: dict[str, list[Pool]] = defaultdict(list)
        for pool in pools:
            for label in pool.labels:
                by_label[label].append(pool)
        return cls(
            pools=pools,
            by_pool=by_pool,
            by_label=by_label,
            supply=supply,
            caps=caps,
            now=now,
            due=due,
            usable=Usable.of((item for item in supply if item.agent_id not in due), queued, now),
            returning=Usable.of(back, queued, now),
            room=room,
            queued=queued,
        )

    def result(self) -> ScalingPlan:
        return ScalingPlan(
            creations=tuple(self.creations),
            releases=tuple(Release(agent_id=agent_id, reason=reason) for agent_id, reason in self.due.items()),
            uncordons=tuple(self.uncordons),
            unplaced=tuple(self.unplaced),
            covered=tuple(self.covered),
            short=tuple(self.short),
        )

    # --- jobs ---

    def serve(self, item: Demand, wanted: Wanted) -> None:
        """By what is there or on its way, else by a new instance, else with the reason why not."""
        taken = self.usable.take(item, wanted)
        if taken is not None:
            self._begin(item, taken)
            return
        outcome = self._place(item, wanted)
        if isinstance(outcome, Creation):
            self.creations.append(outcome)
        elif not self._take_back(item, outcome):
            self.unplaced.append(outcome)

    def _begin(self, item: Demand, taken: Supply) -> None:
        """The job runs there, unless its pool has as many jobs as it may; a provisioning one waits for no limit."""
        left = None if item.provisioning else self.room.running.get(taken.pool)
        if left is None:
            self.covered.append(item.job_id)
        elif left > 0:
            self.room.running[taken.pool] -= 1
            self.covered.append(item.job_id)
        else:
            self.unplaced.append(_told(item.job_id, at_max_running(self.by_pool[taken.pool])))

    def _take_back(self, item: Demand, outcome: Unplaced) -> bool:
        """At a cap, an agent that was to go for no other reason than that nobody needed it serves after all."""
        if outcome.reason in (NotDone.NO_POOL, NotDone.CREATES_EXHAUSTED, NotDone.AT_MAX_RUNNING):
            return False
        taken = self.returning.take(item, item.wanted) if self.returning else None
        if taken is None:
            return False
        if self.blocked and self.blocked[-1][1].job_id == item.job_id:
            self.blocked.pop()
        del self.due[taken.agent_id]
        self.uncordons.append(taken.agent_id)
        self._begin(item, taken)
        return True

    def _place(self, item: Demand, wanted: Wanted) -> Creation | Unplaced:
        way = self._way(item, wanted)
        if not way:
            return self._nowhere(item)
        if item.creates >= self.caps.creates_per_job:
            detail = f"{item.creates} instances were made for this job and none of them ran it"
            return Unplaced(job_id=item.job_id, reason=NotDone.CREATES_EXHAUSTED, pool=way[0].name, detail=detail)
        kind = (wanted, item.cpu, item.memory, item.provisioning)
        known = self._refused.get(kind)
        if known is None:
            outcome = self._try(item, way, kind)
            if isinstance(outcome, Creation):
                return outcome
            known = outcome
        unplaced, waits = known
        if waits is not None:
            self.blocked.append((waits[0], _for_job(waits[1], item)))
        return Unplaced(
            job_id=item.job_id,
            reason=unplaced.reason,
            pool=unplaced.pool,
            detail=unplaced.detail,
            until=unplaced.until,
        )

    def _try(
        self, item: Demand, way: Sequence[Pool], kind: _Kind
    ) -> Creation | tuple[Unplaced, tuple[Pool, Creation] | None]:
        """In the first pool of the way that has room; the refusal of the nearest where none has."""
        first: Refusal | None = None
        waits: tuple[Pool, Creation] | None = None
        for pool in way:
            creation = _creation(item, pool)
            refused = self.room.refuses(pool, creation)
            if refused is None:
                self.room.take(pool, creation)
                return creation
            first = first or refused
            if refused.shared and waits is None:
                waits = (pool, creation)
        assert first is not None
        self._refused[kind] = (_told(_NOBODY, first), waits)
        return self._refused[kind]

    def _way(self, item: Demand, wanted: Wanted) -> tuple[Pool, ...]:
        key = (wanted, item.provisioning)
        way = self._ways.get(key)
        if way is None:
            way = self._ways[key] = candidates(item, self._near(item.wanted))
        return way

    def _near(self, wanted: Wanted) -> Sequence[Pool]:
        """Pools that have the job's rarest label: the others cannot fit."""
        if not wanted.labels:
            return self.pools
        return min((self.by_label.get(label, []) for label in wanted.labels), key=lambda some: len(some))

    def _nowhere(self, item: Demand) -> Unplaced:
        """No pool fits: perhaps a static agent does, which is away or busy."""
        fitting = [each for each in self.supply if each.static and fits(item.wanted, each.offered)]
        if not fitting:
            return no_pool(item.job_id, item.wanted, self.pools, provisioning=item.provisioning)
        there = [each for each in fitting if each.online]
        if there:
            return Unplaced(
                job_id=item.job_id,
                reason=NotDone.AGENT_BUSY,
                detail=f"no pool fits, and of the static agents that do none is free ({len(there)} connected)",
            )
        return Unplaced(
            job_id=item.job_id,
            reason=NotDone.AGENT_OFFLINE,
            detail=f"no pool fits, and of the static agents that do none is connected ({len(fitting)} known)",
        )

    # --- giving back ---

    def left(self) -> list[Supply]:
        """Idle agents that no demand wants, longest idle first."""
        if self._left is None:
            idle = [
                item
                for item in self.usable.left()
                if item.state is ProvisionState.ACTIVE and item.online and item.idle_since is not None
            ]
            self._left = sorted(
                (item for item in idle if not item.static), key=lambda item: (item.idle_since, item.agent_id)
            )
        return self._left

    def _let_go(self, items: Iterable[Supply], reason: ReleaseReason) -> None:
        gone = {item.agent_id for item in items}
        self.due.update(dict.fromkeys(sorted(gone), reason))
        self._left = [item for item in self.left() if item.agent_id not in gone]

    def outrank_warmth(self) -> None:
        """At a cap that pools share, a job outranks warmth: what is idle elsewhere goes, the longest idle first, until
        there will be room; what is on its way out already is counted on."""
        if not self.blocked:
            return
        later = self._without_leaving()
        hopeless: set[tuple[str, float | None, int | None]] = set()
        for pool, creation in self.blocked:
            kind = (pool.name, creation.cpu, creation.memory)
            if kind in hopeless:
                continue
            victims = self._victims(later, pool, creation)
            if victims is None:
                hopeless.add(kind)
                continue
            later.take(pool, creation)
            self._let_go(victims, ReleaseReason.CAP_CUT)

    def _without_leaving(self) -> Room:
        """The room there will be when all that leaves is gone; a rate limits nothing then."""
        caps = _unhurried(self.caps)
        later = Room(caps=caps, now=self.now, closed=self.room.closed)
        for item in self.supply:
            if not item.static and item.state is not ProvisionState.RELEASING and item.agent_id not in self.due:
                later.hold(holding(item))
        for creation in self.creations:
            later.take(self.by_pool[creation.pool], creation)
        return later

    def _victims(self, later: Room, pool: Pool, creation: Creation) -> list[Supply] | None:
        """Those to release so that the instance can be made; None: it would not help."""
        victims: list[Supply] = []
        others = [item for item in self.left() if item.pool != pool.name]
        while (refused := later.refuses(pool, creation)) is not None:
            victim = next((item for item in others if refused.shared and _helps(item, refused, pool)), None)
            if victim is None:
                for item in victims:
                    later.hold(holding(item))
                return None
            others.remove(victim)
            later.give_back(holding(victim))
            victims.append(victim)
        return victims

    def cut(self) -> None:
        """A lowered cap gives back what is idle and above it, never a busy one."""
        kept = Room(caps=self.caps, now=self.now)
        for item in self.supply:
            if not item.static and item.state in giving.UNDER_WAY and item.agent_id not in self.due:
                kept.hold(holding(item))
        surplus = []
        for item in self.left():
            if kept.exceeds(self.by_pool.get(item.pool), holding(item)):
                kept.give_back(holding(item))
                surplus.append(item)
        self._let_go(surplus, ReleaseReason.CAP_CUT)

    def expire(self) -> None:
        """Agents that nobody wanted for their pool's idle timeout, down to what is kept warm."""
        spare = Counter(item.pool for item in self.left() if giving.warm(item))
        for pool in self.pools:
            spare[pool.name] -= warm_target(pool, self.now)
        over = []
        for item in self.left():
            if not giving.outlived(item, self.by_pool.get(item.pool), self.now):
                continue
            if giving.warm(item):
                if spare[item.pool] <= 0:
                    continue
                spare[item.pool] -= 1
            over.append(item)
        self._let_go(over, ReleaseReason.IDLE)

    # --- warmth ---

    def keep_warm(self) -> None:
        """Make what is missing; nothing while a job waits at a cap that it would help to fill."""
        ready = Counter(item.pool for item in self.left() if giving.warm(item))
        ready += Counter(item.pool for item in self.usable.reserved if giving.warm(item))
        ready += Counter(item.pool for item in self.usable.left() if item.state is ProvisionState.REQUESTED)
        for pool in sorted(self.pools, key=lambda pool: pool.name):
            target = 0 if pool.draining else warm_target(pool, self.now)
            self._fill(pool, target - ready[pool.name])

    def _fill(self, pool: Pool, missing: int) -> None:
        creation = Creation(
            pool=pool.name, labels=pool.labels, mandatory=pool.mandatory, cpu=pool.cpu, memory=pool.memory
        )
        for made in range(missing):
            refused = self.room.refuses(pool, creation) or self._yields(pool)
            if refused is not None:
                self.short.append(
                    Shortfall(
                        pool=pool.name,
                        missing=missing - made,
                        reason=refused.reason,
                        detail=refused.detail,
                        until=refused.until,
                    )
                )
                return
            self.room.take(pool, creation)
            self.creations.append(creation)

    def _yields(self, pool: Pool) -> Refusal | None:
        if not self.blocked:
            return None
        detail = "jobs wait for what a warm instance would take"
        return Refusal(reason=NotDone.AT_GLOBAL_MAX, pool=pool.name, detail=detail)


def candidates(item: Demand, pools: Sequence[Pool]) -> tuple[Pool, ...]:
    """The pools that may make an instance for the job, best first."""
    way = route(item.wanted, pools)
    return tuple(pool for pool in way if not pool.event) if item.provisioning else way


def _helps(item: Supply, refused: Refusal, pool: Pool) -> bool:
    """Does its end leave more of what is short?"""
    held = holding(item)
    match refused.reason:
        case NotDone.AT_CPU_CAP:
            return held.cpu > 0
        case NotDone.AT_MEMORY_CAP:
            return held.memory > 0
        case NotDone.AT_SPEND_CAP:
            return held.cost > 0
        case NotDone.AT_MACHINE_CAP:
            return held.machine == pool.machine and (held.cpu > 0 or held.memory > 0)
        case _:
            return held.agents > 0


def _unhurried(caps: Caps) -> Caps:
    return changed(caps, concurrent_creates=10**9, creates_per_second=None)


def _told(job_id: JobId, refused: Refusal) -> Unplaced:
    return Unplaced(job_id=job_id, reason=refused.reason, pool=refused.pool, detail=refused.detail, until=refused.until)


def _creation(item: Demand, pool: Pool) -> Creation:
    return Creation(
        pool=pool.name,
        job_id=item.job_id,
        run_id=item.run_id,
        labels=pool.labels,
        mandatory=pool.mandatory,
        cpu=item.cpu if item.cpu is not None else pool.cpu,
        memory=item.memory if item.memory is not None else pool.memory,
        provisioning=item.provisioning,
    )


def _for_job(creation: Creation, item: Demand) -> Creation:
    return Creation(
        pool=creation.pool,
        job_id=item.job_id,
        run_id=item.run_id,
        labels=creation.labels,
        mandatory=creation.mandatory,
        cpu=creation.cpu,
        memory=creation.memory,
    )


def no_pool(job_id: JobId, wanted: Wanted, pools: Sequence[Pool], *, provisioning: bool = False) -> Unplaced:
    """No pool fits: which comes nearest, and what stands between."""
    if provisioning and (way := route(wanted, pools)):
        detail = (
            f"it belongs to a run that makes instances itself, and only event pools fit ({way[0].name}): "
            f"such a run needs a static agent or a pool of another backend"
        )
        return Unplaced(job_id=job_id, reason=NotDone.NO_POOL, pool=way[0].name, detail=detail)
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
