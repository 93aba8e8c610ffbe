# SPDX-License-Identifier: Apache-2.0
"""The shipped `corral server` as users run it: own process, default configuration but for the pools, database on disk,
synchronous=FULL. Afterwards database and logs are checked; a case whose check fails has no figure."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corral.client import Client
from corral.model.spec import JobSpec, StepSpec, WorkflowSpec
from corral.model.views import NewRun, NewToken, RunView
from corral.workflow.lock import make_lock

READY_TIMEOUT = 30.0
END = ("succeeded", "failed", "cancelled")


class BenchFailed(Exception):
    """The run was not right, so its figure means nothing."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number. ``better``: whether lower or higher is; ``target``: what the issue asks for."""

    name: str
    unit: str
    values: tuple[float, ...]
    target: float | None = None
    better: str = "lower"
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.median <= self.target if self.better == "lower" else self.median >= self.target


@dataclass(kw_only=True)
class Server:
    """A running server: its process, state directory, and a client with its admin token."""

    process: subprocess.Popen[bytes]
    state_dir: Path
    url: str
    token: str
    client: Client
    ready_after: float
    agents: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def resident_mb(self) -> float:
        return resident_mb(self.process.pid)


def resident_mb(pid: int) -> float:
    """Resident memory in MB (10^6 bytes), as the kernel counts it now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


CONFIG = """\
version: 1
allow_root: true
pools:
  - name: fresh
    backend: process
    labels: [fresh]
    max_agents: 20
"""


def launch(state_dir: Path, listen: str = "127.0.0.1:0") -> subprocess.Popen[bytes]:
    """`corral server` on a state directory that holds `bench.yaml`; what it says goes to `server.log` there."""
    command = [sys.executable, "-m", "corral.cli", "server", "--state-dir", str(state_dir)]
    command += ["--listen", listen, "--config", str(state_dir / "bench.yaml")]
    with (state_dir / "server.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


@contextlib.asynccontextmanager
async def server(config: str = CONFIG) -> AsyncIterator[Server]:
    """Start, wait until ready, stop, and leave nothing."""
    state_dir = Path(tempfile.mkdtemp(prefix="corral-bench-"))
    (state_dir / "bench.yaml").write_text(config)
    began = time.perf_counter()
    process = launch(state_dir)
    running: Server | None = None
    try:
        url = await_ready(process, state_dir)
        ready_after = time.perf_counter() - began
        token = (state_dir / "admin.token").read_text().strip()
        async with Client(url, token) as client:
            running = Server(
                process=process, state_dir=state_dir, url=url, token=token, client=client, ready_after=ready_after
            )
            try:
                yield running
            finally:
                _end(running.agents)
    finally:
        _end([running.process if running is not None else process])
        _end_wardens(state_dir)
        shutil.rmtree(state_dir, ignore_errors=True)


def restart(running: Server) -> None:
    """Another server process on the same state directory and port, after the one before has ended."""
    (running.state_dir / "server.json").unlink(missing_ok=True)
    running.process = launch(running.state_dir, running.url.removeprefix("http://"))
    await_ready(running.process, running.state_dir)


def _end_wardens(state_dir: Path) -> None:
    """Wardens outlive their server on purpose; those of this directory are told to end, by the pid they wrote."""
    for identity in (state_dir / "work").glob("*/warden"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            os.kill(int(identity.read_text().split()[0]), signal.SIGTERM)


def await_ready(process: subprocess.Popen[bytes], state_dir: Path) -> str:
    deadline = time.perf_counter() + READY_TIMEOUT
    described = state_dir / "server.json"
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise BenchFailed((state_dir / "server.log").read_text())
        with contextlib.suppress(OSError, ValueError):
            return str(json.loads(described.read_text())["url"])
        time.sleep(0.002)
    raise BenchFailed("the server was not ready in time")


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def new_run(label: str, script: str = "true", *, jobs: int = 1, name: str = "bench") -> NewRun:
    """A run of ``jobs`` equal jobs of one shell step."""
    step = StepSpec(name="step", script=script)
    specs = tuple(JobSpec(name=f"job-{n}", runs_on=(label,), steps=(step,), checkout=False) for n in range(jobs))
    lock = make_lock([WorkflowSpec(name=name, jobs=specs)], {})
    return NewRun(lock=lock, workflow=name)


async def until_ended(client: Client, run_id: str) -> RunView:
    """The run's last view."""
    last: RunView | None = None
    async for view in client.watch_run(run_id):
        last = view
    if last is None or last.state not in END:
        raise BenchFailed(f"run {run_id} did not end")
    if last.state != "succeeded":
        raise BenchFailed(f"run {run_id} ended {last.state}: {last.reason} {last.detail}")
    return last


def job_seconds(view: RunView) -> list[float]:
    """Queued to finished of each job, by the server's own clock."""
    return [job.total for job in view.jobs if job.total is not None]


async def static_agent(running: Server, label: str, count: int = 1, **options: object) -> float:
    """Real agents that stay: one token and one process each. Seconds from the first exec to the last registration.

    ``options``: fields of their configuration file.
    """
    configs = [await agent_config(running, label, number, **options) for number in range(count)]
    began = time.perf_counter()
    for path in configs:
        running.agents.append(launch_agent(path))
    await online(running, count)
    return time.perf_counter() - began


def launch_agent(path: Path) -> subprocess.Popen[bytes]:
    """One agent process by its configuration file; what it says goes to `agent.log` beside it."""
    with (path.parent / "agent.log").open("ab") as log:
        command = [sys.executable, "-P", "-m", "corral.agent", "--config", str(path)]
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


async def agent_config(running: Server, label: str, number: int = 0, **options: object) -> Path:
    """A new static agent's configuration file, in a directory of its own."""
    created = await running.client.create_token(NewToken(name=f"bench-{number}", role="agent", labels=(label,)))
    agent_id, _, key = created.token.partition(".")
    home = Path(tempfile.mkdtemp(prefix="agent-", dir=running.state_dir))
    (home / "work").mkdir()
    (home / "cache").mkdir()
    config = {
        "version": 1,
        "agent_id": agent_id,
        "coordinator_urls": [running.url],
        "key": key,
        "single_use": False,
        "work_dir": str(home / "work"),
        "cache_dir": str(home / "cache"),
        **options,
    }
    path = home / "agent.json"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


@contextlib.asynccontextmanager
async def clients(running: Server, count: int, label: str) -> AsyncIterator[None]:
    """Protocol clients in a process of their own, all online."""
    urls = [running.url, str(count), label]
    command = [sys.executable, "-m", "bench.agents", *urls]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "CORRAL_BENCH_TOKEN": running.token})
    try:
        await online(running, count)
        yield
    finally:
        process.terminate()
        process.wait()


async def online(running: Server, count: int, timeout: float = 60.0) -> None:
    deadline = time.perf_counter() + timeout
    while time.perf_counter() < deadline:
        agents = await running.client.agents()
        if sum(1 for agent in agents if agent.state == "online") >= count:
            return
        await asyncio.sleep(0.005)
    raise BenchFailed(f"{count} agents were not online in {timeout:g} s")


def check_database(state_dir: Path) -> None:
    """Each job was started once and finished once, and every log is what its digest says."""
    with contextlib.closing(sqlite3.connect(state_dir / "corral.db")) as database:
        rows = database.execute(
            "SELECT j.id, j.state, (SELECT count(*) FROM attempts a WHERE a.job_id = j.id), "
            "(SELECT count(*) FROM attempts a WHERE a.job_id = j.id AND a.state = 'succeeded') FROM jobs j"
        ).fetchall()
        wrong = [row for row in rows if row[1:] != ("succeeded", 1, 1)]
        if not rows or wrong:
            raise BenchFailed(f"{len(wrong)} of {len(rows)} jobs were not offered once and finished once: {wrong[:3]}")
        missing = database.execute("SELECT count(*) FROM steps WHERE log_missing > 0").fetchone()[0]
        if missing:
            raise BenchFailed(f"{missing} logs are incomplete")


async def check_logs(client: Client, view: RunView) -> int:
    """Read every log of a run back and compare its digest; bytes read."""
    total = 0
    for job in view.jobs:
        whole = await client.job(job.id)
        for step in whole.steps:
            if not step.log_size:
                continue
            digest = hashlib.sha256()
            size = 0
            async for data in client.read_log(job.id, step=step.index):
                digest.update(data)
                size += len(data)
            if size != step.log_size or digest.hexdigest() != step.log_digest:
                raise BenchFailed(
                    f"log of {job.name} step {step.index}: {size} of {step.log_size} bytes, digest differs"
                )
            total += size
    return total
