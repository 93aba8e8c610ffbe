# SPDX-License-Identifier: Apache-2.0
"""How a run goes on: which jobs become ready, which are skipped or cancelled, and when the run has ended.

Called after every end of a job, in the same transaction, and by a sweep that repairs whatever was missed. Applying
the plan and planning again yields the empty plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from corral.model.errors import PermanentError
from corral.model.ids import JobId
from corral.model.spec import CombinationResult, JobSpec, NeedResult, NeedWhen, Reason, Result, Scalar
from corral.model.states import JOB, JobState, RunEvent, RunState

_RESULT = {
    JobState.SUCCEEDED: Result.SUCCEEDED,
    JobState.FAILED: Result.FAILED,
    JobState.CANCELLED: Result.CANCELLED,
    JobState.SKIPPED: Result.SKIPPED,
}


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    id: JobId
    base: str
    state: JobState
    spec: JobSpec
    matrix: Mapping[str, Scalar]
    outputs: Mapping[str, str]
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Skip:
    job_id: JobId
    reason: Reason
    detail: str


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """``fail``: waiting jobs that can never start. ``cancel_waiting``: not placed yet, ended at once;
    ``cancel_placed``: on an agent, told to stop. ``end``: the run's own last event."""

    ready: tuple[JobId, ...] = ()
    skip: tuple[Skip, ...] = ()
    fail: tuple[Skip, ...] = ()
    cancel_waiting: tuple[JobId, ...] = ()
    cancel_placed: tuple[JobId, ...] = ()
    end: RunEvent | None = None
    reason: Reason = Reason.NONE
    detail: str = ""

    def __bool__(self) -> bool:
        return bool(
            self.ready or self.skip or self.fail or self.cancel_waiting or self.cancel_placed or self.end is not None
        )


Condition = Callable[[JobFacts, Mapping[str, NeedResult]], bool]
"""Evaluates a job's ``if`` expression. :raises PermanentError: it cannot be evaluated."""


def plan(run: RunState, jobs: Sequence[JobFacts], condition: Condition, *, cancelled: Reason = Reason.NONE) -> RunPlan:
    """What follows from the present state of all jobs of one run.

    ``cancelled``: the reason for which the run is being cancelled; none: it is not.
    """
    by_base: dict[str, list[JobFacts]] = {}
    for job in jobs:
        by_base.setdefault(job.base, []).append(job)
    if run in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED):
        return RunPlan()
    if cancelled is not Reason.NONE:
        stopping = _cancel_all(jobs)
    else:
        stopping = _fail_fast(by_base)
    decided = set(stopping.cancel_waiting)
    ready, skip, fail = _waiting(jobs, by_base, decided, condition)
    if ready or skip or fail or stopping.cancel_waiting or stopping.cancel_placed:
        return RunPlan(
            ready=ready,
            skip=skip,
            fail=fail,
            cancel_waiting=stopping.cancel_waiting,
            cancel_placed=stopping.cancel_placed,
        )
    if all(job.state in JOB.terminal for job in jobs):
        return _ending(run, jobs, cancelled)
    return RunPlan()


# --- needs -------------------------------------------------------------------------------------------------


def need_result(jobs: Sequence[JobFacts]) -> NeedResult:
    """All combinations of one job together: the worst end of any, the outputs merged in order.

    A failed job marked ``continue_on_error`` counts as succeeded for those who need it.
    """
    results = [_effective(job) for job in jobs]
    outputs: dict[str, str] = {}
    for job in jobs:
        outputs.update(job.outputs)
    combinations = tuple(
        CombinationResult(matrix=dict(job.matrix), result=_RESULT[job.state], outputs=dict(job.outputs))
        for job in jobs
        if job.matrix
    )
    return NeedResult(result=_worst(results), outputs=outputs, combinations=combinations)


def needs_of(job: JobFacts, by_base: Mapping[str, Sequence[JobFacts]]) -> dict[str, NeedResult]:
    """What each upstream job came to; only for a job whose upstream has ended."""
    return {need.job: need_result(by_base[need.job]) for need in job.spec.needs if need.job in by_base}


def _effective(job: JobFacts) -> Result:
    if job.state is JobState.FAILED and job.spec.continue_on_error:
        return Result.SUCCEEDED
    return _RESULT[job.state]


def _worst(results: Sequence[Result]) -> Result:
    for result in (Result.FAILED, Result.CANCELLED, Result.SUCCEEDED):
        if result in results:
            return result
    return Result.SKIPPED


def _edge_holds(when: NeedWhen, result: Result) -> bool:
    match when:
        case NeedWhen.SUCCESS:
            return result is Result.SUCCEEDED
        case NeedWhen.FAILURE:
            return result is Result.FAILED
        case NeedWhen.ALWAYS:
            return True


def _waiting(
    jobs: Sequence[JobFacts], by_base: Mapping[str, Sequence[JobFacts]], decided: set[JobId], condition: Condition
) -> tuple[tuple[JobId, ...], tuple[Skip, ...], tuple[Skip, ...]]:
    ready: list[JobId] = []
    skip: list[Skip] = []
    fail: list[Skip] = []
    slots = {base: _slots(members) for base, members in by_base.items()}
    for job in jobs:
        if job.state is not JobState.WAITING or job.id in decided or not _upstream_ended(job, by_base):
            continue
        verdict = _judge(job, by_base, condition)
        if isinstance(verdict, Skip):
            (fail if verdict.reason is Reason.EXPRESSION_FAILED else skip).append(verdict)
        elif slots[job.base] > 0:
            slots[job.base] -= 1
            ready.append(job.id)
    return tuple(ready), tuple(skip), tuple(fail)


def _slots(members: Sequence[JobFacts]) -> int:
    """How many more combinations of a job may be queued or running under its ``max_parallel``."""
    limit = members[0].spec.max_parallel
    if limit is None:
        return len(members)
    active = sum(1 for job in members if job.state not in JOB.terminal and job.state is not JobState.WAITING)
    return max(0, limit - active)


def _upstream_ended(job: JobFacts, by_base: Mapping[str, Sequence[JobFacts]]) -> bool:
    return all(upstream.state in JOB.terminal for need in job.spec.needs for upstream in by_base.get(need.job, ()))


def _judge(job: JobFacts, by_base: Mapping[str, Sequence[JobFacts]], condition: Condition) -> Skip | None:
    """Why the job is skipped, or None: it is ready."""
    needs = needs_of(job, by_base)
    for edge in job.spec.needs:
        upstream = needs.get(edge.job)
        if upstream is not None and not _edge_holds(edge.when, upstream.result):
            return Skip(
                job_id=job.id,
                reason=Reason.NEED_NOT_MET,
                detail=f"needs {edge.job} with {edge.when}, which ended {upstream.result}",
            )
    if not job.spec.condition:
        return None
    try:
        holds = condition(job, needs)
    except PermanentError as error:
        return Skip(job_id=job.id, reason=Reason.EXPRESSION_FAILED, detail=error.message)
    if holds:
        return None
    return Skip(job_id=job.id, reason=Reason.CONDITION_FALSE, detail=f"if: {job.spec.condition}")


# --- stopping and ending -----------------------------------------------------------------------------------


def _cancel_all(jobs: Sequence[JobFacts]) -> RunPlan:
    return _cancel([job for job in jobs if job.state not in JOB.terminal])


def _fail_fast(by_base: Mapping[str, Sequence[JobFacts]]) -> RunPlan:
    """Siblings of a failed combination, where the author asked for it."""
    doomed = [
        job
        for members in by_base.values()
        if members[0].spec.fail_fast
        and any(_effective(member) is Result.FAILED for member in members if _ended(member))
        for job in members
        if not _ended(job)
    ]
    return _cancel(doomed)


def _ended(job: JobFacts) -> bool:
    return job.state in JOB.terminal


def _cancel(jobs: Sequence[JobFacts]) -> RunPlan:
    not_placed = (JobState.WAITING, JobState.QUEUED, JobState.OFFERED)
    return RunPlan(
        cancel_waiting=tuple(job.id for job in jobs if job.state in not_placed),
        cancel_placed=tuple(job.id for job in jobs if job.state is JobState.RUNNING),
    )


def _ending(run: RunState, jobs: Sequence[JobFacts], cancelled: Reason) -> RunPlan:
    failed = [job for job in jobs if _effective(job) is Result.FAILED]
    stopped = [job for job in jobs if job.state is JobState.CANCELLED]
    if cancelled is not Reason.NONE and stopped:
        if cancelled is Reason.RUN_TIMEOUT:
            return RunPlan(end=RunEvent.FAIL, reason=cancelled)
        return RunPlan(end=RunEvent.END_CANCELLED, reason=cancelled)
    if failed:
        return RunPlan(end=RunEvent.FAIL, reason=Reason(failed[0].reason or Reason.NONE), detail=_names(failed))
    if stopped:
        # Nobody asked for it: fail_fast siblings come with a failure, so this is an internal stop.
        return RunPlan(end=RunEvent.FAIL, reason=Reason.CANCELLED, detail=_names(stopped))
    return RunPlan(end=RunEvent.SUCCEED)


def _names(jobs: Sequence[JobFacts]) -> str:
    return ", ".join(sorted({job.base for job in jobs}))
