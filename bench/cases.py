# SPDX-License-Identifier: Apache-2.0
"""What is measured. Each case takes the number of runs and returns figures; warm-up is not counted."""

from __future__ import annotations

import asyncio
import statistics
import time

from bench.events import EVENT_CASES
from bench.harness import (
    BenchFailed,
    Figure,
    check_database,
    check_logs,
    clients,
    job_seconds,
    new_run,
    resident_mb,
    server,
    static_agent,
    until_ended,
)
from bench.load import LOAD_CASES
from bench.metrics import metrics
from bench.scaler import SCALER_CASES
from corral.client import Client
from corral.runtime.clock import SECOND, parse_rfc3339

WARM_JOBS = 50
FRESH_JOBS = 10
IDLE_SECONDS = 2.0


async def startup(runs: int) -> list[Figure]:
    """From exec of `corral server` to answering, on a state directory it has to make; memory when idle."""
    ready, idle = [], []
    for _ in range(runs):
        async with server() as running:
            ready.append(running.ready_after)
            await asyncio.sleep(IDLE_SECONDS)
            idle.append(running.resident_mb())
    return [
        Figure(name="server start to ready", unit="s", values=tuple(ready), target=0.7, note="new database"),
        Figure(name="server resident, idle", unit="MB", values=tuple(idle), target=100),
    ]


async def warm(runs: int) -> list[Figure]:
    """A no-op job on an agent that is there: from the submitting call to the committed end."""
    medians, tails = [], []
    for _ in range(runs):
        async with server() as running:
            await static_agent(running, "warm")
            await _noop(running.client, "warm")
            seconds = [await _noop(running.client, "warm") for _ in range(WARM_JOBS)]
            check_database(running.state_dir)
        medians.append(statistics.median(seconds) * 1000)
        tails.append(sorted(seconds)[int(len(seconds) * 0.99)] * 1000)
    return [
        Figure(name="no-op job, warm agent, median", unit="ms", values=tuple(medians), target=20),
        Figure(name="no-op job, warm agent, p99", unit="ms", values=tuple(tails)),
    ]


async def fresh(runs: int) -> list[Figure]:
    """A no-op job for which a process agent is made: from the submitting call to the committed end."""
    medians = []
    for _ in range(runs):
        async with server() as running:
            await _noop(running.client, "fresh")
            seconds = [await _noop(running.client, "fresh") for _ in range(FRESH_JOBS)]
            check_database(running.state_dir)
        medians.append(statistics.median(seconds) * 1000)
    return [Figure(name="no-op job, fresh process agent", unit="ms", values=tuple(medians), target=500)]


async def _noop(client: Client, label: str) -> float:
    """Seconds by the wall clock of this machine, which the server's rows are dated by too."""
    body = new_run(label)
    began = time.time()
    run = await client.create_run(body)
    view = await until_ended(client, run.id)
    if view.finished_at is None:
        raise BenchFailed("an ended run without an end")
    return parse_rfc3339(view.finished_at) / SECOND - began


async def agent(runs: int) -> list[Figure]:
    """From exec of an agent to its registration at a server; memory when idle."""
    seconds, resident = [], []
    async with server() as running:
        for _ in range(runs):
            seconds.append(await static_agent(running, "cold"))
            process = running.agents.pop()
            await asyncio.sleep(0.5)
            resident.append(resident_mb(process.pid) / 1.048576)
            process.terminate()
            process.wait()
    return [
        Figure(name="agent start to registered", unit="ms", values=tuple(s * 1000 for s in seconds), target=200),
        Figure(name="agent resident, idle", unit="MiB", values=tuple(resident), target=40),
    ]


LOG_MIB = 100


async def log(runs: int) -> list[Figure]:
    """A step that prints 100 MiB through one agent: stored, acknowledged, read back, digest equal."""
    rates = []
    script = f"head -c {LOG_MIB * 1024 * 1024} /dev/zero | tr '\\0' x | fold -w 100"
    for _ in range(runs):
        async with server() as running:
            await static_agent(running, "warm")
            await _noop(running.client, "warm")
            run = await running.client.create_run(new_run("warm", script))
            view = await until_ended(running.client, run.id)
            size = await check_logs(running.client, view)
            rates.append(size / 1024**2 / job_seconds(view)[0])
    return [Figure(name="log of one agent, stored", unit="MiB/s", values=tuple(rates), better="higher")]


async def many(runs: int) -> list[Figure]:
    """200 short jobs over 8 real agents that stay: jobs per second, submit to last end."""
    rates = []
    for _ in range(runs):
        async with server() as running:
            await static_agent(running, "warm", 8)
            began = time.time()
            run = await running.client.create_run(new_run("warm", jobs=200))
            view = await until_ended(running.client, run.id)
            check_database(running.state_dir)
            rates.append(len(view.jobs) / (parse_rfc3339(view.finished_at or "") / SECOND - began))
    return [Figure(name="real shell jobs, 8 agents that stay", unit="jobs/s", values=tuple(rates), better="higher")]


CROWD = 200
CROWD_JOBS = 1000


async def crowd(runs: int) -> list[Figure]:
    """1,000 queued no-op jobs over 200 socket clients that answer at once: jobs per second, first offer to last end."""
    rates = []
    for _ in range(runs):
        async with server() as running, clients(running, CROWD, "crowd"):
            began = time.time()
            submitted = [await running.client.create_run(new_run("crowd", jobs=CROWD_JOBS // 4)) for _ in range(4)]
            views = [await until_ended(running.client, run.id) for run in submitted]
            check_database(running.state_dir)
            last = max(parse_rfc3339(view.finished_at or "") for view in views) / SECOND
            rates.append(CROWD_JOBS / (last - began))
    return [Figure(name="no-op jobs, 200 clients", unit="jobs/s", values=tuple(rates), target=500, better="higher")]


CASES = {
    "startup": startup,
    "warm": warm,
    "fresh": fresh,
    "agent": agent,
    "log": log,
    "many": many,
    "crowd": crowd,
    "metrics": metrics,
    **LOAD_CASES,
    **SCALER_CASES,
    **EVENT_CASES,
}
