# SPDX-License-Identifier: Apache-2.0
"""Writes out what a step's condition leaves unsaid, so that whoever evaluates the lock needs no rule of its own.

``matrix.os == "linux"`` on a step means "and nothing failed before": the lock says ``success() and (…)``. A cleanup
step runs whatever happened: the lock says ``always()``. A condition that asks for the status itself is left alone,
and so is a job's: which ends of the jobs before it count is said by its needs.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral.model.expressions import STATUS_FUNCTIONS, ExpressionError, parse
from corral.model.spec import JobSpec, StepSpec, WorkflowSpec


def guard(workflow: WorkflowSpec) -> WorkflowSpec:
    """The workflow with every step's condition complete."""
    return replace(workflow, jobs=tuple(_job(job) for job in workflow.jobs))


def _job(job: JobSpec) -> JobSpec:
    steps = tuple(replace(step, condition=_guarded(step.condition)) for step in job.steps)
    return replace(job, steps=steps, cleanup=tuple(_cleanup(step) for step in job.cleanup))


def _cleanup(step: StepSpec) -> StepSpec:
    return step if step.condition.strip() else replace(step, condition="always()")


def _guarded(condition: str) -> str:
    if not condition.strip():
        return ""
    try:
        asks = parse(condition).calls() & STATUS_FUNCTIONS
    except ExpressionError:
        return condition  # a fault, which the checks report
    return condition if asks else f"success() and ({condition.strip()})"
