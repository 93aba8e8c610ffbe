# SPDX-License-Identifier: Apache-2.0
"""How far a job is, and what that means for the next step and for the job's result. Pure."""

from __future__ import annotations

from corral.agent.outputs import total_fault
from corral.model.expressions import Context, ExpressionError, expand, run_values, truth
from corral.model.expressions import StepOutcome as Past
from corral.model.spec import JobOrder, Reason, Result, StepSpec
from corral.wire.agent import JobOutcome, StepOutcome


class Progress:
    def __init__(self, order: JobOrder) -> None:
        self._order = order
        self._past: dict[str, Past] = {}
        self._failed: tuple[StepSpec, StepOutcome] | None = None
        self.halted: Reason | None = None

    def context(self) -> Context:
        """What the next step's expressions may look at."""
        return Context(
            needs=self._order.needs,
            matrix=self._order.matrix,
            env=self._order.spec.env,
            run=run_values(self._order),
            event=self._order.event,
            steps=self._past,
            success=self._failed is None and self.halted is None,
            failure=self._failed is not None,
            cancelled=self.halted is not None,
        )

    def wanted(self, step: StepSpec, *, cleanup: bool) -> StepOutcome | None:
        """None: run it. Else how it ends without running."""
        if cleanup and not step.condition.strip():
            return None
        try:
            if truth(step.condition, self.context()):
                return None
        except ExpressionError as error:
            return StepOutcome(
                result=Result.FAILED,
                reason=Reason.EXPRESSION_FAILED,
                detail=f"the condition of step {step.name!r} has no value: {error}",
            )
        return StepOutcome(result=Result.SKIPPED, reason=self._why_skipped(), detail="")

    def _why_skipped(self) -> Reason:
        return self.halted if self.halted is not None else Reason.CONDITION_FALSE

    def environment(self, step: StepSpec) -> dict[str, str]:
        """The job's variables and over them the step's, templates expanded.

        :raises ExpressionError: a template has no value.
        """
        context = self.context()
        return {**self._order.spec.env, **{name: expand(text, context) for name, text in step.env.items()}}

    def record(self, step: StepSpec, outcome: StepOutcome) -> None:
        self._past[step.name] = Past(result=outcome.result, outputs=outcome.outputs)
        if outcome.result is Result.FAILED and not step.continue_on_error and self._failed is None:
            self._failed = (step, outcome)

    def end(self) -> JobOutcome:
        """The job's result after its last step."""
        if self.halted is not None:
            return self._halted_end(self.halted)
        if self._failed is not None:
            step, outcome = self._failed
            return JobOutcome(
                result=Result.FAILED,
                reason=outcome.reason,
                detail=outcome.detail or f"step {step.name!r} failed",
                outputs=self._outputs_or_none(),
            )
        try:
            return JobOutcome(result=Result.SUCCEEDED, outputs=self._outputs())
        except ExpressionError as error:
            return JobOutcome(result=Result.FAILED, reason=Reason.EXPRESSION_FAILED, detail=f"outputs: {error}")
        except ValueError as error:
            return JobOutcome(result=Result.FAILED, reason=Reason.OUTPUTS_INVALID, detail=str(error))

    def _halted_end(self, reason: Reason) -> JobOutcome:
        if reason is Reason.JOB_TIMEOUT:
            detail = f"the job ran into its own timeout of {self._order.spec.timeout:g} s"
            return JobOutcome(result=Result.FAILED, reason=reason, detail=detail)
        if reason is Reason.AGENT_LOST:
            return JobOutcome(result=Result.LOST, reason=reason, detail="the agent had to end the job")
        return JobOutcome(result=Result.CANCELLED, reason=reason)

    def _outputs(self) -> dict[str, str]:
        """:raises ExpressionError: :raises ValueError: together above the limit."""
        outputs = self._declared() if self._order.spec.outputs else self._union()
        fault = total_fault(outputs)
        if fault is not None:
            raise ValueError(fault)
        return outputs

    def _declared(self) -> dict[str, str]:
        context = self.context()
        return {name: expand(template, context) for name, template in self._order.spec.outputs.items()}

    def _union(self) -> dict[str, str]:
        merged: dict[str, str] = {}
        for past in self._past.values():
            merged.update(past.outputs)
        return merged

    def _outputs_or_none(self) -> dict[str, str]:
        try:
            return self._outputs()
        except (ExpressionError, ValueError):
            return {}
