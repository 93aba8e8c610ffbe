# SPDX-License-Identifier: Apache-2.0
"""What really ran, as the hosts saw it: the database says what was meant, this says what was done.

:class:`Violation` is raised, or handed to ``report``, the moment something happens that never may.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from corral.model.spec import Result

JobAttempt = tuple[str, int]


class Violation(Exception):
    """An invariant does not hold. ``name`` is that of the invariant, the same in every report."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


Report = Callable[[Violation], None]


@dataclass(kw_only=True)
class Execution:
    """One attempt on one host. ``logs``: what each step printed. ``result`` None: it runs, or was killed."""

    job_id: str
    attempt: int
    agent_id: str
    started: float
    ended: float | None = None
    result: Result | None = None
    killed: bool = False
    logs: dict[int, bytearray] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    """Steps that printed all they had."""

    @property
    def key(self) -> JobAttempt:
        return (self.job_id, self.attempt)


class Truth:
    """``begins``: told of every execution before it does anything."""

    def __init__(
        self, time: Callable[[], float], report: Report, begins: Callable[[Execution], None] = lambda execution: None
    ) -> None:
        self._time = time
        self._begins = begins
        self._report = report
        self.executions: dict[JobAttempt, Execution] = {}
        self.running: dict[str, Execution] = {}
        """By job."""

    def started(self, job_id: str, attempt: int, agent_id: str) -> Execution:
        now = Execution(job_id=job_id, attempt=attempt, agent_id=agent_id, started=self._time())
        other = self.running.get(job_id)
        if other is not None:
            self._report(
                Violation(
                    "never-two-at-once",
                    f"{job_id}#{attempt} starts on {agent_id} while #{other.attempt} runs on {other.agent_id}",
                )
            )
        if now.key in self.executions:
            self._report(Violation("started-once", f"{job_id}#{attempt} is started a second time, on {agent_id}"))
        self._begins(now)
        self.executions[now.key] = now
        self.running[job_id] = now
        return now

    def ended(self, execution: Execution, result: Result | None) -> None:
        """``result`` None: its host was killed under it."""
        if execution.ended is not None:
            return
        execution.ended = self._time()
        execution.result = result
        execution.killed = result is None
        if self.running.get(execution.job_id) is execution:
            del self.running[execution.job_id]

    def killed_host(self, agent_id: str) -> None:
        """Whatever ran there is dead."""
        for execution in [one for one in self.running.values() if one.agent_id == agent_id]:
            self.ended(execution, None)

    def of_job(self, job_id: str) -> list[Execution]:
        return [one for key, one in self.executions.items() if key[0] == job_id]
