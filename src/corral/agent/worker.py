# SPDX-License-Identifier: Apache-2.0
"""The agent's heart: one :class:`Worker` keeps a session with a coordinator and runs the jobs it is given.

Everything it needs is handed in (dial, runner, clock, chance), it starts no thread and opens nothing, so the
simulator drives this very class over in-memory links in virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, assert_never

from corral.agent.connection import Rounds
from corral.agent.ending import Ending, ExitCode
from corral.agent.grant import KILL_MARGIN, Grant
from corral.agent.interface import Dial, JobRunner, Link, LogSource, Reports, RunningJob
from corral.agent.outbox import Outbox
from corral.model.agentconfig import AgentConfig
from corral.model.errors import TemporaryError
from corral.model.spec import JobOrder, OnLost, Reason, Result
from corral.runtime.chance import Chance, secret_token
from corral.runtime.clock import Clock
from corral.wire import close
from corral.wire.agent import (
    AgentSession,
    Answered,
    Begin,
    DrainAsked,
    Forget,
    JobKey,
    JobOutcome,
    Output,
    Registered,
    Send,
    StepOutcome,
    StopJob,
    Stored,
    TurnedAway,
)
from corral.wire.codec import ProtocolError, decode_to_agent, encode
from corral.wire.messages import (
    HEARTBEAT_INTERVAL,
    RETRYABLE,
    Accept,
    Facts,
    Heartbeat,
    Hello,
    Limits,
    Offer,
    Refused,
    ToAgent,
    Welcome,
)

__all__ = ["JobRunner", "LogSource", "Reports", "RunningJob", "Worker"]

log = logging.getLogger(__name__)

KEY_PREFIX = "corral_agent_"
NORMAL_CLOSE = 1000
GRANT_LOOK = 5.0
"""Seconds: the grant is looked at this often at least, because a suspended machine's timers stand still while the
grant goes on."""
STOP_GRACE = 3.0
"""Seconds that a job has to end when the agent is told to stop a second time; whoever stops it kills after 5."""
STOP_REPORT = 4.0
"""Seconds after which the agent then ends whether or not the job's end was acknowledged."""
DRAIN_GRACE = 10.0
"""Seconds of grace for a job that a drain's deadline overtook."""


class Worker:
    """One agent process.

    :param key: the agent's own; empty: the configured one, or one made here, before anything is dialled, and held in
        memory only.
    :param tell_warden: called with the monotonic second (``clock``) until when the agent may go on, at each change.
    :param on_bound: called once after the first registration: what carried the claim may be wiped.
    """

    def __init__(
        self,
        *,
        config: AgentConfig,
        dial: Dial,
        runner: JobRunner,
        clock: Clock,
        chance: Chance,
        facts: Facts,
        key: str = "",
        tell_warden: Callable[[float], None] = lambda deadline: None,
        on_bound: Callable[[], None] = lambda: None,
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._tell_warden = tell_warden
        self._on_bound: Callable[[], None] | None = on_bound
        self.key = key or config.key or secret_token(chance, KEY_PREFIX)
        self.session = AgentSession(
            agent_id=config.agent_id,
            key=self.key,
            claim_code=config.claim_code,
            boot_id=secret_token(chance, ""),
            facts=facts,
            single_use=config.single_use,
        )
        self._rounds = Rounds(config.coordinator_urls, dial=dial, clock=clock, chance=chance)
        self._limits = Limits()
        self._heartbeat_interval = HEARTBEAT_INTERVAL
        self._grant = Grant(now=clock.monotonic(), limits=self._limits)
        self._told = 0.0
        self._outbox = Outbox(self.session, self._read_log, clock)
        self._registered = asyncio.Event()
        self._jobs: dict[JobKey, _Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._grant_changed = asyncio.Event()
        self._ending: Ending | None = None
        self._ended = asyncio.Event()
        self._stops = 0

    # --- life ----------------------------------------------------------------------------------------------

    async def run(self) -> Ending:
        """Dial, register, work; return how it ended, with nothing left running. Call once."""
        self._update_warden()
        self._spawn(self._guard_grant())
        talking = asyncio.create_task(self._talk())
        waiting = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait({talking, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if self._ending is None:
                await talking
        finally:
            await _cancelled((talking, waiting))
            await self._end_jobs()
            await _cancelled(tuple(self._tasks))
        assert self._ending is not None
        return self._ending

    @property
    def coordinators(self) -> tuple[str, ...]:
        """Known URLs, the one in use first."""
        return self._rounds.urls

    def stop(self, reason: str) -> None:
        """The host asks the agent to end: first after the job in hand, a second time at once."""
        self._stops += 1
        self._apply(self.session.drain(reason))
        if self._stops > 1:
            for job in self._jobs.values():
                job.cancel(reason=Reason.AGENT_LOST, grace=STOP_GRACE, force=self._stops > 2)
            self._spawn(self._stop_at_last())
        self._look_whether_done()

    async def _stop_at_last(self) -> None:
        await self._clock.sleep(STOP_REPORT)
        self._end(ExitCode.STOPPED, "asked twice to stop; the job's end was not acknowledged in time")

    def _end(self, code: ExitCode, message: str) -> None:
        if self._ending is None:
            self._ending = Ending(code, message)
            self._ended.set()

    def _look_whether_done(self) -> None:
        if self.session.done() and not self._jobs:
            self._end(ExitCode.DONE, "drained" if self.session.draining else "the job is done")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- connection ----------------------------------------------------------------------------------------

    async def _talk(self) -> None:
        while self._ending is None:
            url, link = await self._rounds.connect()
            code = await self._converse(link)
            self._after(url, code)

    def _after(self, url: str, code: int) -> None:
        match close.next_of(code):
            case close.Next.AGAIN:
                pass
            case close.Next.ANOTHER:
                self._rounds.put_last(url)
            case close.Next.STOP:
                self._told_to_stop(code)
            case unreachable:
                assert_never(unreachable)

    def _told_to_stop(self, code: int) -> None:
        meaning = close.CODES[code].meaning
        if code == close.RELEASED:
            self._end(ExitCode.DONE, meaning)
        elif code == close.REPLACED:
            self._end(ExitCode.REPLACED, meaning)
        else:
            self._end(ExitCode.REFUSED, meaning)

    async def _converse(self, link: Link) -> int:
        """One connection from ``hello`` to its end; the code it was closed with, 0 without one."""
        self._registered.clear()
        self._outbox.clear()
        self._apply(self.session.connected())
        tasks = [
            asyncio.create_task(self._receive(link)),
            asyncio.create_task(self._send(link)),
            asyncio.create_task(self._beat()),
        ]
        code, reason = NORMAL_CLOSE, "the agent ends"
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            code, reason = _why(done)
        finally:
            self.session.disconnected()
            await _cancelled(tasks)
            await link.close(code or NORMAL_CLOSE, close.fit_reason(reason))
        log.info("connection over: %s", reason)
        return code

    async def _receive(self, link: Link) -> None:
        while True:
            try:
                async with asyncio.timeout(self._limits.agent_dead_after):
                    frame = await link.receive()
            except TimeoutError:
                raise ProtocolError("no byte from the coordinator for too long", close=close.SILENT) from None
            self._heard(decode_to_agent(frame))

    def _heard(self, message: ToAgent) -> None:
        out = self.session.received(message)
        if isinstance(message, Offer) and out and isinstance(out[0], Send) and isinstance(out[0].message, Accept):
            out = self._fit(message, out)
        self._apply(out)
        self._look_whether_done()

    def _fit(self, offer: Offer, accepted: tuple[Output, ...]) -> tuple[Output, ...]:
        detail = self._runner.unfit(offer.order)
        return self.session.decline(JobKey(offer.job_id, offer.attempt), detail) if detail else accepted

    async def _send(self, link: Link) -> None:
        while True:
            message = await self._outbox.take()
            if isinstance(message, Hello):
                self._grant.sent(0, self._clock.monotonic())
            elif isinstance(message, Heartbeat):
                self._grant.sent(message.number, self._clock.monotonic())
            await link.send(encode(message))

    async def _beat(self) -> None:
        await self._registered.wait()
        number = 0
        while True:
            await self._clock.sleep(self._heartbeat_interval)
            number += 1
            self._outbox.put(Heartbeat(number=number))

    # --- what the session says -----------------------------------------------------------------------------

    def _apply(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            self._apply_one(output)

    def _apply_one(self, output: Output) -> None:
        match output:
            case Send(message):
                self._outbox.put(message)
            case Begin(key, order, secrets):
                self._begin(key, order, secrets)
            case StopJob(key=key, reason=reason, grace=grace, force=force):
                self._cancel(key, reason, grace, force)
            case Forget(key):
                self._forget(key)
            case Stored(key, step, offset):
                self._stored(key, step, offset)
            case Registered(welcome):
                self._welcomed(welcome)
            case TurnedAway(refused):
                self._refused(refused)
            case Answered(number):
                self._grant.answered(number)
                self._update_warden()
            case DrainAsked(reason, deadline):
                self._spawn(self._drain(reason, deadline))
            case _:
                assert_never(output)

    def _welcomed(self, welcome: Welcome) -> None:
        log.info("registered: session %d", welcome.session)
        self._limits = welcome.limits
        self._grant.limits = welcome.limits
        self._heartbeat_interval = max(0.05, welcome.heartbeat_interval)
        self._rounds.learn(welcome.coordinator_urls)
        self._rounds.registered()
        self._registered.set()
        self._update_warden()
        self._outbox.wake()
        if self._on_bound is not None:
            bound, self._on_bound = self._on_bound, None
            bound()

    def _refused(self, refused: Refused) -> None:
        if refused.code in RETRYABLE:
            log.info("refused for now: %s", refused.message)
            self._rounds.wait_at_least(refused.retry_after)
            raise ProtocolError(refused.message, close=close.REFUSED_FOR_NOW)
        self.session.refused_for_good()
        self._end(ExitCode.REFUSED, f"refused ({refused.code}): {refused.message}")

    async def _drain(self, reason: str, deadline: float) -> None:
        await self._clock.sleep(max(0.0, deadline))
        for job in self._jobs.values():
            log.warning("the drain's deadline passed (%s): the job in hand is cancelled", reason)
            job.cancel(reason=Reason.AGENT_LOST, grace=DRAIN_GRACE, force=False)

    # --- jobs ----------------------------------------------------------------------------------------------

    def _begin(self, key: JobKey, order: JobOrder, secrets: dict[str, str]) -> None:
        job = _Job(key, order.spec.on_lost)
        self._jobs[key] = job
        self._update_warden()
        self._apply(self.session.job_started(key, self._clock.now()))
        try:
            job.running = self._runner.start(order, secrets, _JobReports(self, key))
        except Exception as error:
            log.exception("job %s could not be started", key.job_id)
            self._job_ended(job, _broken(error))
            return
        self._spawn(self._await_job(job, job.running))

    async def _await_job(self, job: _Job, running: RunningJob) -> None:
        try:
            outcome = await running.wait()
        except Exception as error:
            log.exception("the runner failed in job %s", job.key.job_id)
            outcome = _broken(error)
        self._job_ended(job, outcome)

    def _job_ended(self, job: _Job, outcome: JobOutcome) -> None:
        job.over = True
        self._apply(self.session.job_finished(job.key, outcome, self._clock.now()))
        self._outbox.wake()
        self._update_warden()
        self._look_whether_done()

    def _cancel(self, key: JobKey, reason: Reason, grace: float, force: bool) -> None:
        job = self._jobs.get(key)
        if job is not None:
            job.cancel(reason=reason, grace=grace, force=force)

    def _forget(self, key: JobKey) -> None:
        job = self._jobs.pop(key, None)
        if job is not None and job.running is not None:
            job.running.forget()

    def _stored(self, key: JobKey, step: int, offset: int) -> None:
        job = self._jobs.get(key)
        if job is not None and job.running is not None:
            job.running.logs.stored(step, offset)
        self._outbox.wake()

    def _read_log(self, key: JobKey, step: int, offset: int, limit: int) -> bytes:
        job = self._jobs.get(key)
        return job.running.logs.read(step, offset, limit) if job is not None and job.running is not None else b""

    async def _end_jobs(self) -> None:
        """Kill what still runs and wait until it is dead; its end is not reported any more."""
        for job in self._jobs.values():
            job.cancel(reason=Reason.AGENT_LOST, grace=0.0, force=True)
        for job in tuple(self._jobs.values()):
            if job.running is not None:
                if not job.over:
                    with contextlib.suppress(Exception):
                        await job.running.wait()
                job.running.forget()
        self._jobs.clear()
        await self._runner.close()

    # --- reports of a running job --------------------------------------------------------------------------

    def step_started(self, key: JobKey, step: int) -> None:
        self._apply(self.session.step_started(key, step, self._clock.now()))

    def step_finished(self, key: JobKey, step: int, outcome: StepOutcome) -> None:
        self._outbox.flush(key, step)
        self._apply(self.session.step_finished(key, step, outcome, self._clock.now()))

    def log_grew(self, key: JobKey, step: int, end: int, closed: bool) -> None:
        self.session.log_grew(key, step, end, closed=closed)
        self._outbox.wake()

    # --- grant ---------------------------------------------------------------------------------------------

    def _deadline(self) -> float:
        """When the first of the running jobs, or an agent without any, must have ended."""
        running = [self._grant.job_deadline(job.on_lost) for job in self._jobs.values() if not job.over]
        return min(running, default=self._grant.idle_deadline(single_use=self.session.single_use))

    def _update_warden(self) -> None:
        deadline = self._deadline()
        self._grant_changed.set()
        if deadline != self._told:
            self._told = deadline
            self._tell_warden(deadline)

    async def _guard_grant(self) -> None:
        while self._ending is None:
            left = self._deadline() - KILL_MARGIN - self._clock.monotonic()
            if left <= 0:
                self._grant_over()
                # Killing takes a moment; looked at again when something changed.
                left = GRANT_LOOK
            self._grant_changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, GRANT_LOOK)):
                    await self._grant_changed.wait()

    def _grant_over(self) -> None:
        now = self._clock.monotonic() + KILL_MARGIN
        for job in self._jobs.values():
            if not job.over and self._grant.job_deadline(job.on_lost) <= now:
                log.warning("job %s: no coordinator answered for too long; it is killed", job.key.job_id)
                job.cancel(reason=Reason.AGENT_LOST, grace=0.0, force=True)
        if self.session.single_use:
            self._end(ExitCode.UNANSWERED, "no coordinator answered for as long as this agent may go on")


class _Job:
    def __init__(self, key: JobKey, on_lost: OnLost | None) -> None:
        self.key = key
        self.on_lost = on_lost
        self.running: RunningJob | None = None
        self.over = False

    def cancel(self, *, reason: Reason, grace: float, force: bool) -> None:
        if self.running is not None and not self.over:
            self.running.cancel(reason=reason, grace=grace, force=force)


class _JobReports:
    """One job's way to the worker."""

    def __init__(self, worker: Worker, key: JobKey) -> None:
        self._worker = worker
        self._key = key

    def step_started(self, step: int) -> None:
        self._worker.step_started(self._key, step)

    def step_finished(self, step: int, outcome: StepOutcome) -> None:
        self._worker.step_finished(self._key, step, outcome)

    def log_grew(self, step: int, end: int, *, closed: bool = False) -> None:
        self._worker.log_grew(self._key, step, end, closed)


def _broken(error: Exception) -> JobOutcome:
    return JobOutcome(result=Result.FAILED, reason=Reason.INTERNAL, detail=f"the agent failed: {error}")


def _why(done: Iterable[asyncio.Task[None]]) -> tuple[int, str]:
    """The close code and the sentence for a connection whose tasks ended so. A bug in one is a bug, not a close."""
    for task in done:
        error = task.exception()
        if isinstance(error, ProtocolError):
            return error.close, str(error)
        if isinstance(error, TemporaryError):
            return getattr(error, "close_code", 0), str(error)
        if error is not None:
            log.error("the connection's work failed", exc_info=error)
            return close.INTERNAL, f"the agent failed: {type(error).__name__}"
    return 0, "connection closed"


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel and wait; their own errors were looked at already."""
    pending = [task for task in tasks if task is not asyncio.current_task()]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
