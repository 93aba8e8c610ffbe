# SPDX-License-Identifier: Apache-2.0
"""Running one step: its tries, its process, its output, and how it ended."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from corral.agent.cgroup import JobGroup
from corral.agent.command import CannotRun, command_line
from corral.agent.halt import Halt, supervise
from corral.agent.joblogs import JobLogs
from corral.agent.masks import JobMasks
from corral.agent.oom import OomCounter
from corral.agent.outputs import FILE_LIMIT, OutputsInvalid, parse
from corral.agent.process import CannotStart, Exit, StepProcess
from corral.agent.pump import Pump, widen
from corral.agent.workdir import JobDirectories
from corral.model.spec import JobSpec, Reason, Result, RetrySpec, StepKind, StepSpec
from corral.wire.agent import StepOutcome

NOT_LOADED = 2
"""The function runner's exit code when the function could not be reached."""


class Place(NamedTuple):
    """Where the steps of one job run."""

    directories: JobDirectories
    interpreter: str
    nice: int
    group: JobGroup


class Ran(NamedTuple):
    """One process's end. ``cause``: why it was ended, None when it ended by itself."""

    exit: Exit
    cause: Reason | None
    out_of_memory: bool


class StepRuns:
    """Runs the steps of one job, one after another."""

    def __init__(self, job: JobSpec, *, place: Place, logs: JobLogs, masks: JobMasks, halt: Halt) -> None:
        self._job = job
        self._place = place
        self._logs = logs
        self._masks = masks
        self._halt = halt
        own = place.group.counters()
        self._oom = OomCounter(own or None)
        self._certain = bool(own)
        """What the counter counts was a process of this job."""

    def on_interpreter(self, interpreter: str) -> None:
        self._place = self._place._replace(interpreter=interpreter)

    async def step(self, index: int, step: StepSpec, env: Mapping[str, str], *, cleanup: bool) -> StepOutcome:
        """Run it as often as its retry policy says; the last try's outcome. Its log is not closed yet."""
        retry = step.retry or RetrySpec(attempts=1)
        tries = 1
        while True:
            outcome = await self._try(index, step, env, cleanup=cleanup)
            if outcome.result is not Result.FAILED or tries >= retry.attempts or self._halt.asked():
                return _with_tries(outcome, tries)
            pause = retry.wait_after(tries)
            self._logs.mark(index, f"try {tries} of {retry.attempts} failed ({outcome.detail}); again in {pause:g} s")
            await self._halt.pause(pause)
            if self._halt.asked():
                return _with_tries(outcome, tries)
            tries += 1

    async def _try(self, index: int, step: StepSpec, env: Mapping[str, str], *, cleanup: bool) -> StepOutcome:
        output = self._place.directories.run / f"output-{index}"
        env = {**env, "CORRAL_OUTPUT": str(output)}
        try:
            # Removed first: an earlier try may have made anything of it.
            output.unlink(missing_ok=True)
            output.touch(mode=0o600)
            argv = command_line(
                self._job,
                step,
                index=index,
                work=self._place.directories.work,
                run=self._place.directories.run,
                env=env,
                interpreter=self._place.interpreter,
            )
            ran = await self.process(index, argv, env, self._directory(step), timeout=step.timeout, cleanup=cleanup)
        except CannotRun as error:
            return _failed(error.reason, str(error))
        except OSError as error:
            return _failed(disk_reason(error), f"step {step.name!r} could not be prepared: {error}")
        except CannotStart as error:
            reason = Reason.INTERPRETER_LOST if step.kind is StepKind.FUNCTION else Reason.NO_SHELL
            return _failed(reason, f"step {step.name!r} could not be started: {error}")
        return self._judge(step, ran, output)

    def _directory(self, step: StepSpec) -> Path:
        work = self._place.directories.work
        directory = work / (step.working_directory or self._job.working_directory)
        if not directory.is_dir():
            shown = step.working_directory or self._job.working_directory
            raise CannotRun(
                Reason.ENVIRONMENT_FAILED, f"the working directory {shown!r} of step {step.name!r} is not there"
            )
        return directory

    async def process(
        self,
        index: int,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        timeout: float | None,
        cleanup: bool = False,
    ) -> Ran:
        """Run one process with its output in step ``index``'s log, ended as ``halt`` and ``timeout`` (seconds) say.

        :raises CannotStart: the program does not run at all.
        """
        kills_before = self._oom.kills()
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        widen(read_end)
        try:
            doors = self._place.group.doors()
            process = StepProcess(argv, env=env, cwd=cwd, output=write_end, nice=self._place.nice, doors=doors)
        except CannotStart:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        done = asyncio.Event()
        pump = self._pump(index, read_end, done)
        cause = await supervise(process, halt=self._halt, timeout=timeout, cleanup=cleanup)
        exit = process.collect()
        pump.process_ended()
        await done.wait()
        pump.join()
        if pump.held_open:
            self._logs.mark(index, "a process that outlived this step held its output open; what it prints now is lost")
        kills = self._oom.kills()
        oom = kills_before is not None and kills is not None and kills > kills_before
        return Ran(exit, cause, oom and not process.killed)

    def _pump(self, index: int, fd: int, done: asyncio.Event) -> Pump:
        loop = asyncio.get_running_loop()
        masker = self._masks.masker()
        pump = Pump(
            fd,
            masker=masker,
            spool=self._logs.spool(index),
            learn=lambda: self._masks.learn(masker),
            done=lambda: _set_in(loop, done),
        )
        pump.start()
        return pump

    def _judge(self, step: StepSpec, ran: Ran, output: Path) -> StepOutcome:
        if ran.cause is not None:
            return self._ended(step, ran, ran.cause)
        if ran.exit.code == 0:
            return self._succeeded(step, output)
        if ran.out_of_memory and (self._certain or _looks_killed(ran.exit)):
            what = "was killed" if _looks_killed(ran.exit) else "lost a process"
            detail = f"step {step.name!r} {what}: out of memory"
            return _failed(Reason.OUT_OF_MEMORY, detail, ran.exit)
        if ran.exit.signal is not None:
            return self._signalled(step, ran.exit, ran.exit.signal)
        if step.kind is StepKind.FUNCTION:
            return _function_failed(step, ran.exit)
        return _failed(Reason.EXIT_CODE, f"step {step.name!r} exited with code {ran.exit.code}", ran.exit)

    def _ended(self, step: StepSpec, ran: Ran, cause: Reason) -> StepOutcome:
        if cause is Reason.STEP_TIMEOUT:
            detail = f"step {step.name!r} ran into its own timeout of {step.timeout:g} s"
            return _failed(cause, detail, ran.exit)
        if cause is Reason.JOB_TIMEOUT:
            detail = f"the job's timeout of {self._job.timeout:g} s passed during step {step.name!r}"
            return _failed(cause, detail, ran.exit)
        return StepOutcome(
            result=Result.CANCELLED,
            reason=cause,
            detail=f"step {step.name!r} was ended",
            exit_code=ran.exit.code,
            signal=ran.exit.signal,
        )

    def _signalled(self, step: StepSpec, exit: Exit, number: int) -> StepOutcome:
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        if step.kind is StepKind.FUNCTION:
            return _failed(Reason.INTERPRETER_LOST, f"the Python of step {step.name!r} was killed by {name}", exit)
        hint = ", and not by Corral: often the kernel's want of memory" if number == signal.SIGKILL else ""
        return _failed(Reason.SIGNAL, f"step {step.name!r} was killed by {name}{hint}", exit)

    def _succeeded(self, step: StepSpec, output: Path) -> StepOutcome:
        try:
            with open(os.open(output, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                # Before it is read: names and faults are shown as well as values, and to more people than the log.
                outputs = parse(self._masks.masked_bytes(file.read(FILE_LIMIT)))
        except FileNotFoundError:
            outputs = {}
        except (OSError, OutputsInvalid) as error:
            return _failed(Reason.OUTPUTS_INVALID, f"the outputs of step {step.name!r}: {error}")
        return StepOutcome(
            result=Result.SUCCEEDED,
            exit_code=0,
            outputs=outputs,
        )


def disk_reason(error: OSError) -> Reason:
    return Reason.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else Reason.INTERNAL


def _function_failed(step: StepSpec, exit: Exit) -> StepOutcome:
    if exit.code == NOT_LOADED:
        detail = f"the function of step {step.name!r} could not be loaded; its log says why"
    else:
        detail = f"the function of step {step.name!r} raised or exited with code {exit.code}; its log says where"
    return _failed(Reason.EXCEPTION, detail, exit)


def _looks_killed(exit: Exit) -> bool:
    # A shell whose child was killed says 128 + 9.
    return exit.signal == signal.SIGKILL or exit.code == 128 + signal.SIGKILL


def _failed(reason: Reason, detail: str, exit: Exit = Exit(None, None)) -> StepOutcome:  # noqa: B008 - a constant
    return StepOutcome(result=Result.FAILED, reason=reason, detail=detail, exit_code=exit.code, signal=exit.signal)


def _with_tries(outcome: StepOutcome, tries: int) -> StepOutcome:
    import msgspec

    return msgspec.structs.replace(outcome, tries=tries)


def _set_in(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
