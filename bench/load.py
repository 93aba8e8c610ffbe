# SPDX-License-Identifier: Apache-2.0
"""Cases under load: offers in an open loop, many agents idle or at work, logs with secrets, logs side by side."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator

from bench.harness import (
    BenchFailed,
    Figure,
    Server,
    check_database,
    check_logs,
    job_seconds,
    new_run,
    server,
    static_agent,
    until_ended,
)
from corral.model.spec import JobSpec, StepSpec, WorkflowSpec
from corral.model.views import NewRun
from corral.runtime.clock import SECOND, parse_rfc3339
from corral.workflow.lock import make_lock

DESCRIPTORS = 20_000
"""Open files for 10,000 connections at either end."""
ONLINE_TIMEOUT = 300.0


def raise_descriptors() -> None:
    """Also for the processes started from here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _rows(running: Server, query: str) -> list[tuple[float, ...]]:
    """What the database says, read beside the server: asking it over HTTP would be load of its own."""
    uri = f"file:{running.state_dir}/corral.db?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=30)) as database:
        return database.execute(query).fetchall()


async def _online(running: Server, count: int) -> None:
    deadline = time.perf_counter() + ONLINE_TIMEOUT
    while time.perf_counter() < deadline:
        found = _rows(running, "SELECT count(*) FROM agents WHERE state = 'online'")[0][0]
        if found >= count:
            return
        await asyncio.sleep(0.2)
    raise BenchFailed(f"{count} agents were not online in {ONLINE_TIMEOUT:g} s")


@contextlib.asynccontextmanager
async def crowd(running: Server, count: int, label: str, processes: int) -> AsyncIterator[None]:
    """Protocol clients in processes of their own, all online."""
    each = [count // processes + (number < count % processes) for number in range(processes)]
    environment = {**os.environ, "CORRAL_BENCH_TOKEN": running.token}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.agents", running.url, str(share), label],
            stdin=subprocess.PIPE,
            env=environment,
        )
        for share in each
    ]
    try:
        await _online(running, count)
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


# --- offers in an open loop ---------------------------------------------------------------------------------

OFFER_RATE = 200
OFFER_SECONDS = 20
OFFER_BATCH = 5


async def offers(runs: int) -> list[Figure]:
    """200 jobs/s, submitted on the clock whatever becomes of them, over 200 clients: offer written → accept read and
    committed, by the server's own rows; and queued → begun."""
    tails, medians, waits = [], [], []
    for _ in range(runs):
        async with server() as running, crowd(running, 200, "open", 1):
            warm_up = await _noop_runs(running)
            began = time.perf_counter()
            pending = []
            for tick in range(OFFER_RATE * OFFER_SECONDS // OFFER_BATCH):
                await asyncio.sleep(max(0.0, began + tick * OFFER_BATCH / OFFER_RATE - time.perf_counter()))
                pending.append(asyncio.create_task(running.client.create_run(new_run("open", jobs=OFFER_BATCH))))
            for task in pending:
                await until_ended(running.client, (await task).id)
            check_database(running.state_dir)
            answered = sorted(
                row[0] / 1000
                for row in _rows(
                    running,
                    "SELECT a.started_at - a.offered_at FROM attempts a JOIN jobs j ON j.id = a.job_id "
                    f"WHERE a.started_at IS NOT NULL AND j.run_id != '{warm_up}'",
                )
            )
            waited = sorted(
                row[0] / 1000
                for row in _rows(running, f"SELECT started_at - queued_at FROM jobs WHERE run_id != '{warm_up}'")
            )
        tails.append(answered[int(len(answered) * 0.99)])
        medians.append(statistics.median(answered))
        waits.append(waited[int(len(waited) * 0.99)])
    return [
        Figure(name="offer to accept at 200 jobs/s, p99", unit="ms", values=tuple(tails), target=50),
        Figure(name="offer to accept at 200 jobs/s, median", unit="ms", values=tuple(medians)),
        Figure(name="queued to begun at 200 jobs/s, p99", unit="ms", values=tuple(waits)),
    ]


async def _noop_runs(running: Server) -> str:
    """Warm-up: every client has had a job. The run, whose figures do not count."""
    run = await running.client.create_run(new_run("open", jobs=200))
    await until_ended(running.client, run.id)
    return run.id


# --- real agents --------------------------------------------------------------------------------------------

STATIC_AGENTS = 20
STATIC_JOBS = 500


async def static(runs: int) -> list[Figure]:
    """500 jobs of a real shell step in a fresh directory over 20 real static agents: jobs/s, submit to last end."""
    rates = []
    for _ in range(runs):
        async with server() as running:
            await static_agent(running, "static", STATIC_AGENTS)
            await until_ended(running.client, (await running.client.create_run(new_run("static", jobs=40))).id)
            began = time.time()
            run = await running.client.create_run(new_run("static", 'test -z "$(ls -A)"', jobs=STATIC_JOBS))
            view = await until_ended(running.client, run.id)
            check_database(running.state_dir)
            rates.append(STATIC_JOBS / (parse_rfc3339(view.finished_at or "") / SECOND - began))
    return [
        Figure(
            name="real shell jobs, 20 static agents", unit="jobs/s", values=tuple(rates), target=100, better="higher"
        )
    ]


# --- idle agents --------------------------------------------------------------------------------------------

HELD_SECONDS = 45.0
"""Two heartbeats of everybody."""


async def idle(runs: int) -> list[Figure]:
    """5,000 idle agents connected: resident memory of the server; 10,000 held over two heartbeats."""
    raise_descriptors()
    totals, per_agent, large = [], [], []
    for _ in range(runs):
        async with server() as running:
            await asyncio.sleep(1.0)
            empty = running.resident_mb()
            async with crowd(running, 5000, "idle", 2):
                await _held(running, 5000)
                totals.append(running.resident_mb())
                per_agent.append((totals[-1] - empty) * 1000 / 5000)
                async with crowd(running, 10_000 - 5000, "idle", 2):
                    await _held(running, 10_000)
                    large.append(running.resident_mb())
    return [
        Figure(name="server with 5,000 idle agents", unit="MB", values=tuple(totals), target=250),
        Figure(name="memory of one idle agent", unit="kB", values=tuple(per_agent)),
        Figure(name="server with 10,000 idle agents, held", unit="MB", values=tuple(large)),
    ]


async def _held(running: Server, count: int) -> None:
    """All of them stay, with the sessions that they have."""
    before = _rows(running, "SELECT sum(session) FROM agents")[0][0]
    await asyncio.sleep(HELD_SECONDS)
    online, after = _rows(running, "SELECT sum(state = 'online'), sum(session) FROM agents")[0]
    if online != count or after != before + (0 if before >= count else count - before):
        raise BenchFailed(f"{online} of {count} agents are online, {after - before} registered again")


# --- logs ---------------------------------------------------------------------------------------------------

MIB = 1024 * 1024
SECRETS = {f"SECRET_{number}": f"s3cr3t-value-number-{number}-" + "x" * 20 for number in range(5)}


async def masked(runs: int) -> list[Figure]:
    """A step that prints 100 MiB through one agent with five secrets to mask, one of them every few kilobytes."""
    rates = []
    line = "y" * 99
    script = (
        "set +o pipefail; "
        f"block=$(for n in $(seq 40); do echo {line}; done; echo token $SECRET_1 and $SECRET_4); "
        'yes "$block" | head -c 104857600'
    )
    for _ in range(runs):
        async with server() as running:
            await static_agent(running, "masked")
            await until_ended(running.client, (await running.client.create_run(new_run("masked"))).id)
            run = await running.client.create_run(_with_secrets("masked", script))
            view = await until_ended(running.client, run.id)
            size = await check_logs(running.client, view)
            await _without_secrets(running, view.jobs[0].id)
            rates.append(size / MIB / job_seconds(view)[0])
    return [
        Figure(name="log of one agent, five secrets", unit="MiB/s", values=tuple(rates), target=50, better="higher")
    ]


def _with_secrets(label: str, script: str) -> NewRun:
    spec = JobSpec(
        name="job",
        runs_on=(label,),
        steps=(StepSpec(name="step", script=script),),
        checkout=False,
        secrets=tuple(SECRETS),
    )
    return NewRun(lock=make_lock([WorkflowSpec(name="bench", jobs=(spec,))], {}), workflow="bench", secrets=SECRETS)


async def _without_secrets(running: Server, job_id: str) -> None:
    head = b"".join([data async for data in running.client.read_log(job_id, step=0, end=MIB)])  # type: ignore[arg-type]
    if b"token *** and ***" not in head or any(value.encode() in head for value in SECRETS.values()):
        raise BenchFailed("a secret is not masked")


LOGGERS = 20
LOGGER_MIB = 20


async def logs(runs: int) -> list[Figure]:
    """20 agents that print 20 MiB each at once: MiB/s of all together, first begin to last end."""
    rates = []
    script = f"head -c {LOGGER_MIB * MIB} /dev/zero | tr '\\0' x | fold -w 100"
    for _ in range(runs):
        async with server() as running:
            await static_agent(running, "logs", LOGGERS)
            await until_ended(running.client, (await running.client.create_run(new_run("logs", jobs=40))).id)
            run = await running.client.create_run(new_run("logs", script, jobs=LOGGERS))
            view = await until_ended(running.client, run.id)
            size = await check_logs(running.client, view)
            begun = min(parse_rfc3339(job.started_at or "") for job in view.jobs)
            ended = max(parse_rfc3339(job.finished_at or "") for job in view.jobs)
            rates.append(size / MIB / ((ended - begun) / SECOND))
    return [Figure(name="logs of 20 agents at once, stored", unit="MiB/s", values=tuple(rates), better="higher")]


LOAD_CASES = {"offers": offers, "static": static, "idle": idle, "masked": masked, "logs": logs}
