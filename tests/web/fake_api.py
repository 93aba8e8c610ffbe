# SPDX-License-Identifier: Apache-2.0
"""A coordinator with memory and failure switches, for the tests of web, client and command line."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from corral.control.api import LogPart, Principal, Role, ServiceHealth
from corral.control.link import Link, LinkClosed
from corral.model.errors import Fault, Forbidden, Invalid, NotFound, Refused, TooLarge, Unauthenticated
from corral.model.events import Listing, ProvisionReport
from corral.model.ids import AgentId, JobId, RunId, SourceHash, TokenId
from corral.model.leaks import EpochView, LedgerView, ReportView
from corral.model.spec import JobSpec, Lock, StepSpec, WorkflowSpec
from corral.model.states import RUN, JobState, RunState
from corral.model.views import (
    AgentView,
    AttemptView,
    Clean,
    Cleaned,
    CreatedToken,
    DeliveryView,
    DiagnoseRow,
    DiagnoseView,
    DrainAgent,
    JobView,
    NewRun,
    NewToken,
    Page,
    PoolView,
    ProvisionView,
    RegisterWorkflows,
    ReloadView,
    Rerun,
    RotateToken,
    RunView,
    ServerView,
    StepView,
    TokenView,
    WhyView,
    WorkflowView,
)

TOKENS = {role: f"{role}-token" for role in Role}
MOMENT = "2025-01-31T10:00:00.000000Z"


def lock_of(*names: str, workflow: str = "ci", secrets: tuple[str, ...] = ()) -> Lock:
    jobs = tuple(
        JobSpec(name=name, steps=(StepSpec(name="say", script="echo hello"),), secrets=secrets) for name in names
    )
    return Lock(version=1, hash="0" * 64, files={}, workflows=(WorkflowSpec(name=workflow, jobs=jobs),))


def new_run(*names: str, **how: Any) -> NewRun:
    return NewRun(lock=lock_of(*(names or ("build",))), workflow="ci", **how)


class FakeApi:
    """Implements :class:`corral.control.api.Api`. ``change``: wake everyone who follows something."""

    def __init__(self) -> None:
        self.changed = asyncio.Condition()
        self.diagnosis: tuple[DiagnoseRow, ...] = (
            DiagnoseRow(group="database", name="database", status="ok", message="writable"),
        )
        self.runs_by_id: dict[str, RunView] = {}
        self.orders: dict[str, NewRun] = {}
        self.job_by_id: dict[str, JobView] = {}
        self.logs: dict[tuple[str, int, int], bytearray] = {}
        self.final: set[tuple[str, int, int]] = set()
        self.sources: dict[str, bytes] = {}
        self.links: list[Link] = []
        self.frames: list[bytes] = []
        self.healthy = True
        self.broken: Exception | None = None
        """Raised by every call while it is set."""
        self.agent_key = "agent-key"
        self.cancels: list[tuple[str, bool]] = []
        self.graces: list[float] = []
        self.drains: list[float | None] = []
        self.held: dict[str, str] = {}
        self.said: dict[str, str] = {}
        self.registered: dict[str, WorkflowView] = {}
        self.echo_agents = True
        self.linked = asyncio.Event()
        self._tokens = {
            token: TokenView(id=f"tok_{role}", name=str(role), role=str(role), prefix=token[:6], created_at=MOMENT)
            for role, token in TOKENS.items()
        }
        self._count = 0

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken

    async def change(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    # --- who ---

    async def authenticate(self, token: str) -> Principal:
        self._check()
        view = self._tokens.get(token)
        if view is None or view.revoked_at:
            raise Unauthenticated("this token is not known here")
        return Principal(token_id=TokenId(view.id), name=view.name, role=Role(view.role))

    async def create_token(self, new: NewToken, *, by: str = "") -> CreatedToken:
        if new.role not in list(Role):
            raise Invalid("the token", [Fault(path="role", message=f"no role {new.role!r}")])
        self._count += 1
        token = f"fresh-{self._count}"
        view = TokenView(
            id=f"tok_{self._count}", name=new.name, role=new.role, prefix="fresh", created_at=MOMENT, created_by=by
        )
        self._tokens[token] = view
        return CreatedToken(token=token, view=view)

    async def tokens(self) -> tuple[TokenView, ...]:
        return tuple(self._tokens.values())

    async def rotate_token(self, token_id: TokenId, how: RotateToken, *, by: str = "") -> CreatedToken:
        old = next((view for view in self._tokens.values() if view.id == token_id), None)
        if old is None:
            raise NotFound(f"no token {token_id}")
        self.graces.append(how.grace)
        return await self.create_token(NewToken(name=old.name, role=old.role), by=by)

    async def revoke_token(self, token_id: TokenId) -> TokenView:
        for token, view in self._tokens.items():
            if view.id == token_id:
                self._tokens[token] = msgspec.structs.replace(view, revoked_at=MOMENT)
                return self._tokens[token]
        raise NotFound(f"no token {token_id}")

    # --- health ---

    async def server(self) -> ServerView:
        self._check()
        return ServerView(version="0", cluster_id="corral-x", coordinator_id="coord_x", epoch="1", started_at=MOMENT)

    async def diagnose(self, only: str = "") -> DiagnoseView:
        rows = tuple(row for row in self.diagnosis if row.name.startswith(only))
        if not rows:
            raise NotFound(f"no check is called {only!r}")
        order = ("failed", "warning")
        status = next((each for each in order if any(row.status == each for row in rows)), "ok")
        return DiagnoseView(status=status, at=MOMENT, rows=rows)

    async def metrics(self) -> bytes:
        return b"# HELP corral_sessions x\n# TYPE corral_sessions gauge\ncorral_sessions 3.0\n"

    async def health(self) -> tuple[ServiceHealth, ...]:
        detail = "" if self.healthy else "the disk is full"
        return (
            ServiceHealth(name="database", healthy=self.healthy, detail=detail),
            ServiceHealth(name="dispatcher", healthy=True),
        )

    # --- runs ---

    async def create_run(self, new: NewRun) -> RunView:
        self._check()
        workflow = next((each for each in new.lock.workflows if each.name == new.workflow), None)
        if workflow is None:
            raise Invalid("the run", [Fault(path="workflow", message=f"no workflow {new.workflow!r}")])
        faults = [
            Fault(path="jobs", message=f"no job {name!r}")
            for name in new.jobs
            if name not in [job.name for job in workflow.jobs]
        ]
        if new.source and new.source.hash not in self.sources:
            faults.append(Fault(path="source", message="the server does not hold it"))
        if faults:
            raise Invalid("the run", faults)
        return self._add_run(new, original="")

    def _add_run(self, new: NewRun, original: str) -> RunView:
        self._count += 1
        run_id = f"run_{self._count:016d}".replace("0", "a").replace("1", "b")
        workflow = next(each for each in new.lock.workflows if each.name == new.workflow)
        jobs = tuple(self._add_job(run_id, number, spec) for number, spec in enumerate(workflow.jobs))
        view = RunView(
            id=run_id,
            project=new.project,
            workflow=new.workflow,
            title=new.title,
            state=RunState.QUEUED,
            original=original,
            created_at=MOMENT,
            jobs_total=len(jobs),
            jobs=jobs,
        )
        self.runs_by_id[run_id] = view
        self.orders[run_id] = new
        return view

    def _add_job(self, run_id: str, number: int, spec: JobSpec) -> JobView:
        job_id = f"job_{run_id[4:-2]}{'abcdefghij'[number]}x"
        view = JobView(
            id=job_id,
            run_id=run_id,
            name=spec.name,
            state=JobState.QUEUED,
            attempt=1,
            created_at=MOMENT,
            steps=tuple(StepView(index=i, name=each.name, state="pending") for i, each in enumerate(spec.steps)),
            attempts=(AttemptView(number=1, state="running", agent_id="agent_x"),),
        )
        self.job_by_id[job_id] = view
        return view

    async def runs(
        self, *, project: str = "local", cursor: str = "", limit: int = 50, provisioning: bool = False
    ) -> Page[RunView]:
        self._check()
        wanted = [
            each
            for each in reversed(self.runs_by_id.values())
            if each.project == project and each.provisioning == provisioning
        ]
        start = next((n + 1 for n, each in enumerate(wanted) if each.id == cursor), 0)
        page = [msgspec.structs.replace(each, jobs=()) for each in wanted[start : start + limit]]
        more = len(wanted) > start + limit
        return Page(items=tuple(page), next=page[-1].id if more else "")

    async def run(self, run_id: RunId) -> RunView:
        self._check()
        if run_id not in self.runs_by_id:
            raise NotFound(f"no run {run_id}")
        view = self.runs_by_id[run_id]
        jobs = tuple(msgspec.structs.replace(self.job_by_id[each.id], steps=(), attempts=()) for each in view.jobs)
        return msgspec.structs.replace(view, jobs=jobs)

    async def watch_run(self, run_id: RunId) -> AsyncIterator[RunView]:
        last = None
        while True:
            async with self.changed:
                view = await self.run(run_id)
                if view == last:
                    await self.changed.wait()
                    continue
            last = view
            yield view
            if view.state in RUN.terminal:
                return

    async def cancel_run(self, run_id: RunId, *, force: bool = False) -> RunView:
        view = await self.run(run_id)
        if view.state in RUN.terminal:
            raise Refused(f"run {run_id} has {view.state} already")
        self.cancels.append((run_id, force))
        await self.set_run(run_id, state=RunState.CANCELLING)
        return await self.run(run_id)

    async def rerun(self, run_id: RunId, how: Rerun) -> RunView:
        await self.run(run_id)
        return self._add_run(self.orders[run_id], original=run_id)

    async def register_workflows(self, wanted: RegisterWorkflows, *, by: str = "") -> tuple[WorkflowView, ...]:
        self._check()
        if wanted.source is not None and wanted.source.hash not in self.sources:
            raise Invalid("the registration", [Fault(path="source", message="the server does not hold it")])
        names = wanted.workflows or tuple(each.name for each in wanted.lock.workflows)
        for spec in (each for each in wanted.lock.workflows if each.name in names):
            before = self.registered.get(spec.name)
            self.registered[spec.name] = WorkflowView(
                name=spec.name,
                project=wanted.project,
                events=spec.events,
                jobs=tuple(job.name for job in spec.jobs),
                file=spec.file,
                line=spec.line,
                lock_hash=wanted.lock.hash,
                source_hash=wanted.source.hash if wanted.source else "",
                registered_at=MOMENT,
                registered_by=by,
                version=before.version + 1 if before else 1,
            )
        return tuple(self.registered[name] for name in names if name in self.registered)

    async def workflows(self, *, project: str = "local") -> tuple[WorkflowView, ...]:
        self._check()
        return tuple(each for _, each in sorted(self.registered.items()) if each.project == project)

    async def workflow(self, name: str) -> WorkflowView:
        self._check()
        if name not in self.registered:
            raise NotFound(f"no workflow {name!r} is registered")
        return self.registered[name]

    async def remove_workflow(self, name: str) -> WorkflowView:
        view = await self.workflow(name)
        if view.pools:
            raise Refused(f"workflow {name} is the provisioner of pool {view.pools[0]}")
        return self.registered.pop(name)

    async def job(self, job_id: JobId) -> JobView:
        self._check()
        if job_id not in self.job_by_id:
            raise NotFound(f"no job {job_id}")
        return self.job_by_id[job_id]

    async def why(self, job_id: JobId) -> WhyView:
        job = await self.job(job_id)
        return WhyView(
            job_id=job.id,
            name=job.name,
            state=job.state,
            code="unroutable",
            sentences=("It was queued.", "No pool has label gpu."),
            fix="Add gpu to the labels of pool local.",
        )

    async def clean(self, how: Clean) -> Cleaned:
        ended = [each for each in self.runs_by_id.values() if each.state in RUN.terminal]
        gone = ended[: max(0, len(ended) - how.keep_runs)]
        for each in gone:
            del self.runs_by_id[each.id]
        return Cleaned(runs=len(gone), bytes=1000 * len(gone))

    # --- what happens to runs (for tests) ---

    async def set_run(self, run_id: str, **fields: Any) -> None:
        self.runs_by_id[run_id] = msgspec.structs.replace(self.runs_by_id[run_id], **fields)
        await self.change()

    async def set_job(self, job_id: str, **fields: Any) -> None:
        self.job_by_id[job_id] = msgspec.structs.replace(self.job_by_id[job_id], **fields)
        await self.change()

    async def finish(self, run_id: str, state: str = "succeeded") -> None:
        for each in self.runs_by_id[run_id].jobs:
            for step in range(len(self.job_by_id[each.id].steps)):
                self.final.add((each.id, 1, step))
            await self.set_job(
                each.id, state=state, queued=0.1, provisioned=0.2, running=0.3, total=0.6, last_line="done"
            )
        await self.set_run(run_id, state=state, jobs_finished=len(self.runs_by_id[run_id].jobs))

    async def print(self, job_id: str, step: int, data: bytes, *, final: bool = False, attempt: int = 1) -> None:
        self.logs.setdefault((job_id, attempt, step), bytearray()).extend(data)
        if final:
            self.final.add((job_id, attempt, step))
        await self.change()

    # --- logs ---

    async def _log_key(self, job_id: JobId, attempt: int | None, step: int) -> tuple[str, int, int]:
        job = await self.job(job_id)
        number = attempt or job.attempt
        if number > job.attempt or step >= len(job.steps):
            raise NotFound(f"job {job_id} has no attempt {number}, step {step}")
        return (job_id, number, step)

    async def read_log(
        self, job_id: JobId, *, attempt: int | None = None, step: int, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        data = bytes(self.logs.get(await self._log_key(job_id, attempt, step), b""))[start:end]

        async def chunks() -> AsyncIterator[bytes]:
            for at in range(0, len(data), 65536):
                yield data[at : at + 65536]

        return chunks()

    async def log_size(self, job_id: JobId, *, attempt: int | None = None, step: int) -> tuple[int, bool]:
        key = await self._log_key(job_id, attempt, step)
        return len(self.logs.get(key, b"")), key in self.final

    async def follow_log(
        self, job_id: JobId, *, attempt: int | None = None, step: int = 0, offset: int = 0
    ) -> AsyncIterator[LogPart]:
        steps = len((await self.job(job_id)).steps)
        while step < steps:
            key = await self._log_key(job_id, attempt, step)
            async with self.changed:
                data, final = bytes(self.logs.get(key, b""))[offset:], key in self.final
                if not data and not final:
                    await self.changed.wait()
                    continue
            yield LogPart(step=step, offset=offset, data=data, final=final)
            offset += len(data)
            if final:
                step, offset = step + 1, 0

    # --- sources ---

    async def put_source(self, hash: SourceHash, chunks: AsyncIterator[bytes]) -> int:
        data = b"".join([chunk async for chunk in chunks])
        if hashlib.sha256(data).hexdigest() != hash:
            raise Refused("the bytes do not have this hash")
        if len(data) > 10_000_000:
            raise TooLarge("more than the fake takes")
        self.sources[hash] = data
        return len(data)

    async def source_size(self, hash: SourceHash) -> int | None:
        return len(self.sources[hash]) if hash in self.sources else None

    async def read_source(self, agent_id: AgentId, key: str, hash: SourceHash) -> AsyncIterator[bytes]:
        if key != self.agent_key:
            raise Unauthenticated("this key does not verify")
        if agent_id != "agent_x":
            raise Forbidden("not the source of its job")
        if hash not in self.sources:
            raise NotFound("no such source")

        async def chunks() -> AsyncIterator[bytes]:
            yield self.sources[hash]

        return chunks()

    # --- agents ---

    async def agents(self) -> tuple[AgentView, ...]:
        return (self._agent("agent_x"),)

    def _agent(self, agent_id: str) -> AgentView:
        hold = self.held.get(agent_id, "")
        return AgentView(id=agent_id, pool="local", kind="process", state="online", labels=("linux",), hold=hold)

    async def _hold(self, agent_id: AgentId, hold: str) -> AgentView:
        if agent_id != "agent_x":
            raise NotFound(f"no agent {agent_id}")
        self.held[agent_id] = hold
        return self._agent(agent_id)

    async def cordon_agent(self, agent_id: AgentId, *, by: str = "") -> AgentView:
        return await self._hold(agent_id, "cordon")

    async def uncordon_agent(self, agent_id: AgentId) -> AgentView:
        return await self._hold(agent_id, "")

    async def drain_agent(self, agent_id: AgentId, how: DrainAgent, *, by: str = "") -> AgentView:
        self.drains.append(how.hand_back_after)
        return await self._hold(agent_id, "drain")

    async def pools(self) -> tuple[PoolView, ...]:
        return (PoolView(name="local", backend="process", labels=("linux",), max_agents=3),)

    async def provisions(self, *, state: str = "", pool: str = "") -> tuple[ProvisionView, ...]:
        found = (self._provision("agent_x"), self._provision("agent_y"))
        return tuple(each for each in found if state in ("", each.state) and pool in ("", each.pool))

    def _provision(self, agent_id: str) -> ProvisionView:
        state = self.said.get(agent_id, "abandoned" if agent_id == "agent_y" else "active")
        return ProvisionView(
            id=agent_id,
            pool="cloud",
            backend="event",
            state=state,
            cause="warm",
            cost_per_hour=0.5,
            cost=1.25,
            age=9000.0,
            requested_at="2026-01-01T00:00:00Z",
            story=("2026-01-01T00:00:00Z instance was asked for",),
            deliveries=(
                DeliveryView(
                    id=f"{agent_id}.1",
                    kind="corral.scaler.scale-up.v1",
                    sequence=1,
                    state="delivered",
                    attempts=2,
                    created_at="2026-01-01T00:00:00Z",
                ),
            ),
        )

    async def provision(self, agent_id: AgentId) -> ProvisionView:
        if agent_id not in ("agent_x", "agent_y"):
            raise NotFound(f"no provision {agent_id}")
        return self._provision(agent_id)

    async def retry_provision(self, agent_id: AgentId, *, by: str = "") -> ProvisionView:
        return await self._say(agent_id, "releasing")

    async def forget_provision(self, agent_id: AgentId, *, by: str = "") -> ProvisionView:
        return await self._say(agent_id, "gone")

    async def _say(self, agent_id: AgentId, state: str) -> ProvisionView:
        if (await self.provision(agent_id)).state != "abandoned":
            raise Refused(f"provision {agent_id} is not abandoned")
        self.said[agent_id] = state
        return self._provision(agent_id)

    async def report_provision(self, agent_id: AgentId, said: ProvisionReport) -> ReportView:
        self._check()
        view = await self.provision(agent_id)
        return ReportView(agent_id=view.id, state=said.state, taken=True)

    async def take_listing(self, listing: Listing) -> LedgerView:
        if listing.request != "1.1.1":
            raise NotFound(f"no inventory request {listing.request!r} waits for a listing")
        return await self.ledger()

    async def ledger(self) -> LedgerView:
        self._check()
        return LedgerView(leaks=(), alarms=(), targets=(), waiting=0, lag=0.0)

    async def inventory_now(self) -> LedgerView:
        return await self.ledger()

    async def reload_config(self) -> ReloadView:
        self._check()
        return ReloadView(added=("new",))

    async def approve_strays(self, *, by: str = "") -> EpochView:
        self._check()
        return EpochView(generation=1)

    async def raise_epoch(self, *, by: str = "") -> EpochView:
        self._check()
        return EpochView(generation=2)

    async def serve_agent(self, link: Link) -> None:
        """Keeps every frame, and sends it back while ``echo_agents`` is set; a frame ``close`` ends it."""
        self.links.append(link)
        self.linked.set()
        while self.echo_agents:
            try:
                frame = await link.receive()
            except LinkClosed:
                return
            self.frames.append(frame)
            if frame == b"close":
                await link.close(4009, "released: " + "é" * 200)
                return
            await link.send(frame)
        await asyncio.Event().wait()


def job_of(view: RunView, name: str) -> JobView:
    return next(each for each in view.jobs if each.name == name)
