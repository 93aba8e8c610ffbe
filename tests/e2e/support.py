# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share: runs of given shell scripts, and looks at real processes."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import Server

from corral.model.spec import JobSpec, StepSpec, WorkflowSpec
from corral.model.views import AgentView, JobView, NewRun, RunView
from corral.workflow.lock import make_lock
from tests.waiting import eventually_async

CONFIG = """\
version: 1
allow_root: true
urls: [{urls}]
pools:
  - name: local
    backend: process
    labels: [local]
    max_agents: {max_agents}
timing:
"""


def config(*, max_agents: int = 3, url: str = "", extra: str = "", **timing: float) -> str:
    """``url``: where agents dial, another than where the server listens. ``extra``: more YAML, at the top level."""
    timing = {"unroutable_after": 120, "lost_after": 120, **timing}
    lines = "".join(f"  {name}: {value}\n" for name, value in timing.items())
    return CONFIG.format(max_agents=max_agents, urls=url) + lines + extra


def run_of(*jobs: JobSpec, timeout: float | None = None, **options: Any) -> NewRun:
    """``timeout``: of the run; ``options``: fields of the request."""
    lock = make_lock([WorkflowSpec(name="ci", jobs=jobs, timeout=timeout)], {})
    return NewRun(lock=lock, workflow="ci", **options)


def alive(marker: str) -> list[int]:
    """Pids of living processes whose command line holds ``marker``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if state != "Z" and marker.encode() in (entry / "cmdline").read_bytes().replace(b"\0", b" "):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def whole_log(running: Server, job: JobView, step: int = 0) -> bytes:
    return b"".join([data async for data in running.client.read_log(job.id, step=step)])


async def verified(running: Server, view: RunView) -> None:
    """Every step's log is as long as it should be, and its digest is right."""
    for job in view.jobs:
        for step in (await running.client.job(job.id)).steps:
            if step.log_size:
                data = await whole_log(running, job, step.index)
                assert len(data) == step.log_size
                assert hashlib.sha256(data).hexdigest() == step.log_digest
                assert step.log_missing == 0


def states(view: RunView) -> dict[str, str]:
    return {job.name: job.state for job in view.jobs}


def job(name: str, *scripts: str, label: str = "local", **options: Any) -> JobSpec:
    """A job of shell steps."""
    steps = tuple(StepSpec(name=f"s{number}", script=script) for number, script in enumerate(scripts))
    options.setdefault("checkout", False)
    return JobSpec(name=name, steps=steps, runs_on=(label,), **options)


async def until_state(running: Server, run_id: str, job_name: str, *wanted: str, deadline: float = 30) -> JobView:
    """The job once it is in one of the states."""

    async def look() -> JobView | None:
        view = await running.client.run(run_id)
        return next((each for each in view.jobs if each.name == job_name and each.state in wanted), None)

    found = await eventually_async(look, f"{job_name} {' or '.join(wanted)}", deadline)
    assert found is not None
    return found


async def until_over(running: Server, run_id: str) -> RunView:
    """The run's last view, however it ended."""
    last: RunView | None = None
    async for view in running.client.watch_run(run_id):
        last = view
    assert last is not None
    return last


async def until_agent(running: Server, agent_id: str, *wanted: str, deadline: float = 30) -> AgentView:
    """The agent once it is in one of the states."""

    async def look() -> AgentView | None:
        agents = await running.client.agents()
        return next((each for each in agents if each.id == agent_id and each.state in wanted), None)

    found = await eventually_async(look, f"agent {' or '.join(wanted)}", deadline)
    assert found is not None
    return found


def rows(running: Server, query: str, *values: object) -> list[tuple[Any, ...]]:
    """What the server's own database says, read beside it."""
    with contextlib.closing(sqlite3.connect(f"file:{running.state_dir}/corral.db?mode=ro", uri=True)) as database:
        return database.execute(query, values).fetchall()


def session_of(running: Server, agent_id: str) -> int:
    """How many times the agent has registered."""
    return int(rows(running, "SELECT session FROM agents WHERE id = ?", agent_id)[0][0])


def names(jobs: Sequence[JobView]) -> list[str]:
    return [job.name for job in jobs]
