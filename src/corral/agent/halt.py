# SPDX-License-Identifier: Apache-2.0
"""Ending a job before its steps are done: who asked, how gently, until when.

The grace covers everything: the step in hand is interrupted, terminated after a quarter of it and killed after
half; cleanup steps have the rest. Seconds are the event loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from typing import NamedTuple

from corral.agent.process import StepProcess
from corral.model.spec import Reason

TERMINATE_AT = 0.25
KILL_AT = 0.5
"""Parts of the grace after which a step that ignores SIGINT gets SIGTERM, then SIGKILL."""
TIMEOUT_GRACE = 10.0
"""Seconds that a step has to end by itself after its own timeout: from SIGINT to SIGKILL half of it."""


class Halt:
    """One job's. ``reason`` is the first one asked for; later ones only make it harder."""

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self.force = False
        self.grace = 0.0
        self.kill_at = float("inf")
        """Cleanup steps are killed then."""
        self._watching: set[asyncio.Event] = set()

    def ask(self, reason: Reason, *, grace: float, force: bool, now: float) -> None:
        """End the job; a second call kills at once."""
        if self.reason is not None:
            force = True
        else:
            self.reason = reason
            self.grace = grace
            self.kill_at = now + grace
        self.force = self.force or force or grace <= 0
        for event in self._watching:
            event.set()

    def asked(self) -> bool:
        """Somebody wants the job to end."""
        return self.reason is not None

    @contextlib.contextmanager
    def watched(self) -> Iterator[asyncio.Event]:
        """An event that is set whenever something is asked."""
        event = asyncio.Event()
        self._watching.add(event)
        try:
            yield event
        finally:
            self._watching.discard(event)

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than until something is asked."""
        with self.watched() as asked:
            if self.reason is None:
                await wait_at_most(asked, seconds)


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> None:
    """Return when ``event`` is set or after ``seconds`` (None: never)."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class Ladder(NamedTuple):
    """When which signal is due."""

    interrupt: float
    terminate: float
    kill: float


def ladder(now: float, grace: float) -> Ladder:
    return Ladder(now, now + grace * TERMINATE_AT, now + grace * KILL_AT)


async def supervise(process: StepProcess, *, halt: Halt, timeout: float | None, cleanup: bool) -> Reason | None:
    """Wait for the process's end, ending it where it must; why it was ended, None when it ended by itself."""
    loop = asyncio.get_running_loop()
    due = loop.time() + timeout if timeout is not None else float("inf")
    steps: Ladder | None = None
    cause: Reason | None = None
    sent: set[signal.Signals] = set()
    with halt.watched() as wake:
        process.wake_at_end(wake)
        while not process.ended:
            wake.clear()
            now = loop.time()
            kill_now = halt.force or (cleanup and now >= halt.kill_at)
            if steps is None and (kill_now or now >= due or (halt.reason is not None and not cleanup)):
                asked = halt.reason is not None and (kill_now or not cleanup)
                cause = halt.reason if asked else Reason.STEP_TIMEOUT
                steps = ladder(now, halt.grace if asked else TIMEOUT_GRACE)
            if steps is not None:
                _send_due(process, steps, now, kill_now, sent)
            await wait_at_most(wake, _next_look(now, steps, due, halt.kill_at if cleanup else None))
    return cause


def _send_due(process: StepProcess, steps: Ladder, now: float, kill: bool, sent: set[signal.Signals]) -> None:
    if kill or now >= steps.kill:
        wanted = signal.SIGKILL
    elif now >= steps.terminate:
        wanted = signal.SIGTERM
    else:
        wanted = signal.SIGINT
    if wanted not in sent:
        sent.add(wanted)
        process.signal(wanted)


def _next_look(now: float, steps: Ladder | None, due: float, kill_at: float | None) -> float | None:
    moments = [due] if steps is None else [steps.terminate, steps.kill]
    if kill_at is not None:
        moments.append(kill_at)
    ahead = [moment - now for moment in moments if now < moment < float("inf")]
    return min(ahead, default=None)
