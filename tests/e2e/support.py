# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share: runs of given shell scripts, and looks at real processes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Server

from corral.model.spec import JobSpec, WorkflowSpec
from corral.model.views import JobView, NewRun, RunView
from corral.workflow.lock import make_lock

CONFIG = """\
version: 1
allow_root: true
pools:
  - name: local
    backend: process
    labels: [local]
    max_agents: {max_agents}
timing:
  unroutable_after: {unroutable_after}
  lost_after: {lost_after}
"""


def config(*, max_agents: int = 3, unroutable_after: float = 120, lost_after: float = 120) -> str:
    return CONFIG.format(max_agents=max_agents, unroutable_after=unroutable_after, lost_after=lost_after)


def run_of(*jobs: JobSpec, secrets: dict[str, str] | None = None) -> NewRun:
    lock = make_lock([WorkflowSpec(name="ci", jobs=jobs)], {})
    return NewRun(lock=lock, workflow="ci", secrets=secrets or {})


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


def names(jobs: Sequence[JobView]) -> list[str]:
    return [job.name for job in jobs]
