# SPDX-License-Identifier: Apache-2.0
"""The gauges, computed from the state at each scrape: nothing that a restart or a missed event could leave wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from sqlalchemy import Connection

from corral.control import measures as m
from corral.decide.matching import Wanted, route
from corral.model.pools import Caps, Pool
from corral.model.records import PoolHealth
from corral.model.states import AgentState, DeliveryState, JobState, ProvisionState, RunState
from corral.runtime.clock import SECOND
from corral.runtime.metrics import Level
from corral.store.repo import census
from corral.store.repo import pool_health as pool_health_rows
from corral.store.repo.installation import now


class Census(Struct, frozen=True, kw_only=True):
    """Everything that the database is asked for one scrape, from one snapshot."""

    runs: Mapping[str, int]
    jobs: Mapping[str, int]
    queue: census.Queue
    demand: tuple[census.Demanded, ...]
    agents: tuple[census.AgentCount, ...]
    provisions: tuple[census.ProvisionCount, ...]
    health: tuple[PoolHealth, ...]
    outbox: census.Outbox
    leaks: census.Leaks
    epoch_behind: int
    now: int


def take(connection: Connection) -> Census:
    return Census(
        runs=census.run_states(connection),
        jobs=census.job_states(connection),
        queue=census.queue(connection),
        demand=census.demanded(connection),
        agents=census.agents_by_pool(connection),
        provisions=census.provisions_by_pool(connection),
        health=pool_health_rows.every(connection),
        outbox=census.outbox(connection),
        leaks=census.leaks(connection),
        epoch_behind=census.epoch_behind(connection),
        now=now(connection),
    )


def levels(found: Census, pools: Sequence[Pool], caps: Caps) -> Iterator[Level]:
    """Pure: what the gauges say."""
    yield from _work(found)
    yield from _agents(found)
    yield from _provisions(found)
    yield from _pools(found, pools)
    yield from _cluster(found, caps)
    yield from _outbox(found)


def _work(found: Census) -> Iterator[Level]:
    for run_state in RunState:
        yield Level(metric=m.RUNS, values=(run_state,), value=found.runs.get(run_state, 0))
    for job_state in JobState:
        yield Level(metric=m.JOBS, values=(job_state,), value=found.jobs.get(job_state, 0))
    yield Level(metric=m.JOBS_OLDEST, value=found.queue.oldest / SECOND)
    yield Level(metric=m.JOBS_UNROUTABLE, value=found.queue.unroutable)


def _agents(found: Census) -> Iterator[Level]:
    """Only what there is: 200 pools times every state would be mostly zeros."""
    idle: dict[str, int] = {}
    busy: dict[str, int] = {}
    for row in found.agents:
        yield Level(metric=m.AGENTS, values=(row.pool, row.state), value=row.count)
        idle[row.pool] = idle.get(row.pool, 0) + row.idle
        busy[row.pool] = busy.get(row.pool, 0) + (row.busy if row.state is AgentState.ONLINE else 0)
    for pool, count in idle.items():
        yield Level(metric=m.AGENTS_IDLE, values=(pool,), value=count)
        yield Level(metric=m.AGENTS_BUSY, values=(pool,), value=busy[pool])


def _provisions(found: Census) -> Iterator[Level]:
    sums: dict[str, tuple[float, float, float]] = {}
    for row in found.provisions:
        yield Level(metric=m.PROVISIONS, values=(row.pool, row.state), value=row.count)
        cpu, memory, cost = sums.get(row.pool, (0.0, 0.0, 0.0))
        sums[row.pool] = (cpu + row.cpu, memory + row.memory, cost + row.cost)
    for pool, (cpu, memory, cost) in sums.items():
        yield Level(metric=m.POOL_CPU, values=(pool,), value=cpu)
        yield Level(metric=m.POOL_MEMORY, values=(pool,), value=memory)
        yield Level(metric=m.POOL_COST, values=(pool,), value=cost)


def _pools(found: Census, pools: Sequence[Pool]) -> Iterator[Level]:
    held = _held(found)
    health = {row.pool: row for row in found.health}
    queued = queued_by_pool(found.demand, pools)
    for pool in pools:
        name = (pool.name,)
        yield Level(metric=m.POOL_MAX, values=name, value=pool.max_agents)
        yield Level(metric=m.POOL_ROOM, values=name, value=max(0, pool.max_agents - held.get(pool.name, 0)))
        yield Level(metric=m.POOL_QUEUED, values=name, value=queued.get(pool.name, 0))
        yield Level(metric=m.WARM_TARGET, values=name, value=pool.min_idle)
        row = health.get(pool.name)
        until = row.backoff_until if row is not None else None
        yield Level(metric=m.BACKOFF, values=name, value=max(0, (until or 0) - found.now) / SECOND)
        yield Level(metric=m.FAILURES_IN_ROW, values=name, value=row.failures if row is not None else 0)


def _held(found: Census) -> dict[str, int]:
    """Provisions that hold a slot, by pool."""
    held: dict[str, int] = {}
    for row in found.provisions:
        if row.state is not ProvisionState.GONE:
            held[row.pool] = held.get(row.pool, 0) + row.count
    return held


def queued_by_pool(demand: Sequence[census.Demanded], pools: Sequence[Pool]) -> dict[str, int]:
    """Queued jobs by the pool they are routed to first."""
    queued: dict[str, int] = {}
    by_label: dict[str, list[Pool]] = {}
    for pool in pools:
        for label in pool.labels:
            by_label.setdefault(label, []).append(pool)
    for wanted in demand:
        # Only a pool with every label can fit: those with the rarest of them are all there is to look at.
        able = min((by_label.get(label, []) for label in wanted.labels), key=len, default=pools)
        fit = route(Wanted(labels=wanted.labels, excludes=wanted.excludes), able)
        if fit:
            queued[fit[0].name] = queued.get(fit[0].name, 0) + wanted.count
    return queued


def _cluster(found: Census, caps: Caps) -> Iterator[Level]:
    yield Level(metric=m.CLUSTER_MAX, value=caps.max_agents)
    yield Level(metric=m.CLUSTER_ROOM, value=max(0, caps.max_agents - sum(_held(found).values())))
    yield Level(metric=m.CLUSTER_COST, value=sum(row.cost for row in found.provisions))
    yield Level(metric=m.ABANDONED, value=found.leaks.abandoned)
    yield Level(metric=m.STRAYS, value=found.leaks.strays)
    yield Level(metric=m.GHOSTS, value=found.leaks.ghosts)
    yield Level(metric=m.LEAKED_COST, value=found.leaks.cost)
    yield Level(metric=m.EPOCH_BEHIND, value=found.epoch_behind)


def _outbox(found: Census) -> Iterator[Level]:
    for state in DeliveryState:
        yield Level(metric=m.DELIVERIES, values=(state,), value=found.outbox.states.get(state, 0))
    for verdict, count in found.outbox.answers.items():
        if verdict in m.DELIVERY_ANSWERS.labels[0].values:
            yield Level(metric=m.DELIVERY_ANSWERS, values=(verdict,), value=count)
    yield Level(metric=m.DELIVERY_LAG, value=found.outbox.lag / SECOND)
    yield Level(metric=m.DELIVERY_TRIES, value=found.outbox.attempts)
