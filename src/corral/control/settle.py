# SPDX-License-Identifier: Apache-2.0
"""The transactions that end, retry, withdraw and cancel: used by every service, so that each way out settles job,
attempt, agent and run together. Functions over a connection; what they return only says whom to wake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection

from corral.control import bell
from corral.control.bell import Bell
from corral.decide import progress, settling
from corral.decide.progress import JobFacts, RunPlan
from corral.decide.scaling import ReleaseReason
from corral.model.expressions import Context, truth
from corral.model.ids import AgentId, JobId, RunId
from corral.model.records import Attempt, Job, Run
from corral.model.spec import NeedResult, Reason, Result
from corral.model.states import JOB, AttemptEvent, JobEvent, JobState, RunEvent, StepEvent
from corral.store.repo import agents, jobs, runs, secrets
from corral.store.repo.installation import now

CANCEL_GRACE = 10.0
"""Seconds between the first signal and SIGKILL of a cancelled job."""
CANCEL_MARGIN = 30.0
"""Seconds beyond the grace for cleanup steps and the last log, before the job is ended without its agent."""
SECOND = 1_000_000


@dataclass(kw_only=True)
class Wake:
    """Whom a committed transaction concerns; collected, and rung after the commit."""

    runs: set[RunId] = field(default_factory=set)
    queue: bool = False
    stops: bool = False
    withdrawn: list[tuple[AgentId, JobId, int]] = field(default_factory=list)
    """Offers taken back: told to the agent where it is connected."""
    ended: list[JobState] = field(default_factory=list)
    """One for each job that ended, for whoever counts."""


def job_facts(job: Job) -> JobFacts:
    return JobFacts(
        id=job.id,
        base=job.base,
        state=job.state,
        spec=job.spec,
        matrix=job.matrix,
        outputs=job.outputs,
        reason=job.reason,
    )


def run_context(run: Run) -> dict[str, str]:
    """What expressions see as ``run``."""
    return {"id": run.id, "workflow": run.workflow, "project": run.project, "title": run.title}


# --- a run goes on -----------------------------------------------------------------------------------------


def continue_run(connection: Connection, run_id: RunId, wake: Wake) -> None:
    """Carry out what follows from the present state, until nothing does."""
    wake.runs.add(run_id)
    while True:
        run = runs.get(connection, run_id)
        if run is None:
            return
        rows = {job.id: job for job in jobs.of_run(connection, run_id)}
        cancelled = Reason(run.cancel_reason) if run.cancel_requested_at is not None else Reason.NONE
        plan = progress.plan(
            run.state, [job_facts(job) for job in rows.values()], condition_of(run), cancelled=cancelled
        )
        if not plan:
            return
        _apply(connection, run, rows, plan, wake)


def condition_of(run: Run) -> progress.Condition:
    """Evaluates ``if`` expressions of a run's jobs."""

    def holds(job: JobFacts, needs: Mapping[str, NeedResult]) -> bool:
        results = [need.result for need in needs.values()]
        context = Context(
            needs=needs,
            matrix=job.matrix,
            run=run_context(run),
            event=run.event,
            success=all(result is Result.SUCCEEDED for result in results),
            failure=any(result is Result.FAILED for result in results),
            cancelled=run.cancel_requested_at is not None,
        )
        return truth(job.spec.condition, context)

    return holds


def _apply(connection: Connection, run: Run, rows: Mapping[JobId, Job], plan: RunPlan, wake: Wake) -> None:
    for job_id in plan.ready:
        wake.queue |= jobs.advance(connection, rows[job_id], JobEvent.READY)
    finished = 0
    for skip in plan.skip:
        finished += _ended(connection, rows[skip.job_id], JobEvent.SKIP, wake, reason=skip.reason, detail=skip.detail)
    for skip in plan.fail:
        finished += _ended(connection, rows[skip.job_id], JobEvent.FAIL, wake, reason=skip.reason, detail=skip.detail)
    for job_id in plan.cancel_waiting:
        finished += _cancel_unplaced(connection, rows[job_id], _stop_reason(run), wake)
    for job_id in plan.cancel_placed:
        _begin_cancel(connection, rows[job_id], _stop_reason(run), wake)
    if finished:
        runs.count_finished(connection, run.id, finished)
    if plan.end is not None:
        runs.advance(connection, run, plan.end, reason=plan.reason, detail=plan.detail or _timeout(run, plan))
        secrets.wipe(connection, run.id)


def _ended(connection: Connection, job: Job, event: JobEvent, wake: Wake, *, reason: Reason, detail: str = "") -> bool:
    done = jobs.advance(connection, job, event, reason=reason, detail=detail)
    if done:
        wake.ended.append(JOB.advance(job.state, event))
    return done


def _timeout(run: Run, plan: RunPlan) -> str:
    """Whose deadline it was that ended the run."""
    if plan.reason is not Reason.RUN_TIMEOUT or run.deadline_at is None:
        return ""
    return f"the run had not ended after its timeout of {round((run.deadline_at - run.created_at) / SECOND, 1):g} s"


def _stop_reason(run: Run) -> Reason:
    return Reason(run.cancel_reason) if run.cancel_requested_at is not None else Reason.FAIL_FAST


def _cancel_unplaced(connection: Connection, job: Job, reason: Reason, wake: Wake) -> bool:
    if job.state is JobState.OFFERED and job.agent_id is not None:
        row = jobs.attempt(connection, job.id, job.attempt)
        if row is not None:
            jobs.advance_attempt(connection, row, AttemptEvent.END_CANCELLED, reason=reason)
        agents.unassign(connection, job.agent_id, job_id=job.id, attempt=job.attempt)
        wake.withdrawn.append((job.agent_id, job.id, job.attempt))
    return _ended(connection, job, JobEvent.END_CANCELLED, wake, reason=reason)


def _begin_cancel(connection: Connection, job: Job, reason: Reason, wake: Wake) -> None:
    limit = now(connection) + int((CANCEL_GRACE + CANCEL_MARGIN) * SECOND)
    wake.stops |= jobs.advance(connection, job, JobEvent.CANCEL, reason=reason, cancel_deadline_at=limit)


def cancel_run(connection: Connection, run: Run, *, force: bool, reason: Reason, wake: Wake) -> None:
    """Wish, state and what follows in one transaction. Asking again changes nothing but ``force``."""
    runs.request_cancel(connection, run.id, force=force, reason=reason)
    runs.advance(connection, run, RunEvent.CANCEL)
    wake.stops = True
    continue_run(connection, run.id, wake)


# --- an attempt ends ---------------------------------------------------------------------------------------


def end_job(
    connection: Connection,
    job: Job,
    event: JobEvent,
    wake: Wake,
    *,
    reason: str = "",
    detail: str = "",
    outputs: dict[str, str] | None = None,
) -> bool:
    """The job's terminal event, and what follows for its run. False: somebody else was first."""
    if not jobs.advance(
        connection, job, event, reason=reason, detail=detail, outputs=outputs if outputs is not None else {}
    ):
        return False
    wake.ended.append(JOB.advance(job.state, event))
    runs.count_finished(connection, job.run_id, 1)
    wake.runs.add(job.run_id)
    _continue_after(connection, job.run_id, wake, failed=event is not JobEvent.SUCCEED)
    return True


def _continue_after(connection: Connection, run_id: RunId, wake: Wake, *, failed: bool) -> None:
    """Look at the whole run only where one end can matter to others: a run of a thousand jobs ends a thousand times."""
    total, finished, cancelling = runs.counts(connection, run_id)
    if finished >= total or failed or cancelling or jobs.has_waiting(connection, run_id):
        continue_run(connection, run_id, wake)


def requeue(
    connection: Connection, job: Job, event: JobEvent, wake: Wake, *, pause: float, offers: int, tries: int
) -> bool:
    """Back into the queue after ``pause`` seconds."""
    ready_at = now(connection) + int(pause * SECOND)
    moved = jobs.advance(connection, job, event, ready_at=ready_at, offers=offers, tries=tries, reason="", detail="")
    wake.queue |= moved
    wake.runs.add(job.run_id)
    return moved


def withdraw(connection: Connection, row: Attempt, reason: str, wake: Wake, *, counts: bool = True) -> bool:
    """An offer that nobody will start: the job is queued again and no try is spent.

    ``counts``: it counts towards the offers that nobody took (an agent's decline does, a coordinator's restart not).
    """
    if not jobs.advance_attempt(connection, row, AttemptEvent.WITHDRAW, reason=reason):
        return False
    agents.unassign(connection, row.agent_id, job_id=row.job_id, attempt=row.number)
    wake.withdrawn.append((row.agent_id, row.job_id, row.number))
    job = jobs.get(connection, row.job_id)
    if job is None or job.attempt != row.number:
        return True
    if job.state is JobState.CANCELLING:
        return end_job(connection, job, stopped(job), wake, reason=job.reason)
    offers = job.offers + 1 if counts else job.offers
    if offers >= settling.OFFERS_MAX:
        detail = f"{offers} offers in a row were not taken; the last by {row.agent_id}: {reason}"
        return end_job(connection, job, JobEvent.FAIL, wake, reason=Reason.OFFERS_EXHAUSTED, detail=detail)
    pause = settling.offer_pause(offers) if counts else 0.0
    if job.state is JobState.OFFERED:
        return requeue(connection, job, JobEvent.WITHDRAW, wake, pause=pause, offers=offers, tries=job.tries)
    # A committed start that never reached the agent had no effect: the try is given back.
    return requeue(connection, job, JobEvent.RETRY, wake, pause=pause, offers=offers, tries=job.tries - 1)


def lose(connection: Connection, row: Attempt, reason: Reason, detail: str, wake: Wake, *, instance_gone: bool) -> None:
    """The agent or instance of an attempt went away: its job is settled by its policy in this transaction."""
    if row.started_at is None:
        withdraw(connection, row, detail or reason, wake, counts=False)
        return
    job = jobs.get(connection, row.job_id)
    if job is None or job.attempt != row.number:
        jobs.advance_attempt(connection, row, AttemptEvent.LOSE, reason=reason, detail=detail)
        return
    settlement = settling.after_loss(job.spec, job.tries, instance_gone=instance_gone)
    if settlement.next is settling.Next.WAIT and job.state is not JobState.CANCELLING:
        return
    if not jobs.advance_attempt(connection, row, AttemptEvent.LOSE, reason=reason, detail=detail):
        return
    agents.unassign(connection, row.agent_id, job_id=row.job_id, attempt=row.number, cordon="lost")
    _lose_steps(connection, job, row.number)
    runs.mark_log_incomplete(connection, job.run_id)
    if job.state is JobState.CANCELLING:
        end_job(connection, job, stopped(job), wake, reason=job.reason, detail=detail)
    elif settlement.next is settling.Next.RETRY:
        requeue(connection, job, JobEvent.RETRY, wake, pause=settlement.pause, offers=0, tries=job.tries)
    else:
        end_job(connection, job, JobEvent.FAIL, wake, reason=reason, detail=detail)


def _lose_steps(connection: Connection, job: Job, attempt: int) -> None:
    for step in jobs.steps_of(connection, job.id, attempt):
        jobs.advance_step(connection, job.id, attempt, step.number, StepEvent.LOSE)


def stopped(job: Job) -> JobEvent:
    """How a job ends that was told to stop: a timeout is a failure, everything else a cancellation."""
    return JobEvent.FAIL if job.reason == Reason.JOB_TIMEOUT else JobEvent.END_CANCELLED


def give_up_cancelling(connection: Connection, job: Job, wake: Wake) -> None:
    """The cancel's own deadline passed: end the job without its agent, which is then given back."""
    row = jobs.attempt(connection, job.id, job.attempt)
    detail = "the agent did not confirm the cancel in time"
    if row is not None:
        jobs.advance_attempt(connection, row, AttemptEvent.END_CANCELLED, reason=job.reason, detail=detail)
        agents.unassign(connection, row.agent_id, job_id=job.id, attempt=row.number, cordon=ReleaseReason.UNRESPONSIVE)
        _lose_steps(connection, job, row.number)
    runs.mark_log_incomplete(connection, job.run_id)
    end_job(connection, job, stopped(job), wake, reason=job.reason, detail=detail)


def ring(to: Bell, wake: Wake) -> None:
    """Tell everyone a committed transaction concerns."""
    for run_id in wake.runs:
        to.ring(bell.run_topic(run_id))
    for state in wake.ended:
        to.ring(bell.ended_topic(state))
    if wake.queue:
        to.ring(bell.QUEUE, bell.SCALE)
    if wake.stops or wake.withdrawn:
        to.ring(bell.STOPS, bell.SCALE)
