# SPDX-License-Identifier: Apache-2.0
"""What an agent reports, applied in one transaction: idempotent by (job, attempt, sequence), forward only.

A report may come late, twice, or before the answer to the call that caused it; terminal absorbs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from corral.control import settle
from corral.control.settle import Wake
from corral.decide import settling
from corral.decide.scaling import ReleaseReason
from corral.model.errors import Conflict
from corral.model.ids import AgentId, JobId
from corral.model.records import Attempt, Job
from corral.model.spec import OUTPUT_LIMIT, Reason, Result
from corral.model.states import ATTEMPT, AttemptEvent, AttemptState, JobEvent, JobState, StepEvent
from corral.store.repo import agents, jobs
from corral.store.tables import db_now
from corral.wire.messages import JobFinished, JobStarted, Report, StepFinished, StepStarted

_STEP_EVENT = {
    Result.SUCCEEDED: StepEvent.SUCCEED,
    Result.FAILED: StepEvent.FAIL,
    Result.CANCELLED: StepEvent.END_CANCELLED,
    Result.SKIPPED: StepEvent.SKIP,
    Result.LOST: StepEvent.LOSE,
}
_ATTEMPT_EVENT = {
    Result.SUCCEEDED: AttemptEvent.SUCCEED,
    Result.FAILED: AttemptEvent.FAIL,
    Result.CANCELLED: AttemptEvent.END_CANCELLED,
    Result.SKIPPED: AttemptEvent.SUCCEED,
    Result.LOST: AttemptEvent.FAIL,
}


@dataclass(kw_only=True)
class Applied:
    """``finished``: attempts whose end is committed and may be acknowledged."""

    finished: list[tuple[JobId, int]] = field(default_factory=list)
    wake: Wake = field(default_factory=Wake)


def apply(
    connection: Connection, agent_id: AgentId, session: int, reports: Sequence[Report], *, single_use: bool
) -> Applied:
    """:raises Conflict: the session is not the agent's newest any more; nothing is written."""
    agent = agents.get(connection, agent_id)
    if agent is None or agent.session != session:
        raise Conflict("a newer session of this agent has taken over")
    applied = Applied()
    for report in reports:
        _apply_one(connection, agent_id, report, single_use, applied)
    return applied


def _apply_one(connection: Connection, agent_id: AgentId, report: Report, single_use: bool, applied: Applied) -> None:
    job_id = JobId(report.job_id)
    row = jobs.attempt(connection, job_id, report.attempt)
    if row is None or row.agent_id != agent_id or row.state in ATTEMPT.terminal or row.started_at is None:
        # Settled without this agent, or not its attempt at all: it may forget the job, nothing changes here.
        if isinstance(report, JobFinished):
            applied.finished.append((job_id, report.attempt))
        return
    if report.sequence <= row.sequence:
        return
    jobs.seen_sequence(connection, job_id, report.attempt, report.sequence)
    match report:
        case JobStarted():
            _begin(connection, row)
        case StepStarted():
            _begin(connection, row)
            jobs.advance_step(connection, job_id, report.attempt, report.step, StepEvent.START, started_at=db_now())
        case StepFinished():
            _finish_step(connection, job_id, report, applied)
        case JobFinished():
            _finish_job(connection, row, report, single_use, applied)
    run_id = jobs.run_of(connection, job_id)
    if run_id is not None:
        applied.wake.runs.add(run_id)


def _begin(connection: Connection, row: Attempt) -> None:
    if row.state is AttemptState.STARTING:
        jobs.advance_attempt(connection, row, AttemptEvent.BEGAN, began_at=db_now())


def _finish_step(connection: Connection, job_id: JobId, report: StepFinished, applied: Applied) -> None:
    jobs.advance_step(
        connection,
        job_id,
        report.attempt,
        report.step,
        _STEP_EVENT[report.result],
        reason=report.reason,
        detail=report.detail,
        exit_code=report.exit_code,
        signal=report.signal,
        tries=report.tries,
        outputs=report.outputs,
        log_size=report.log_size,
        log_digest=report.log_digest,
        log_missing=report.log_dropped,
        finished_at=db_now(),
    )


def _finish_job(connection: Connection, row: Attempt, report: JobFinished, single_use: bool, applied: Applied) -> None:
    current = jobs.attempt(connection, row.job_id, row.number)
    assert current is not None
    result, reason, detail = _checked(report)
    jobs.advance_attempt(connection, current, _ATTEMPT_EVENT[result], reason=reason, detail=detail)
    cordon = ReleaseReason.JOB_COMPLETE if single_use else None
    agents.unassign(connection, row.agent_id, job_id=row.job_id, attempt=row.number, cordon=cordon)
    agents.answered(connection, row.agent_id)
    applied.finished.append((row.job_id, row.number))
    applied.wake.queue = True
    job = jobs.get(connection, row.job_id)
    if job is None or job.attempt != row.number:
        return
    _end_or_retry(connection, job, result, reason, detail, report, applied.wake)


def _checked(report: JobFinished) -> tuple[Result, Reason, str]:
    """The agent enforces the limit too; a job does not become green by an agent that does not."""
    size = sum(len(name) + len(value) for name, value in report.outputs.items())
    if size > OUTPUT_LIMIT:
        return Result.FAILED, Reason.OUTPUTS_INVALID, f"outputs have {size} bytes; the limit is {OUTPUT_LIMIT}"
    return report.result, report.reason, report.detail


def _end_or_retry(
    connection: Connection, job: Job, result: Result, reason: Reason, detail: str, report: JobFinished, wake: Wake
) -> None:
    if job.state is JobState.CANCELLING and result is not Result.SUCCEEDED:
        settle.end_job(connection, job, settle.stopped(job), wake, reason=job.reason, detail=detail)
        return
    settlement = settling.after_failure(job.spec, job.tries, result, reason)
    if settlement.next is settling.Next.RETRY and job.state is JobState.RUNNING:
        settle.requeue(connection, job, JobEvent.RETRY, wake, pause=settlement.pause, offers=0, tries=job.tries)
        return
    event = {Result.SUCCEEDED: JobEvent.SUCCEED, Result.SKIPPED: JobEvent.SUCCEED}.get(result, JobEvent.FAIL)
    if result is Result.CANCELLED:
        event = JobEvent.END_CANCELLED
    settle.end_job(connection, job, event, wake, reason=reason, detail=detail, outputs=report.outputs)
