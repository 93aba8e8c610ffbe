# SPDX-License-Identifier: Apache-2.0
"""One job on this host, from its empty directory to its result with nothing of it left running."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from corral.agent import kernel, pyenv, workdir
from corral.agent.command import CannotRun
from corral.agent.environment import base, inherited
from corral.agent.halt import Halt
from corral.agent.interface import Reports
from corral.agent.joblogs import JobLogs
from corral.agent.masks import JobMasks
from corral.agent.process import CannotStart
from corral.agent.progress import Progress
from corral.agent.source import BadArchive, Sources, SourceUnavailable
from corral.agent.spool import Budget
from corral.agent.steprun import Place, StepRuns
from corral.model.expressions import ExpressionError, run_values
from corral.model.spec import JobOrder, Reason, Result, StepSpec
from corral.wire.agent import JobOutcome, StepOutcome

log = logging.getLogger(__name__)

JOB_TIMEOUT_GRACE = 30.0
"""Seconds that a job has after its timeout: half for the step in hand, the rest for cleanup steps."""


class Host(NamedTuple):
    """What all jobs of one agent share. ``alone``: every child of this process belongs to the job in hand."""

    agent_id: str
    jobs: Path
    spool: Path
    cache: Path
    budget: Budget
    sources: Sources
    variables: Mapping[str, str]
    inherit: tuple[str, ...]
    own_prefixes: tuple[str, ...]
    nice: int
    alone: bool
    removals: set[asyncio.Task[None]]
    """Directories being deleted: off the way of the job's report, waited for before the agent ends."""


class JobFailed(Exception):
    """The job cannot go on; its outcome."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.outcome = JobOutcome(result=Result.FAILED, reason=reason, detail=detail)


class LocalJob:
    """A :class:`~corral.agent.interface.RunningJob`."""

    def __init__(self, order: JobOrder, secrets: Mapping[str, str], reports: Reports, host: Host) -> None:
        self._order = order
        self._secrets = dict(secrets)
        self._reports = reports
        self._host = host
        self._halt = Halt()
        self._stop_fetching = threading.Event()
        self.logs = JobLogs(host.spool, host.budget, order.log_limit, reports)
        self._task = asyncio.create_task(self._whole())

    async def wait(self) -> JobOutcome:
        return await asyncio.shield(self._task)

    def cancel(self, *, reason: Reason, grace: float, force: bool) -> None:
        self._stop_fetching.set()
        self._halt.ask(reason, grace=grace, force=force, now=asyncio.get_running_loop().time())

    def forget(self) -> None:
        self.logs.abandon()

    # --- the whole -----------------------------------------------------------------------------------------

    async def _whole(self) -> JobOutcome:
        timer = asyncio.get_running_loop().call_later(self._order.spec.timeout, self._time_is_up)
        directories: workdir.JobDirectories | None = None
        try:
            directories = workdir.create(self._host.jobs, f"{self._order.job_id}.{self._order.attempt}")
            return await _Course(self._order, self._secrets, self._reports, self._host, self._halt, self.logs).run(
                directories, self._stop_fetching
            )
        except JobFailed as error:
            return error.outcome
        except OSError as error:
            return JobOutcome(result=Result.FAILED, reason=_reason_of(error), detail=f"the agent's disk: {error}")
        finally:
            timer.cancel()
            await self._leave_nothing(directories)

    def _time_is_up(self) -> None:
        self.cancel(reason=Reason.JOB_TIMEOUT, grace=JOB_TIMEOUT_GRACE, force=False)

    async def _leave_nothing(self, directories: workdir.JobDirectories | None) -> None:
        if self._host.alone and kernel.has_children():
            left = await asyncio.to_thread(kernel.kill_descendants)
            if left:
                log.error("%d processes of job %s could not be killed", left, self._order.job_id)
        if directories is not None:
            removal = asyncio.create_task(asyncio.to_thread(workdir.remove, directories.root))
            self._host.removals.add(removal)
            removal.add_done_callback(self._host.removals.discard)


class _Course:
    """The steps of one job in order."""

    def __init__(
        self,
        order: JobOrder,
        secrets: Mapping[str, str],
        reports: Reports,
        host: Host,
        halt: Halt,
        logs: JobLogs,
    ) -> None:
        self._order = order
        self._secrets = secrets
        self._reports = reports
        self._host = host
        self._halt = halt
        self._logs = logs
        self._progress = Progress(order)

    async def run(self, directories: workdir.JobDirectories, stop: threading.Event) -> JobOutcome:
        steps = (*self._order.spec.steps, *self._order.spec.cleanup)
        try:
            await self._check_out(directories, stop)
            env = self._environment(directories)
            interpreter = pyenv.interpreter_of(self._order.spec.python, env)
        except CannotRun as error:
            raise self._none_ran(steps, 0, error.reason, str(error)) from None
        except (SourceUnavailable, BadArchive) as error:
            if self._halt.reason is None:
                raise self._none_ran(steps, 0, Reason.SOURCE_UNAVAILABLE, str(error)) from None
            return self._halted_before(steps)
        masks = JobMasks(self._secrets.values(), directories.run / "mask")
        place = Place(directories, interpreter, self._host.nice)
        runs = StepRuns(self._order.spec, place=place, logs=self._logs, masks=masks, halt=self._halt)
        env = await self._python(runs, env, interpreter, directories, steps)
        for index, step in enumerate(steps):
            await self._step(runs, index, step, env, cleanup=index >= len(self._order.spec.steps))
        self._progress.halted = self._halt.reason
        return self._progress.end()

    # --- before the steps ----------------------------------------------------------------------------------

    async def _check_out(self, directories: workdir.JobDirectories, stop: threading.Event) -> None:
        source = self._order.source
        if source is not None and self._order.spec.checkout:
            await asyncio.to_thread(self._host.sources.check_out, source, directories.work, stop)

    def _environment(self, directories: workdir.JobDirectories) -> dict[str, str]:
        order = self._order
        needs, context = directories.run / "needs.json", directories.run / "context.json"
        needs.write_bytes(msgspec.json.encode(order.needs))
        context.write_bytes(
            msgspec.json.encode(
                {"matrix": order.matrix, "needs": order.needs, "run": run_values(order), "event": order.event}
            )
        )
        return {
            **base(
                self._host.variables,
                home=str(directories.home),
                tmp=str(directories.tmp),
                own_prefixes=self._host.own_prefixes,
            ),
            **inherited(self._host.variables, self._host.inherit),
            **self._secrets,
            **order.spec.env,
            "CORRAL": "true",
            "CORRAL_RUN_ID": order.run_id,
            "CORRAL_JOB_ID": order.job_id,
            "CORRAL_JOB": order.name,
            "CORRAL_WORKFLOW": order.workflow,
            "CORRAL_ATTEMPT": str(order.attempt),
            "CORRAL_AGENT_ID": self._host.agent_id,
            "CORRAL_WORKSPACE": str(directories.work),
            "CORRAL_CACHE": str(self._host.cache),
            "CORRAL_NEEDS": str(needs),
            "CORRAL_MATRIX": msgspec.json.encode(order.matrix).decode(),
            "CORRAL_CONTEXT": str(context),
            "CORRAL_MASK": str(directories.run / "mask"),
        }

    async def _python(
        self,
        runs: StepRuns,
        env: dict[str, str],
        interpreter: str,
        directories: workdir.JobDirectories,
        steps: tuple[StepSpec, ...],
    ) -> dict[str, str]:
        """``env`` with the job's Python environment activated; its making is part of the first step's log."""
        python = self._order.spec.python
        if python is None or not python.requirements or not steps or self._halt.asked():
            return env
        place = pyenv.environment_path(self._host.cache, interpreter, python.requirements)

        async def run(command: object) -> int:
            assert isinstance(command, list)
            ran = await runs.process(0, command, env, directories.tmp, timeout=None)
            return ran.exit.code if ran.exit.code is not None else 128 + (ran.exit.signal or 0)

        try:
            await pyenv.build(place, interpreter, python.requirements, directories.run, run)
        except (CannotRun, CannotStart) as error:
            if self._halt.asked():
                return env
            self._reports.step_started(0)
            outcome = StepOutcome(result=Result.FAILED, reason=Reason.ENVIRONMENT_FAILED, detail=str(error))
            self._finish(0, steps[0], outcome)
            raise self._none_ran(steps, 1, Reason.ENVIRONMENT_FAILED, str(error)) from None
        runs.on_interpreter(str(place / "bin" / "python"))
        return pyenv.activated(env, place)

    def _none_ran(self, steps: tuple[StepSpec, ...], start: int, reason: Reason, detail: str) -> JobFailed:
        for index in range(start, len(steps)):
            self._reports.step_finished(index, StepOutcome(result=Result.SKIPPED, reason=reason))
        return JobFailed(reason, detail)

    def _halted_before(self, steps: tuple[StepSpec, ...]) -> JobOutcome:
        self._progress.halted = self._halt.reason
        for index in range(len(steps)):
            self._reports.step_finished(
                index, StepOutcome(result=Result.SKIPPED, reason=self._halt.reason or Reason.CANCELLED)
            )
        return self._progress.end()

    # --- steps ---------------------------------------------------------------------------------------------

    async def _step(self, runs: StepRuns, index: int, step: StepSpec, env: Mapping[str, str], *, cleanup: bool) -> None:
        self._progress.halted = self._halt.reason
        ends = self._progress.wanted(step, cleanup=cleanup)
        if ends is None and self._halt.force:
            ends = StepOutcome(result=Result.SKIPPED, reason=self._halt.reason or Reason.CANCELLED)
        if ends is not None:
            self._finish(index, step, ends)
            return
        self._reports.step_started(index)
        try:
            own = {**env, **self._progress.environment(step), **_identity(env, index, step)}
        except ExpressionError as error:
            detail = f"the environment of step {step.name!r}: {error}"
            self._finish(index, step, StepOutcome(result=Result.FAILED, reason=Reason.EXPRESSION_FAILED, detail=detail))
            return
        # After a halt, what still runs is held to what is left of the grace.
        late = cleanup or self._halt.reason is not None
        self._finish(index, step, await runs.step(index, step, own, cleanup=late))

    def _finish(self, index: int, step: StepSpec, outcome: StepOutcome) -> None:
        self._progress.record(step, outcome)
        if outcome.result is not Result.SKIPPED:
            digest = self._logs.close(index)
            outcome = msgspec.structs.replace(
                outcome, log_size=digest.size, log_digest=digest.sha256, log_dropped=digest.dropped
            )
        self._reports.step_finished(index, outcome)


def _identity(env: Mapping[str, str], index: int, step: StepSpec) -> dict[str, str]:
    """What a step's own variables cannot replace."""
    return {
        **{name: value for name, value in env.items() if name == "CORRAL" or name.startswith("CORRAL_")},
        "CORRAL_STEP": step.name,
        "CORRAL_STEP_INDEX": str(index),
    }


def _reason_of(error: OSError) -> Reason:
    import errno

    return Reason.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else Reason.INTERNAL
