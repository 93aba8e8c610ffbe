# SPDX-License-Identifier: Apache-2.0
"""The gauges, computed from the state at each scrape: nothing that a restart or a missed event could leave wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from sqlalchemy import Connection

from corral.control import measures as m
from corral.control.admission import holding_of
from corral.decide.matching import Wanted, route
from corral.decide.scaling.room import Holding
from corral.decide.scaling.warm import warm_target
from corral.model.leaks import LedgerView
from corral.model.pools import Caps, Pool
from corral.model.records import PoolHealth
from corral.model.states import AgentState, DeliveryState, JobState, RunState
from corral.runtime.clock import SECOND
from corral.runtime.metrics import Level
from corral.store.repo import census
from corral.store.repo import pool_health as pool_health_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import now


class Census(Struct, frozen=True, kw_only=True):
    """Everything that the database is asked for one scrape, from one snapshot."""

    runs: Mapping[str, int]
    jobs: Mapping[str, int]
    queue: census.Queue
    demand: tuple[census.Demanded, ...]
    agents: tuple[census.AgentCount, ...]
    held: tuple[provisions_rows.Held, ...]
    health: tuple[PoolHealth, ...]
    outbox: census.Outbox
    now: int


def take(connection: Connection) -> Census:
    return Census(
        runs=census.run_states(connection),
        jobs=census.job_states(connection),
        queue=census.queue(connection),
        demand=census.demanded(connection),
        agents=census.agents_by_pool(connection),
        held=provisions_rows.held(connection),
        health=pool_health_rows.every(connection),
        outbox=census.outbox(connection),
        now=now(connection),
    )


def levels(found: Census, ledger: LedgerView, pools: Sequence[Pool], caps: Caps) -> Iterator[Level]:
    """Pure: what the gauges say. ``ledger``: what leaks, as operators are shown it."""
    holding = [holding_of(row) for row in found.held]
    slots = slots_by_pool(found.held)
    yield from _work(found)
    yield from _agents(found)
    yield from _provisions(found, holding)
    yield from _pools(found, slots, pools)
    yield from _cluster(holding, caps)
    yield from _leaks(ledger)
    yield from _outbox(found, ledger)


def slots_by_pool(rows: Sequence[provisions_rows.Held]) -> Counter[str]:
    """How many agents of each pool its ``max_agents`` counts."""
    slots: Counter[str] = Counter()
    for row in rows:
        slots[row.pool] += holding_of(row).agents
    return slots


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


def _provisions(found: Census, holding: Sequence[Holding]) -> Iterator[Level]:
    states: Counter[tuple[str, str]] = Counter()
    for row in found.held:
        states[row.pool, row.state] += row.count
    for (pool, state), count in states.items():
        yield Level(metric=m.PROVISIONS, values=(pool, state), value=count)
    for metric, amount in ((m.POOL_CPU, "cpu"), (m.POOL_MEMORY, "memory"), (m.POOL_COST, "cost")):
        sums: dict[str, float] = {}
        for each in holding:
            sums[each.pool] = sums.get(each.pool, 0) + getattr(each, amount)
        for pool, value in sums.items():
            yield Level(metric=metric, values=(pool,), value=value)


def _pools(found: Census, slots: Mapping[str, int], pools: Sequence[Pool]) -> Iterator[Level]:
    health = {row.pool: row for row in found.health}
    queued = queued_by_pool(found.demand, pools)
    for pool in pools:
        name = (pool.name,)
        yield Level(metric=m.POOL_MAX, values=name, value=pool.max_agents)
        yield Level(metric=m.POOL_ROOM, values=name, value=max(0, pool.max_agents - slots.get(pool.name, 0)))
        yield Level(metric=m.POOL_QUEUED, values=name, value=queued.get(pool.name, 0))
        yield Level(metric=m.WARM_TARGET, values=name, value=warm_target(pool, found.now))
        row = health.get(pool.name)
        until = row.backoff_until if row is not None else None
        yield Level(metric=m.BACKOFF, values=name, value=max(0, (until or 0) - found.now) / SECOND)
        yield Level(metric=m.FAILURES_IN_ROW, values=name, value=row.failures if row is not None else 0)


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


def _cluster(holding: Sequence[Holding], caps: Caps) -> Iterator[Level]:
    yield Level(metric=m.CLUSTER_MAX, value=caps.max_agents)
    yield Level(metric=m.CLUSTER_ROOM, value=max(0, caps.max_agents - sum(each.agents for each in holding)))
    yield Level(metric=m.CLUSTER_COST, value=sum(each.cost for each in holding))


def _leaks(ledger: LedgerView) -> Iterator[Level]:
    kinds = Counter(leak.kind for leak in ledger.leaks)
    yield Level(metric=m.ABANDONED, value=kinds["abandoned"])
    yield Level(metric=m.STRAYS, value=kinds["stray"])
    yield Level(metric=m.GHOSTS, value=kinds["ghost"])
    yield Level(metric=m.LEAKED_COST, value=ledger.hourly("abandoned") + ledger.hourly("stray"))
    yield Level(metric=m.EPOCH_BEHIND, value=sum(target.stale for target in ledger.targets))


def _outbox(found: Census, ledger: LedgerView) -> Iterator[Level]:
    for state in DeliveryState:
        yield Level(metric=m.DELIVERIES, values=(state,), value=found.outbox.states.get(state, 0))
    for verdict, count in found.outbox.answers.items():
        if verdict in m.DELIVERY_ANSWERS.labels[0].values:
            yield Level(metric=m.DELIVERY_ANSWERS, values=(verdict,), value=count)
    yield Level(metric=m.DELIVERY_LAG, value=ledger.lag)
    yield Level(metric=m.DELIVERY_TRIES, value=found.outbox.attempts)
