# SPDX-License-Identifier: Apache-2.0
"""Both databases behind plain calls, and the rows that tests start from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection

from corral.model.ids import AgentId, JobId, RunId
from corral.model.records import Agent, Attempt, Job, Provision, Run
from corral.model.spec import JobSpec, StepSpec, WorkflowSpec
from corral.model.states import JobState
from corral.store.interface import Database
from corral.store.repo import agents, jobs, runs
from corral.store.repo import provisions as provisions_rows
from corral.wire.messages import Facts
from tests.clocks import START, ManualClock

T = TypeVar("T")
FACTS = Facts(os="linux", arch="x86_64", host="h1", version="0")
RUN, JOB, AGENT = RunId("run_1"), JobId("job_1"), AgentId("agent_1")


class Hand:
    """Drives one database from a test that is not a coroutine."""

    def __init__(self, database: Database, clock: ManualClock, runner: asyncio.Runner) -> None:
        self.database = database
        self.clock = clock
        self.runner = runner

    def write(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self.runner.run(self.database.write(lambda c: fn(c, *args, **kwargs)))

    def read(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self.runner.run(self.database.read(lambda c: fn(c, *args, **kwargs)))

    # --- rows, as they are now ---

    def run(self, run_id: str = RUN) -> Run:
        return found(self.read(runs.get, RunId(run_id)))

    def job(self, job_id: str = JOB) -> Job:
        return found(self.read(jobs.get, JobId(job_id)))

    def attempt(self, number: int = 1, job_id: str = JOB) -> Attempt:
        return found(self.read(jobs.attempt, JobId(job_id), number))

    def agent(self, agent_id: str = AGENT) -> Agent:
        return found(self.read(agents.get, AgentId(agent_id)))

    def provision(self, agent_id: str = AGENT) -> Provision:
        return found(self.read(provisions_rows.get, AgentId(agent_id)))


def found(value: T | None) -> T:
    assert value is not None
    return value


def a_spec(name: str = "test", **more: Any) -> JobSpec:
    return JobSpec(**{"name": name, "steps": (StepSpec(name="run", script="true"),), "runs_on": ("linux",), **more})


def add_run(connection: Connection, run_id: str = RUN, total: int = 1, **more: Any) -> None:
    values: dict[str, Any] = {
        "id": run_id,
        "project": "local",
        "workflow": "w",
        "title": "w",
        "spec": WorkflowSpec(name="w", jobs=()),
        "lock_hash": "0" * 64,
        "source_hash": None,
        "source_size": None,
        "workflow_env": {},
        "env": {},
        "event": {},
        "job_filter": (),
        "original": "",
        "deadline_at": None,
        "jobs_total": total,
        **more,
    }
    runs.add(connection, **values)


def job_row(
    job_id: str = JOB,
    run_id: str = RUN,
    ordinal: int = 0,
    state: JobState = JobState.QUEUED,
    spec: JobSpec | None = None,
    queued_at: int = START,
) -> dict[str, Any]:
    spec = spec or a_spec()
    queued = state is JobState.QUEUED
    return {
        "id": job_id,
        "run_id": run_id,
        "ordinal": ordinal,
        "name": spec.name,
        "base": spec.name,
        "state": state,
        "spec": spec,
        "matrix": {},
        "needs": spec.needs,
        "labels": frozenset(spec.runs_on),
        "excludes": frozenset(spec.excludes),
        "cpu": None,
        "memory": None,
        "outputs": {},
        "detail": "",
        "created_at": START,
        "queued_at": queued_at if queued else None,
        "ready_at": queued_at if queued else None,
        "finished_at": None,
    }


def add_job(connection: Connection, spec: JobSpec | None = None, **more: Any) -> None:
    """A run with one queued job."""
    add_run(connection)
    jobs.add_all(connection, [job_row(spec=spec, **more)])


def add_agent(connection: Connection, agent_id: str = AGENT, *, online: bool = True, pool: str = "p") -> None:
    """A provisioned agent whose key is ``KEY-agent_id``'s digest, idle on session 1 where it is online."""
    identity = AgentId(agent_id)
    agents.add(connection, id=identity, pool=pool, kind="provisioned", labels=frozenset({"linux"}), project="local")
    provisions_rows.add(
        connection,
        agent_id=identity,
        pool=pool,
        backend="process",
        host_id="coord_1",
        labels=frozenset({"linux"}),
        cause="job",
    )
    if online:
        row = found(agents.get(connection, identity))
        labels = frozenset({"linux"})
        agents.register(connection, row, coordinator_id="coord_1", boot_id="boot", number=1, facts=FACTS, labels=labels)
