# SPDX-License-Identifier: Apache-2.0
"""One scrape of `/metrics` with 200 pools, 2,000 provisions and 10,000 queued jobs."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from sqlalchemy import Connection, insert

from bench.harness import BenchFailed, Figure
from corral.control import leaks, levels, measures
from corral.model.pools import Caps, Pool
from corral.model.spec import JobSpec, StepSpec, WorkflowSpec
from corral.model.states import AgentState, JobState, ProvisionState, RunState
from corral.runtime.clock import SystemClock
from corral.runtime.metrics import Metrics
from corral.store import tables
from corral.store.sqlite import SqliteDatabase

POOLS = 200
PROVISIONS = 2000
JOBS = 10_000
SCRAPES = 20


async def metrics(runs: int) -> list[Figure]:
    """From the database's rows to the text, in one process; the way over the socket is not counted."""
    took = []
    with tempfile.TemporaryDirectory() as directory:
        database = SqliteDatabase.open(Path(directory) / "corral.db", SystemClock())
        try:
            await database.write(_fill)
            counters = Metrics(measures.METRICS)
            await _scrape(database, counters)
            for _ in range(runs):
                began = time.perf_counter()
                for _ in range(SCRAPES):
                    page = await _scrape(database, counters)
                took.append((time.perf_counter() - began) / SCRAPES * 1000)
            if page.count(b"corral_pool_max_agents{") != POOLS:
                raise BenchFailed("a pool is missing from the metrics")
        finally:
            await database.close()
    return [Figure(name=f"/metrics, {POOLS} pools", unit="ms", values=tuple(took), target=20)]


async def _scrape(database: SqliteDatabase, counters: Metrics) -> bytes:
    found = await database.read(levels.take)
    ledger = await database.read(lambda c: leaks.snapshot(c, {}, ()))
    return await asyncio.to_thread(lambda: counters.render(levels.levels(found, ledger, KNOWN, Caps())))


def _name(number: int) -> str:
    return f"pool-{number % POOLS:03d}"


KNOWN = tuple(
    Pool(name=_name(n), backend="event", labels=frozenset({"linux", _name(n)}), max_agents=20) for n in range(POOLS)
)


def _fill(connection: Connection) -> None:
    spec = JobSpec(name="j", steps=(StepSpec(name="s", script="true"),))
    workflow = WorkflowSpec(name="w", jobs=(spec,))
    run = {"id": "run_1", "project": "local", "workflow": "w", "title": "", "state": RunState.RUNNING}
    run |= {"spec": workflow, "lock_hash": "", "workflow_env": {}, "env": {}, "event": {}, "job_filter": ()}
    connection.execute(insert(tables.runs).values(**run, created_at=1, jobs_total=JOBS))
    job = {"run_id": "run_1", "state": JobState.QUEUED, "base": "j", "spec": spec, "matrix": {}, "needs": ()}
    job |= {"excludes": frozenset(), "outputs": {}, "created_at": 1, "queued_at": 1, "ready_at": 1}
    rows = [
        {**job, "id": f"job_{n}", "name": f"j{n}", "ordinal": n, "labels": frozenset({_name(n)})} for n in range(JOBS)
    ]
    connection.execute(insert(tables.jobs), rows)
    agents, provisions = [], []
    for number in range(PROVISIONS):
        identity, pool = f"agent_{number}", _name(number)
        common = {"pool": pool, "labels": frozenset({pool})}
        agents.append({**common, "id": identity, "project": "local", "kind": "provisioned", "created_at": 1})
        agents[-1]["state"] = AgentState.ONLINE
        provisions.append({**common, "agent_id": identity, "backend": "event", "cause": "job", "requested_at": 1})
        provisions[-1] |= {"state": ProvisionState.ACTIVE, "cpu": 1.0, "memory": 1024, "cost_per_hour": 0.1}
    connection.execute(insert(tables.agents), agents)
    connection.execute(insert(tables.provisions), provisions)
