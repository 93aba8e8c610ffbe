# SPDX-License-Identifier: Apache-2.0
"""What an agent reports, applied in one transaction: idempotent by (job, attempt, sequence), forward only.

A report may come late, twice, or before the answer to the call that caused it; terminal absorbs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from sqlalchemy import Connection

from corral.control import settle
from corral.control.settle import Wake
from corral.decide import settling
from corral.decide.scaling import ReleaseReason
from corral.model.errors import Conflict
from corral.model.ids import AgentId, JobId
from corral.model.records import Attempt, Job
from corral.model.spec import OUTPUT_LIMIT, OUTPUT_VALUE_LIMIT, Reason, Result
from corral.model.states import ATTEMPT, AttemptEvent, AttemptState, JobEvent, JobState, StepEvent
from corral.store.repo import agents, jobs, runs
from corral.store.repo.rows import NOW
from corral.wire.messages import JobFinished, Report, StepFinished, StepStarted

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
    Result.LOST: AttemptEvent.LOSE,
}


@dataclass(kw_only=True)
class Applied:
    """``finished``: attempts whose end is committed and may be acknowledged."""

    finished: list[tuple[JobId, int]] = field(default_factory=list)
    wake: Wake = field(default_factory=Wake)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Bytes of one step's log that the coordinator gave up waiting for; ``stored`` is what there is."""

    step: int
    stored: int
    missing: int


def apply(
    connection: Connection,
    agent_id: AgentId,
    session: int,
    reports: Sequence[Report],
    *,
    single_use: bool,
    lost: Sequence[Loss] = (),
) -> Applied:
    """All of ``reports``, in their order. ``lost`` is about the one job whose end is among them, and is stated with it.

    :raises Conflict: the session is not the newest; nothing is written.
    """
    if agents.session_of(connection, agent_id) != session:
        raise Conflict("a newer session of this agent has taken over")
    applied = Applied()
    for (job_id, number), batch in _by_attempt(reports).items():
        _apply_batch(connection, agent_id, job_id, number, batch, single_use, applied)
        for loss in lost:
            _state_loss(connection, job_id, number, loss)
    return applied


def _state_loss(connection: Connection, job_id: JobId, number: int, loss: Loss) -> None:
    """``log_size`` is what the log holds, ``log_missing`` what was printed and is not in it."""
    step = jobs.step(connection, job_id, number, loss.step)
    run_id = jobs.run_of(connection, job_id)
    if step is None or run_id is None or step.log_size is None or step.log_size <= loss.stored:
        return
    jobs.change_step(
        connection,
        job_id,
        number,
        loss.step,
        log_size=loss.stored,
        log_digest="",
        log_missing=step.log_missing + loss.missing,
    )
    runs.mark_log_incomplete(connection, run_id)


def _by_attempt(reports: Sequence[Report]) -> dict[tuple[JobId, int], list[Report]]:
    grouped: dict[tuple[JobId, int], list[Report]] = {}
    for report in reports:
        grouped.setdefault((JobId(report.job_id), report.attempt), []).append(report)
    return grouped


def _apply_batch(
    connection: Connection,
    agent_id: AgentId,
    job_id: JobId,
    number: int,
    batch: Sequence[Report],
    single_use: bool,
    applied: Applied,
) -> None:
    row = jobs.attempt(connection, job_id, number)
    if row is None or row.agent_id != agent_id or row.state in ATTEMPT.terminal or row.started_at is None:
        # Settled without this agent, or not its attempt at all: it may forget the job, nothing changes here.
        ends = [(job_id, number) for report in batch if isinstance(report, JobFinished)]
        applied.finished += ends
        if ends:
            # Its log came before: an agent that was given up for lost has no more to give.
            agents.recordon(connection, agent_id, ReleaseReason.LOST, ReleaseReason.RETURNED)
        return
    news = [report for report in batch if report.sequence > row.sequence]
    if not news:
        return
    _apply_steps(connection, job_id, number, news)
    sequence = max(report.sequence for report in news)
    end = next((report for report in news if isinstance(report, JobFinished)), None)
    if end is None:
        _note(connection, row, sequence)
        run_id = jobs.run_of(connection, job_id)
        if run_id is not None:
            applied.wake.runs.add(run_id)
    else:
        _finish_job(connection, row, end, sequence, single_use, applied)


def _note(connection: Connection, row: Attempt, sequence: int) -> None:
    """The attempt has begun, and how far its reports are known."""
    if row.state is AttemptState.STARTING:
        jobs.advance_attempt(connection, row, AttemptEvent.BEGAN, began_at=NOW, sequence=sequence)
    else:
        jobs.change_attempt(connection, row, sequence=sequence)


def _apply_steps(connection: Connection, job_id: JobId, number: int, news: Sequence[Report]) -> None:
    """A step whose beginning and end come together is written once."""
    ended = {report.step for report in news if isinstance(report, StepFinished)}
    begun = {report.step for report in news if isinstance(report, StepStarted)}
    for report in news:
        match report:
            case StepStarted() if report.step not in ended:
                jobs.advance_step(connection, job_id, number, report.step, StepEvent.START, started_at=NOW)
            case StepFinished():
                _finish_step(connection, job_id, report, begun=report.step in begun)
            case _:
                pass


def _finish_step(connection: Connection, job_id: JobId, report: StepFinished, *, begun: bool) -> None:
    values = {"started_at": NOW} if begun else {}
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
        outputs={} if _outputs_fault(report.outputs) else report.outputs,
        log_size=report.log_size,
        log_digest=report.log_digest,
        log_missing=report.log_dropped,
        finished_at=NOW,
        **values,
    )
    run_id = jobs.run_of(connection, job_id) if report.log_dropped else None
    if run_id is not None:
        runs.mark_log_incomplete(connection, run_id)


def _finish_job(
    connection: Connection, row: Attempt, report: JobFinished, sequence: int, single_use: bool, applied: Applied
) -> None:
    end = _checked(report)
    began = {"began_at": NOW} if row.began_at is None else {}
    event = _ATTEMPT_EVENT[end.result]
    jobs.advance_attempt(connection, row, event, reason=end.reason, detail=end.detail, sequence=sequence, **began)
    cordon = ReleaseReason.JOB_COMPLETE if single_use else None
    agents.unassign(connection, row.agent_id, job_id=row.job_id, attempt=row.number, cordon=cordon)
    applied.finished.append((row.job_id, row.number))
    applied.wake.queue = True
    job = jobs.get(connection, row.job_id)
    if job is None or job.attempt != row.number:
        return
    applied.wake.runs.add(job.run_id)
    _end_or_retry(connection, job, end, applied.wake)


def _checked(report: JobFinished) -> JobFinished:
    """The agent enforces the limits too; a job does not become green, nor the database large, by one that does not."""
    fault = _outputs_fault(report.outputs)
    if not fault:
        return report
    return msgspec.structs.replace(
        report, result=Result.FAILED, reason=Reason.OUTPUTS_INVALID, detail=fault, outputs={}
    )


def _outputs_fault(outputs: Mapping[str, str]) -> str:
    """Which limit they exceed, as a sentence; empty: none."""
    sizes = {name: len(value.encode()) for name, value in outputs.items()}
    total = sum(len(name.encode()) + size for name, size in sizes.items())
    if total > OUTPUT_LIMIT:
        return f"outputs have {total} bytes; the limit is {OUTPUT_LIMIT}"
    large = [name for name, size in sizes.items() if size > OUTPUT_VALUE_LIMIT]
    return f"output {large[0]} has {sizes[large[0]]} bytes; the limit is {OUTPUT_VALUE_LIMIT}" if large else ""


def _end_or_retry(connection: Connection, job: Job, end: JobFinished, wake: Wake) -> None:
    result, reason, detail = end.result, end.reason, end.detail
    if job.state is JobState.CANCELLING and result is not Result.SUCCEEDED:
        settle.end_job(connection, job, settle.stopped(job), wake, reason=job.reason, detail=detail)
        return
    if result is Result.LOST:
        # The agent itself ended it: its grant ran out, or its host told it to stop.
        settlement = settling.after_loss(job.spec, job.tries, instance_gone=True)
    else:
        settlement = settling.after_failure(job.spec, job.tries, result, reason)
    if settlement.next is settling.Next.RETRY and job.state is JobState.RUNNING:
        settle.requeue(connection, job, JobEvent.RETRY, wake, pause=settlement.pause, offers=0, tries=job.tries)
        return
    event = {Result.SUCCEEDED: JobEvent.SUCCEED, Result.SKIPPED: JobEvent.SUCCEED}.get(result, JobEvent.FAIL)
    if result is Result.CANCELLED:
        event = JobEvent.END_CANCELLED
    settle.end_job(connection, job, event, wake, reason=reason, detail=detail, outputs=end.outputs)
