# SPDX-License-Identifier: Apache-2.0
"""A coordinator's transactions by hand: each step is one transaction, as the services make them."""

from __future__ import annotations

from typing import Any

from corral.control import offers, registration, reports, runs, settle
from corral.control.registration import Registered, Turned, digest
from corral.control.settle import Wake
from corral.decide.dispatching import Placement
from corral.model.ids import AgentId, JobId, RunId, TokenId
from corral.model.records import Job
from corral.model.spec import JobSpec, Lock, Reason, Result, WorkflowSpec
from corral.model.views import NewRun
from corral.runtime.chance import SeededChance
from corral.store.repo import agents, jobs, tokens
from corral.store.repo import claims as claims_rows
from corral.store.repo import provisions as provisions_rows
from corral.wire.messages import (
    PROTOCOL,
    Facts,
    HeldJob,
    HeldState,
    Hello,
    JobFinished,
    JobStarted,
    StepFinished,
    StepStarted,
)
from corral.workflow.lock import LOCK_VERSION
from tests.clocks import START
from tests.store.databases import AGENT, FACTS, Hand, a_spec

COORDINATOR = "coord_1"
SECOND = 1_000_000


def new_run(*specs: JobSpec, **more: Any) -> NewRun:
    workflow = WorkflowSpec(name="w", jobs=specs or (a_spec(),), **more.pop("workflow", {}))
    lock = Lock(version=LOCK_VERSION, hash="0" * 64, files={}, workflows=(workflow,))
    return NewRun(**{"lock": lock, "workflow": "w", **more})


class World(Hand):
    """``chance`` makes ids; ``wake`` is what the last transaction said about whom to wake."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.chance = SeededChance(1)
        self.wake = Wake()
        self.sequence = 0

    # --- runs ---

    def start(self, *specs: JobSpec, **more: Any) -> RunId:
        return self.submit(new_run(*specs, **more))

    def submit(self, new: NewRun) -> RunId:
        prepared = runs.prepare(new, self.chance, lambda name, value, run: f"sealed {value}".encode(), self.clock.now())
        self.wake = Wake()
        self.write(runs.add, prepared, self.wake)
        return prepared.id

    def jobs(self, run_id: RunId) -> dict[str, Job]:
        return {job.name: job for job in self.read(jobs.of_run, run_id)}

    def only(self, run_id: RunId) -> Job:
        (job,) = self.jobs(run_id).values()
        return job

    def states(self, run_id: RunId) -> dict[str, str]:
        return {name: str(job.state) for name, job in self.jobs(run_id).items()}

    def cancel(self, run_id: RunId, *, force: bool = False, reason: Reason = Reason.CANCELLED) -> None:
        self.wake = Wake()
        self.write(runs.cancel, run_id, force=force, reason=reason, wake=self.wake)

    # --- agents ---

    def claim(self, agent_id: str = AGENT, code: str = "claim-code", pool: str = "p", **more: Any) -> AgentId:
        """A provision with its agent row and claim, as the scaler writes them."""
        identity = AgentId(agent_id)
        labels = frozenset({"linux"})
        self.write(agents.add, id=identity, pool=pool, kind="provisioned", labels=labels, project="local")
        values = {"pool": pool, "backend": "process", "host_id": COORDINATOR, "labels": labels, "cause": "job", **more}
        self.write(provisions_rows.add, agent_id=identity, **values)
        self.write(claims_rows.add, digest=digest(code), agent_id=identity, prefix=code[:4])
        return identity

    def hello(
        self,
        agent_id: str = AGENT,
        *,
        key: str | None = None,
        claim: str = "",
        boot: str = "boot",
        protocol: int = PROTOCOL,
        facts: Facts = FACTS,
        held: tuple[HeldJob, ...] = (),
    ) -> Registered | Turned:
        hello = Hello(
            protocol=protocol,
            agent_id=agent_id,
            key=key if key is not None else f"key-{agent_id}",
            boot_id=boot,
            facts=facts,
            claim_code=claim,
            jobs=held,
        )
        return self.write(registration.register, hello, COORDINATOR)

    def agent_up(self, agent_id: str = AGENT, **more: Any) -> Registered:
        """Made, claimed, connected."""
        self.claim(agent_id, f"code-{agent_id}", **more)
        found = self.hello(agent_id, claim=f"code-{agent_id}")
        assert isinstance(found, Registered), found
        return found

    def static(self, agent_id: str = "static", labels: str = "mac") -> None:
        """An agent by token: its row and its key, not yet connected."""
        identity, key = AgentId(agent_id), digest(f"key-{agent_id}")
        own = frozenset(labels.split())
        self.write(agents.add, id=identity, pool="", kind="static", labels=own, project="local", key_digest=key)
        names = {"name": agent_id, "role": "agent", "prefix": agent_id, "project": "local"}
        self.write(tokens.add, id=TokenId(f"tok_{agent_id}"), digest=key, agent_id=identity, **names)

    # --- offers and reports ---

    def offer(self, job: Job, agent_id: str = AGENT) -> offers.Made | None:
        session = self.agent(agent_id).session
        placement = Placement(job_id=job.id, agent_id=AgentId(agent_id))
        self.wake = Wake()
        return self.write(offers.make, placement, session=session, boot_id="boot", ack_timeout=10.0, wake=self.wake)

    def accept(self, job_id: JobId, attempt: int = 1, agent_id: str = AGENT) -> offers.Taken | None:
        self.wake = Wake()
        return self.write(offers.accept, AgentId(agent_id), job_id, attempt, self.wake)

    def decline(self, job_id: JobId, attempt: int = 1, agent_id: str = AGENT, *, leaving: bool = False) -> None:
        self.wake = Wake()
        self.write(offers.decline, AgentId(agent_id), job_id, attempt, "busy", self.wake, leaving=leaving)

    def running(self, job: Job, agent_id: str = AGENT) -> int:
        """Offered, accepted and begun; the attempt's number."""
        made = self.offer(job, agent_id)
        assert made is not None
        assert self.accept(job.id, made.order.attempt, agent_id) is not None
        self.report(JobStarted(job_id=job.id, attempt=made.order.attempt, sequence=1, time=START), agent_id=agent_id)
        return made.order.attempt

    def report(
        self, *what: Any, agent_id: str = AGENT, session: int | None = None, single_use: bool = True
    ) -> reports.Applied:
        number = session if session is not None else self.agent(agent_id).session
        applied = self.write(reports.apply, AgentId(agent_id), number, what, single_use=single_use)
        self.wake = applied.wake
        return applied

    def finish(
        self,
        job: Job,
        result: Result = Result.SUCCEEDED,
        reason: Reason = Reason.NONE,
        *,
        attempt: int = 1,
        agent_id: str = AGENT,
        **more: Any,
    ) -> reports.Applied:
        end = finished(job.id, attempt, result=result, reason=reason, **more)
        return self.report(end, agent_id=agent_id)

    def lose(self, job_id: JobId, attempt: int = 1, *, gone: bool = True) -> None:
        self.wake = Wake()
        row = self.attempt(attempt, job_id)
        self.write(settle.lose, row, Reason.INSTANCE_LOST, "it is away", self.wake, instance_gone=gone)


def finished(job_id: str, attempt: int = 1, sequence: int = 100, **more: Any) -> JobFinished:
    values = {"result": Result.SUCCEEDED, **more}
    return JobFinished(job_id=job_id, attempt=attempt, sequence=sequence, time=START, **values)


def step_started(job_id: str, step: int = 0, sequence: int = 2, attempt: int = 1) -> StepStarted:
    return StepStarted(job_id=job_id, attempt=attempt, sequence=sequence, step=step, time=START)


def step_finished(job_id: str, step: int = 0, sequence: int = 3, attempt: int = 1, **more: Any) -> StepFinished:
    values = {"result": Result.SUCCEEDED, **more}
    return StepFinished(job_id=job_id, attempt=attempt, sequence=sequence, step=step, time=START, **values)


def held(job_id: str, state: HeldState = HeldState.RUNNING, attempt: int = 1, sequence: int = 1) -> HeldJob:
    return HeldJob(job_id=job_id, attempt=attempt, state=state, sequence=sequence)
