# SPDX-License-Identifier: Apache-2.0
"""What the worker needs from outside: a way to dial, and something that runs jobs.

The real ones are ``websocket.py`` and ``runner.py``; the simulator brings its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from corral.model.errors import TemporaryError
from corral.model.spec import JobOrder, Reason
from corral.wire.agent import JobOutcome, StepOutcome


class LinkClosed(TemporaryError):
    """The other side, or the network, ended the connection. ``close_code`` is 0 where none was given."""

    code = "link_closed"

    def __init__(self, message: str = "connection closed", *, close_code: int = 0) -> None:
        super().__init__(message)
        self.close_code = close_code


class Link(Protocol):
    """Ordered frames both ways; nothing is lost while it stands."""

    async def send(self, frame: bytes) -> None:
        """Hand one frame over; waits while the other side does not read.

        :raises TemporaryError: it is over; a ``close_code`` attribute says how, where there is one.
        """
        ...

    async def receive(self) -> bytes:
        """The next frame. :raises TemporaryError: it is over, as for :meth:`send`."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """End it with a close code. Idempotent, bounded, never raises."""
        ...


class Dial(Protocol):
    async def dial(self, url: str) -> Link:
        """Connect to the coordinator at ``url`` (``http(s)://host:port``). The caller bounds the time.

        :raises TemporaryError: nobody answered there, or not as a coordinator.
        """
        ...


class Reports(Protocol):
    """Where a running job says what happened. Called in the event loop's thread only."""

    def step_started(self, step: int) -> None: ...

    def step_finished(self, step: int, outcome: StepOutcome) -> None: ...

    def log_grew(self, step: int, end: int, *, closed: bool = False) -> None:
        """The job's log source holds step ``step`` up to byte ``end``; ``closed``: that is all of it."""
        ...


class LogSource(Protocol):
    """The bytes that were printed and not yet acknowledged, after masking."""

    def read(self, step: int, offset: int, limit: int) -> bytes:
        """At most ``limit`` bytes from ``offset``; at least one where ``log_grew`` said so and none were
        acknowledged above ``offset``."""
        ...

    def stored(self, step: int, offset: int) -> None:
        """Bytes below ``offset`` are not needed any more."""
        ...


class RunningJob(Protocol):
    @property
    def logs(self) -> LogSource: ...

    async def wait(self) -> JobOutcome:
        """Return when the job ended, nothing that it started is left and its log is complete in ``logs``."""
        ...

    def cancel(self, *, reason: Reason, grace: float, force: bool) -> None:
        """End it: interrupt, cleanup steps, kill after ``grace`` seconds; a second call or ``force`` kills at once."""
        ...

    def forget(self) -> None:
        """Drop the log and whatever else was kept for the report. Idempotent."""
        ...


class JobRunner(Protocol):
    def unfit(self, order: JobOrder) -> str:
        """Why this agent cannot run ``order``, as a sentence; empty: it can. Touches nothing."""
        ...

    def start(self, order: JobOrder, secrets: Mapping[str, str], reports: Reports) -> RunningJob:
        """Begin; everything that can go wrong is told by :meth:`RunningJob.wait`."""
        ...

    async def close(self) -> None:
        """Give back what is held for all jobs. The worker has ended every job before."""
        ...
