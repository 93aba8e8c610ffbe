# SPDX-License-Identifier: Apache-2.0
"""Jobs that take virtual time: a :class:`~corral.agent.interface.JobRunner` whose steps are a line of words.

A step's script is ``sim seconds=2.5 log=4096 burst=0 fail=0``: how long it takes, how many bytes it prints evenly,
how many more at its very end, and the probability with which it fails (the same job and attempt always does the same).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from corral.agent.interface import Reports
from corral.agent.progress import Progress
from corral.model.spec import JobOrder, Reason, Result, StepSpec
from corral.sim.truth import Report, Truth, Violation
from corral.wire.agent import JobOutcome, StepOutcome

PIECES = 4
"""Parts in which a step prints its log."""
REACTION = 0.3
"""Part of the grace that a step takes to end when it is asked to."""
TIMEOUT_GRACE = 10.0


@dataclass(frozen=True, kw_only=True)
class Script:
    seconds: float = 0.0
    log: int = 0
    burst: int = 0
    fail: float = 0.0

    def __str__(self) -> str:
        return f"sim seconds={self.seconds:g} log={self.log} burst={self.burst} fail={self.fail:g}"


def parse(text: str) -> Script:
    """The inverse of ``str(script)``."""
    words = dict(word.split("=", 1) for word in text.split()[1:])
    return Script(
        seconds=float(words.get("seconds", 0)),
        log=int(words.get("log", 0)),
        burst=int(words.get("burst", 0)),
        fail=float(words.get("fail", 0)),
    )


def draw(order: JobOrder, step: int) -> float:
    """In [0, 1): the luck of one step of one attempt."""
    text = f"{order.job_id}/{order.attempt}/{step}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4]) / 2**32


def printed(order: JobOrder, step: int, size: int) -> bytes:
    """What a step prints: different for every step of every attempt, the same in every run of a seed."""
    seed = hashlib.sha256(f"{order.job_id}/{order.attempt}/{step}".encode()).hexdigest().encode() + b"\n"
    return (seed * (size // len(seed) + 1))[:size]


@dataclass(kw_only=True)
class _Spool:
    data: bytearray = field(default_factory=bytearray)
    stored: int = 0


class SimLogs:
    """A :class:`~corral.agent.interface.LogSource` that keeps everything, and knows what may still be asked for."""

    def __init__(self, report: Report) -> None:
        self.steps: dict[int, _Spool] = {}
        self._report = report

    def read(self, step: int, offset: int, limit: int) -> bytes:
        spool = self.steps[step]
        if offset < spool.stored:
            self._report(
                Violation("acknowledged-is-gone", f"step {step} is read at {offset}, acknowledged up to {spool.stored}")
            )
        return bytes(spool.data[offset : offset + limit])

    def stored(self, step: int, offset: int) -> None:
        spool = self.steps[step]
        spool.stored = max(spool.stored, offset)


class SimJob:
    """A :class:`~corral.agent.interface.RunningJob`."""

    def __init__(self, order: JobOrder, reports: Reports, truth: Truth, agent_id: str, report: Report) -> None:
        self._order = order
        self._reports = reports
        self._truth = truth
        self.execution = truth.started(order.job_id, order.attempt, agent_id)
        self.logs = SimLogs(report)
        self._halt = asyncio.Event()
        self._reason: Reason | None = None
        self._grace = 0.0
        self._force = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def wait(self) -> JobOutcome:
        return await asyncio.shield(self._task)

    def cancel(self, *, reason: Reason, grace: float, force: bool) -> None:
        if self._reason is not None or force or grace <= 0:
            self._force.set()
        if self._reason is None:
            self._reason, self._grace = reason, grace
        self._halt.set()

    def forget(self) -> None:
        """Its log lives on in the truth."""

    async def _run(self) -> JobOutcome:
        timer = asyncio.get_running_loop().call_later(
            self._order.spec.timeout, lambda: self.cancel(reason=Reason.JOB_TIMEOUT, grace=TIMEOUT_GRACE, force=False)
        )
        progress = Progress(self._order)
        try:
            for index, step in enumerate((*self._order.spec.steps, *self._order.spec.cleanup)):
                progress.halted = self._reason
                cleanup = index >= len(self._order.spec.steps)
                ended = progress.wanted(step, cleanup=cleanup) or await self._step(index, step)
                progress.record(step, ended)
                self._reports.step_finished(index, ended)
            progress.halted = self._reason
        finally:
            timer.cancel()
        outcome = progress.end()
        self._truth.ended(self.execution, outcome.result)
        return outcome

    async def _step(self, index: int, step: StepSpec) -> StepOutcome:
        self._reports.step_started(index)
        script = parse(step.script)
        text = printed(self._order, index, script.log + script.burst)
        done = 0
        for piece in range(PIECES):
            if await self._pause(script.seconds / PIECES):
                return self._closed(index, StepOutcome(result=Result.CANCELLED, reason=self._reason or Reason.NONE))
            end = script.log * (piece + 1) // PIECES
            self._print(index, text[done:end])
            done = end
        self._print(index, text[done:])
        if draw(self._order, index) < script.fail:
            return self._closed(index, StepOutcome(result=Result.FAILED, reason=Reason.EXIT_CODE, exit_code=1))
        return self._closed(index, StepOutcome(result=Result.SUCCEEDED, exit_code=0))

    async def _pause(self, seconds: float) -> bool:
        """Work for so long; True: it was halted, and has reacted."""
        if await _within(self._halt, seconds):
            await _within(self._force, self._grace * REACTION)
            return True
        return False

    def _print(self, index: int, data: bytes) -> None:
        if data:
            spool = self.logs.steps.setdefault(index, _Spool())
            spool.data += data
            self.execution.logs[index] = spool.data
            self._reports.log_grew(index, len(spool.data))

    def _closed(self, index: int, outcome: StepOutcome) -> StepOutcome:
        spool = self.logs.steps.setdefault(index, _Spool())
        self.execution.logs[index] = spool.data
        self.execution.closed.add(index)
        self._reports.log_grew(index, len(spool.data), closed=True)
        return StepOutcome(
            result=outcome.result,
            reason=outcome.reason,
            exit_code=outcome.exit_code,
            log_size=len(spool.data),
            log_digest=hashlib.sha256(spool.data).hexdigest(),
        )


class SimRunner:
    def __init__(self, truth: Truth, agent_id: str, report: Report) -> None:
        self._truth = truth
        self._agent_id = agent_id
        self._report = report

    def unfit(self, order: JobOrder) -> str:
        return ""

    def start(self, order: JobOrder, secrets: Mapping[str, str], reports: Reports) -> SimJob:
        return SimJob(order, reports, self._truth, self._agent_id, self._report)

    async def close(self) -> None:
        """Holds nothing."""


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """True where the event came before so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
