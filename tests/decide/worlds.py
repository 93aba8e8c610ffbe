# SPDX-License-Identifier: Apache-2.0
"""What a plan depends on in one value, and what applying a plan does to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corral.decide import scaling
from corral.decide.matching import Offered, Wanted, pool_offer
from corral.decide.scaling import Demand, NotDone, ReleaseReason, ScalingPlan, Supply
from corral.model.ids import AgentId, JobId, RunId
from corral.model.pools import Backoff, Caps, Pool
from corral.model.records import PoolHealth
from corral.model.states import ProvisionState
from tests.decide.strategies import NOW, SECOND

JOBS = [JobId(f"j{n}") for n in range(8)]
UNDER_WAY = (ProvisionState.REQUESTED, ProvisionState.ACTIVE)


@dataclass(frozen=True, kw_only=True)
class World:
    """All that a plan depends on, and what applying one does to it."""

    demand: tuple[Demand, ...]
    supply: tuple[Supply, ...]
    pools: tuple[Pool, ...]
    caps: Caps
    health: dict[str, PoolHealth]
    now: int = NOW
    tokens: float | None = None

    def plan(self) -> ScalingPlan:
        return scaling.plan(self.demand, self.supply, self.pools, self.caps, self.health, self.now, self.tokens)

    def apply(self, plan: ScalingPlan) -> World:
        released = {release.agent_id: release.reason for release in plan.releases}
        supply = tuple(
            replace(item, state=ProvisionState.RELEASING, cordon=item.cordon or released[item.agent_id])
            if item.agent_id in released
            else replace(item, cordon=None)
            if item.agent_id in plan.uncordons
            else item
            for item in self.supply
        )
        by_name = {pool.name: pool for pool in self.pools}
        made = tuple(
            Supply(
                agent_id=AgentId(f"new{number}"),
                pool=creation.pool,
                state=ProvisionState.REQUESTED,
                offered=pool_offer(by_name[creation.pool]),
                bound=creation.job_id,
                bound_live=creation.job_id is not None,
                deadline_at=self.now + 60 * SECOND,
                event=by_name[creation.pool].event,
                cpu=creation.cpu,
                memory=creation.memory,
                cost=by_name[creation.pool].cost_per_hour,
                machine=by_name[creation.pool].machine,
                provisioning=creation.provisioning,
            )
            for number, creation in enumerate(plan.creations)
        )
        late = {item.pool for item in self.supply if released.get(item.agent_id) is ReleaseReason.SPAWN_TIMEOUT}
        failed = {pool: failing(self.health.get(pool), pool, self.now) for pool in late}
        grown = {creation.job_id for creation in plan.creations}
        demand = tuple(replace(d, creates=d.creates + 1) if d.job_id in grown else d for d in self.demand)
        rated = sum(1 for creation in plan.creations if not creation.provisioning)
        tokens = None if self.tokens is None else self.tokens - rated
        return replace(self, demand=demand, supply=supply + made, health={**self.health, **failed}, tokens=tokens)


def failing(known: PoolHealth | None, pool: str, now: int) -> PoolHealth:
    """The pool's health after an instance of it did not come up in time."""
    failures = known.failures if known else 0
    until = max(now + scaling.backoff(failures, Backoff()), (known.backoff_until or 0) if known else 0)
    return PoolHealth(
        pool=pool, failures=failures + 1, backoff_began_at=now, backoff_until=until, last_error="it came too late"
    )


def static(agent: str, labels: str) -> Supply:
    """An agent with a token of its own: no pool, no provision."""
    return Supply(
        agent_id=AgentId(agent),
        pool="",
        state=ProvisionState.ACTIVE,
        offered=Offered(labels=frozenset(labels.split())),
        online=True,
        idle_since=0,
        static=True,
    )


def a_pool(name: str = "p", labels: str = "a", most: int = 3, **more: object) -> Pool:
    return Pool(name=name, backend="process", labels=frozenset(labels.split()), max_agents=most, **more)  # type: ignore[arg-type]


def a_demand(job: str = "j0", labels: str = "a", **more: int) -> Demand:
    wanted = Wanted(labels=frozenset(labels.split()))
    return Demand(job_id=JobId(job), run_id=RunId("r"), wanted=wanted, **more)


def a_supply(state: ProvisionState = ProvisionState.REQUESTED, pool: str = "p", **more: object) -> Supply:
    values: dict[str, object] = {"agent_id": AgentId("s"), "offered": Offered(labels=frozenset("a")), **more}
    return Supply(pool=pool, state=state, **values)  # type: ignore[arg-type]


def a_world(
    *demand: Demand, supply: tuple[Supply, ...] = (), pools: tuple[Pool, ...] | None = None, caps: Caps | None = None
) -> World:
    return World(
        demand=demand,
        supply=supply,
        pools=pools if pools is not None else (a_pool(),),
        caps=caps or Caps(),
        health={},
    )


def reasons(world: World) -> list[NotDone]:
    return [item.reason for item in world.plan().unplaced]
