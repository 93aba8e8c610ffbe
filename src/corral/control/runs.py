# SPDX-License-Identifier: Apache-2.0
"""A run is created, cancelled, run again: rows in one transaction, faults all at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from sqlalchemy import Connection

from corral.control import settle
from corral.control.settle import SECOND, Wake
from corral.model.errors import Fault, Invalid, NotFound, Refused
from corral.model.gitsource import git_faults
from corral.model.ids import RunId
from corral.model.labels import labels
from corral.model.records import Job, Run
from corral.model.spec import JOBS_LIMIT, GitSource, JobSpec, Reason, Scalar, SourceRef, WorkflowSpec
from corral.model.states import JOB, RUN, JobEvent, JobState
from corral.model.views import NewRun
from corral.runtime.chance import Chance, job_id, run_id
from corral.store.repo import jobs, runs, secrets
from corral.store.repo.installation import now


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run that is known to be right, ready to be written. ``sealed``: secrets by name; ``rows``: the jobs table's."""

    id: RunId
    project: str
    workflow: WorkflowSpec
    lock_hash: str
    title: str
    source: SourceRef | None
    env: dict[str, str]
    event: dict[str, str]
    job_filter: tuple[str, ...]
    original: str
    sealed: dict[str, bytes]
    rows: tuple[dict[str, Any], ...]
    dedupe: str | None = None
    """The key under which it is begun at most once."""
    provisioning: bool = False
    """It works for a provisioner: see ``corral.control.provisioning``."""


def check(new: NewRun) -> WorkflowSpec:
    """The workflow asked for. :raises Invalid: every fault of names and secrets."""
    workflow = next((w for w in new.lock.workflows if w.name == new.workflow), None)
    if workflow is None:
        names = ", ".join(w.name for w in new.lock.workflows) or "none"
        raise Invalid(
            "run", [Fault(path="workflow", message=f"no workflow {new.workflow!r}", remedy=f"there are: {names}")]
        )
    known = {job.name for job in workflow.jobs}
    faults = [
        Fault(path=f"jobs[{index}]", message=f"no job {name!r}", remedy="there are: " + ", ".join(sorted(known)))
        for index, name in enumerate(new.jobs)
        if name not in known
    ]
    chosen = [name for name in new.jobs if name in known]
    selected = select(workflow, chosen) if chosen or not new.jobs else ()
    faults += missing_secrets(selected, new.secrets)
    faults += _git_faults(new, selected)
    if new.source is not None and new.source.size < 0:
        faults.append(Fault(path="source.size", message="is negative"))
    count = sum(max(1, len(job.matrix)) for job in selected)
    if count > JOBS_LIMIT:
        faults.append(Fault(path="jobs", message=f"{count} jobs after matrix expansion; the limit is {JOBS_LIMIT}"))
    if faults:
        raise Invalid("run", faults)
    return workflow


def missing_secrets(selected: Sequence[JobSpec], given: Mapping[str, str]) -> list[Fault]:
    return [
        Fault(
            path=f"secrets.{name}",
            file=job.file,
            line=job.line,
            message=f"job {job.name!r} needs the secret {name!r} and it was not given",
            remedy=f"--secret {name}",
        )
        for job in selected
        for name in job.needed_secrets()
        if name not in given
    ]


def _git_faults(new: NewRun, selected: Sequence[JobSpec]) -> list[Fault]:
    faults = [fault for job in selected if job.git is not None for fault in git_faults(job.git)]
    if new.git is None:
        return faults
    if new.source is not None:
        faults.append(Fault(path="git", message="an archive is given too", remedy="give one of source and git"))
    if new.git.credential and new.git.credential not in new.secrets:
        message = f"the credential {new.git.credential!r} was not given"
        faults.append(Fault(path="git.credential", message=message, remedy=f"--secret {new.git.credential}"))
    return [*faults, *git_faults(new.git)]


def _with_git(workflow: WorkflowSpec, git: GitSource | None) -> WorkflowSpec:
    """The workflow whose jobs fetch ``git``, unless they check nothing out or name a source of their own. It is kept
    with the run, so that a rerun fetches the same."""
    if git is None:
        return workflow
    jobs = tuple(
        msgspec.structs.replace(job, git=git) if job.checkout and job.git is None else job for job in workflow.jobs
    )
    return msgspec.structs.replace(workflow, jobs=jobs)


def select(workflow: WorkflowSpec, names: Sequence[str]) -> tuple[JobSpec, ...]:
    """The named jobs and all they need, in the author's order; all without names."""
    if not names:
        return workflow.jobs
    by_name = {job.name: job for job in workflow.jobs}
    wanted: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in wanted and name in by_name:
            wanted.add(name)
            pending += [need.job for need in by_name[name].needs]
    return tuple(job for job in workflow.jobs if job.name in wanted)


def combination_name(job: JobSpec, matrix: Mapping[str, Scalar]) -> str:
    """``test (3.11, linux)``: the job's name and its values in the matrix's order."""
    return f"{job.name} ({', '.join(str(value) for value in matrix.values())})" if matrix else job.name


def job_rows(chance: Chance, run: RunId, selected: Sequence[JobSpec], moment: int) -> tuple[dict[str, Any], ...]:
    """One row per job and combination. What waits for nothing is queued at once."""
    rows: list[dict[str, Any]] = []
    for spec in selected:
        own = msgspec.structs.replace(spec, matrix=())
        ready = not spec.needs and not spec.condition and spec.max_parallel is None
        state = JOB.advance(JOB.initial, JobEvent.READY) if ready else JOB.initial
        for matrix in spec.matrix or ({},):
            rows.append(
                {
                    "id": job_id(chance),
                    "run_id": run,
                    "ordinal": len(rows),
                    "name": combination_name(spec, matrix),
                    "base": spec.name,
                    "state": state,
                    "spec": own,
                    "matrix": matrix,
                    "needs": spec.needs,
                    "labels": labels(spec.runs_on),
                    "excludes": labels(spec.excludes),
                    "cpu": spec.resources.cpu,
                    "memory": spec.resources.memory,
                    "outputs": {},
                    "detail": "",
                    "created_at": moment,
                    "queued_at": moment if ready else None,
                    "ready_at": moment if ready else None,
                    "finished_at": None,
                }
            )
    return tuple(rows)


def prepare(
    new: NewRun,
    chance: Chance,
    seal: Callable[[str, str, RunId], bytes],
    moment: int,
    *,
    original: str = "",
    dedupe: str | None = None,
    provisioning: bool = False,
) -> Prepared:
    """:raises Invalid: see :func:`check`. ``seal(name, value, run id)`` makes a secret storable."""
    workflow = _with_git(check(new), new.git)
    selected = select(workflow, new.jobs)
    identity = run_id(chance)
    declared = {name for job in selected for name in job.needed_secrets()}
    return Prepared(
        id=identity,
        project=new.project,
        workflow=workflow,
        lock_hash=new.lock.hash,
        title=new.title or workflow.name,
        source=new.source,
        env=new.env,
        event=new.event,
        job_filter=new.jobs,
        original=original,
        sealed={name: seal(name, value, identity) for name, value in new.secrets.items() if name in declared},
        rows=job_rows(chance, identity, selected, moment),
        dedupe=dedupe,
        provisioning=provisioning,
    )


def add(connection: Connection, prepared: Prepared, wake: Wake) -> None:
    """Write the run, its jobs and secrets, and let it begin."""
    workflow = prepared.workflow
    timeout = workflow.timeout
    runs.add(
        connection,
        id=prepared.id,
        project=prepared.project,
        workflow=workflow.name,
        title=prepared.title,
        spec=workflow,
        lock_hash=prepared.lock_hash,
        source_hash=prepared.source.hash if prepared.source else None,
        source_size=prepared.source.size if prepared.source else None,
        workflow_env=workflow.env,
        env=prepared.env,
        event=prepared.event,
        job_filter=prepared.job_filter,
        original=prepared.original,
        dedupe=prepared.dedupe,
        provisioning=prepared.provisioning,
        deadline_at=now(connection) + int(timeout * SECOND) if timeout is not None else None,
        jobs_total=len(prepared.rows),
        jobs_finished=sum(1 for row in prepared.rows if row["state"] in JOB.terminal),
    )
    jobs.add_all(connection, [{**row, "provisioning": prepared.provisioning} for row in prepared.rows])
    secrets.add_all(connection, prepared.id, prepared.sealed)
    wake.queue = True
    if any(row["state"] is JobState.WAITING for row in prepared.rows):
        settle.continue_run(connection, prepared.id, wake)
    wake.runs.add(prepared.id)


def again(run: Run, before: Sequence[Job], prepared: Prepared, *, failed_only: bool) -> Prepared:
    """The same run once more; ``failed_only`` keeps what succeeded, with its outputs."""
    if not failed_only:
        return prepared
    kept = {_identity(job.base, job.matrix): job for job in before if job.state is JobState.SUCCEEDED}
    if len(kept) == len(before):
        raise Refused(f"run {run.id} has no job that did not succeed; rerun all of it instead")
    rows = tuple(_kept(row, kept.get(_identity(row["base"], row["matrix"])), run.id) for row in prepared.rows)
    return replace(prepared, rows=rows)


def _identity(base: str, matrix: Mapping[str, Scalar]) -> tuple[str, bytes]:
    """Names will not do: the combinations of ``1`` and ``"1"`` read alike."""
    return base, msgspec.json.encode(matrix)


def _kept(row: dict[str, Any], job: Job | None, original: RunId) -> dict[str, Any]:
    if job is None:
        return row
    return {
        **row,
        "state": JobState.SUCCEEDED,
        "outputs": job.outputs,
        "detail": f"kept from {original}",
        "finished_at": row["created_at"],
    }


def existing(connection: Connection, run_id_: RunId) -> Run:
    """:raises NotFound: no such run."""
    run = runs.get(connection, run_id_)
    if run is None:
        raise NotFound(f"no run {run_id_}")
    return run


def cancel(connection: Connection, run_id_: RunId, *, force: bool, reason: Reason, wake: Wake) -> None:
    """:raises NotFound: no such run. :raises Refused: it has ended."""
    run = existing(connection, run_id_)
    if run.state in RUN.terminal:
        raise Refused(f"run {run_id_} has ended: {run.state}")
    settle.cancel_run(connection, run, force=force, reason=reason, wake=wake)
