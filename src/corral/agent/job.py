# SPDX-License-Identifier: Apache-2.0
"""One job on this host, from its empty directory to its result with nothing of it left running."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from corral.agent import cgroup, kernel, pyenv, workdir
from corral.agent.command import CannotRun
from corral.agent.environment import base, inherited
from corral.agent.gitfetch import GitFetch, passwords
from corral.agent.halt import Halt
from corral.agent.interface import Reports
from corral.agent.joblogs import JobLogs
from corral.agent.masks import JobMasks
from corral.agent.process import CannotStart
from corral.agent.progress import Progress
from corral.agent.source import BadArchive, Sources, SourceUnavailable
from corral.agent.spool import Budget
from corral.agent.steprun import Place, StepRuns, disk_reason
from corral.agent.stopping import Abandoned, Stop, in_thread
from corral.model.expressions import ExpressionError, run_values
from corral.model.spec import JobOrder, Reason, Resources, Result, StepSpec
from corral.wire.agent import JobOutcome, StepOutcome

log = logging.getLogger(__name__)

ENVIRONMENT_PAUSE = 0.2
"""Seconds between two looks whether another agent has made the Python environment."""
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
    git: GitFetch
    environments: pyenv.Environments
    cgroups: tuple[cgroup.Parent, ...]
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
        self._stop_fetching = Stop()
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
        name = f"{self._order.job_id}.{self._order.attempt}"
        # The pid keeps installations apart that know a job by the same name.
        group = cgroup.JobGroup(self._groups(), f"{name}.{os.getpid()}", memory=self._order.spec.resources.memory)
        directories: workdir.JobDirectories | None = None
        course = _Course(self._order, self._secrets, self._reports, self._host, self._halt, self.logs, group)
        try:
            directories = workdir.create(self._host.jobs, name)
            return await course.run(directories, self._stop_fetching)
        except JobFailed as error:
            return error.outcome
        except OSError as error:
            return course.none_ran(disk_reason(error), f"the agent's disk: {error}").outcome
        finally:
            timer.cancel()
            await self._leave_nothing(directories, group)

    def _groups(self) -> tuple[cgroup.Parent, ...]:
        """Only a job that says what it needs gets groups of its own: for every process that enters one, the kernel
        waits some 30 ms for all processors, longer than a short step runs."""
        return self._host.cgroups if self._order.spec.resources != Resources() else ()

    def _time_is_up(self) -> None:
        self.cancel(reason=Reason.JOB_TIMEOUT, grace=JOB_TIMEOUT_GRACE, force=False)

    async def _leave_nothing(self, directories: workdir.JobDirectories | None, group: cgroup.JobGroup) -> None:
        group.kill()
        if self._host.alone and kernel.has_children():
            left = await asyncio.to_thread(kernel.kill_descendants)
            if left:
                log.error("%d processes of job %s could not be killed", left, self._order.job_id)
        group.remove()
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
        group: cgroup.JobGroup,
    ) -> None:
        self._order = order
        self._secrets = secrets
        self._reports = reports
        self._host = host
        self._halt = halt
        self._logs = logs
        self._group = group
        self._progress = Progress(order)
        self._steps = (*order.spec.steps, *order.spec.cleanup)
        self._told = 0
        """Steps whose end was reported."""

    async def run(self, directories: workdir.JobDirectories, stop: Stop) -> JobOutcome:
        """:raises JobFailed: no step can run. :raises OSError: the same, for want of disk."""
        masks = self._masks(directories)
        try:
            await self._check_out(directories, stop)
            env = self._environment(directories)
            interpreter = pyenv.interpreter_of(self._order.spec.python, env)
        except CannotRun as error:
            raise self.none_ran(error.reason, str(error)) from None
        except (SourceUnavailable, BadArchive, Abandoned) as error:
            if self._halt.reason is None:
                raise self.none_ran(Reason.SOURCE_UNAVAILABLE, masks.masked(str(error))) from None
            return self._halted_before()
        place = Place(directories, interpreter, self._host.nice, self._group)
        runs = StepRuns(self._order.spec, place=place, logs=self._logs, masks=masks, halt=self._halt)
        prepared = await self._python(runs, env, interpreter, directories)
        try:
            if prepared is not None:
                runs.on_interpreter(str(prepared.place / "bin" / "python"))
                env = pyenv.activated(env, prepared.place)
            for index, step in enumerate(self._steps):
                await self._step(runs, index, step, env, cleanup=index >= len(self._order.spec.steps))
        finally:
            if prepared is not None:
                prepared.give_back()
        self._progress.halted = self._halt.reason
        return self._progress.end()

    # --- before the steps ----------------------------------------------------------------------------------

    def _masks(self, directories: workdir.JobDirectories) -> JobMasks:
        git = self._order.spec.git
        parts = passwords(self._secrets.get(git.credential, "")) if git is not None else ()
        return JobMasks((*self._secrets.values(), *parts), directories.run / "mask")

    async def _check_out(self, directories: workdir.JobDirectories, stop: Stop) -> None:
        source, git = self._order.source, self._order.spec.git
        if not self._order.spec.checkout:
            return
        if git is not None:
            credential = self._secrets.get(git.credential, "") if git.credential else ""
            scratch = directories.root / "git"
            host = self._host.git
            await in_thread(lambda: host.check_out(git, credential, directories.work, scratch, stop), stop)
        elif source is not None:
            sources = self._host.sources
            await in_thread(lambda: sources.check_out(source, directories.work, stop), stop)

    def _seen_secrets(self) -> dict[str, str]:
        """What steps see: not the credential that only fetching took."""
        names = self._order.spec.secrets
        git = self._order.spec.git
        hidden = git.credential if git is not None and git.credential not in names else ""
        return {name: value for name, value in self._secrets.items() if name != hidden}

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
            **self._seen_secrets(),
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
        self, runs: StepRuns, env: dict[str, str], interpreter: str, directories: workdir.JobDirectories
    ) -> pyenv.Environment | None:
        """The job's Python environment, if it has one of its own; its making is part of the first step's log."""
        python = self._order.spec.python
        if python is None or not python.requirements or not self._steps or self._halt.asked():
            return None

        async def run(command: object) -> int:
            assert isinstance(command, list)
            ran = await runs.process(0, command, env, directories.tmp, timeout=None)
            return ran.exit.code if ran.exit.code is not None else 128 + (ran.exit.signal or 0)

        async def pause() -> bool:
            await self._halt.pause(ENVIRONMENT_PAUSE)
            return not self._halt.asked()

        try:
            return await self._host.environments.get(
                interpreter, python.requirements, scratch=directories.run, run=run, pause=pause
            )
        except (CannotRun, CannotStart, OSError) as error:
            if self._halt.asked():
                return None
            reason = disk_reason(error) if isinstance(error, OSError) else Reason.ENVIRONMENT_FAILED
            self._reports.step_started(0)
            self._finish(0, self._steps[0], StepOutcome(result=Result.FAILED, reason=reason, detail=str(error)))
            raise self.none_ran(reason, str(error)) from None

    def none_ran(self, reason: Reason, detail: str) -> JobFailed:
        """The steps that did not end yet do not run; what the job's end is."""
        for index in range(self._told, len(self._steps)):
            self._told = index + 1
            self._reports.step_finished(index, StepOutcome(result=Result.SKIPPED, reason=reason))
        return JobFailed(reason, detail)

    def _halted_before(self) -> JobOutcome:
        self._progress.halted = self._halt.reason
        self.none_ran(self._halt.reason or Reason.CANCELLED, "")
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
        self._told = index + 1
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
