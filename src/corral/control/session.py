# SPDX-License-Identifier: Apache-2.0
"""One agent's connection, from hello to the last byte.

A session reads frames and answers them; it decides nothing. What it is told is applied in transactions
(``registration``, ``reports``, ``offers``); what has to be said to its agent waits in ``outgoing``, which one task
writes, so that a slow agent never holds up a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from sqlalchemy import Connection

from corral.control import bell, offers, registration, reports
from corral.control import measures as m
from corral.control.bell import Bell
from corral.control.limiter import AddressLimiter
from corral.control.lines import LastLines
from corral.control.link import Link, LinkClosed
from corral.control.logpump import LogPump
from corral.control.outgoing import Outgoing
from corral.control.quota import RunQuota
from corral.control.registration import HeldAnswer, Registered, Turned
from corral.control.reports import Loss
from corral.control.settle import Wake, ring
from corral.decide.matching import UNSIZED, Offered
from corral.model.errors import Conflict, CorralError, TemporaryError
from corral.model.ids import AgentId, JobId, RunId
from corral.model.labels import NO_LABELS, Labels
from corral.model.records import Step
from corral.runtime.clock import Clock
from corral.runtime.logs import bind
from corral.runtime.metrics import Metrics
from corral.runtime.sealing import SecretUnavailable
from corral.store.interface import Database, LogKey, LogStore
from corral.store.repo import agents as agent_rows
from corral.store.repo import jobs as job_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.repo import runs as run_rows
from corral.wire import close
from corral.wire.codec import ProtocolError, encode
from corral.wire.messages import RETRYABLE as RETRYABLE_CODES
from corral.wire.messages import (
    Accept,
    Action,
    Cancel,
    ConfigAck,
    Decline,
    Drain,
    Draining,
    FinishedAck,
    FromAgent,
    Heartbeat,
    HeartbeatAck,
    HeldState,
    Hello,
    JobAnswer,
    JobFinished,
    JobStarted,
    Limits,
    Log,
    LogAck,
    LogPosition,
    Refused,
    RefusedCode,
    Report,
    StepFinished,
    StepStarted,
    ToAgent,
    Welcome,
)
from corral.wire.server import ServerProtocol

log = logging.getLogger(__name__)

OUTGOING_LIMIT = 10_000
"""Messages that may wait for one agent; beyond it the agent reads too slowly to be of use."""
REPORTS_LIMIT = 1000
"""Reports of one agent that may wait for the database; beyond it the connection is not read."""
LAST_REPORTS = 5.0
"""Seconds that reports which were read get to be written after their connection ended."""
LAST_WORDS = 2.0
"""Seconds that what was put for an agent, and the close, may take after the reading ended."""
REGISTER_TRIES = 3
FLUSH_GRACE = 120.0
"""Seconds without a new byte after which the log of an ended job is given up, the missing bytes stated; a store that
does not accept stops this clock."""
RETRY_AFTER = 2.0
"""Seconds after which an agent that could not be looked up is asked to come again."""


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Seconds; ``urls``: where agents find this and other coordinators."""

    urls: tuple[str, ...]
    heartbeat_interval: float = 20.0
    agent_dead_after: float = 60.0
    lost_after: float = 120.0
    stranded_after: float = 1800.0


OnBound = Callable[[AgentId], Awaitable[None]]
OnAnswer = Callable[["Session", Accept | Decline], Awaitable[None]]
Secrets = Callable[[JobId, RunId], Awaitable[dict[str, str]]]


@dataclass(kw_only=True)
class Services:
    """What every session uses."""

    database: Database
    logs: LogStore
    clock: Clock
    bell: Bell
    limiter: AddressLimiter
    coordinator_id: str
    settings: SessionSettings
    on_answer: OnAnswer
    on_bound: OnBound
    secrets: Secrets
    pool_offer: Callable[[str], tuple[Labels, bool]]
    """(mandatory labels, is the default pool) of a pool by name."""
    lines: LastLines
    quota: RunQuota
    metrics: Metrics
    on_hello: Callable[[AgentId], None] = lambda agent_id: None
    """Told of the agent that a hello names, before anything is verified."""


class Registry(Protocol):
    """The sessions of this coordinator, as one of them sees them."""

    draining: bool

    def greet(self, agent_id: AgentId) -> None:
        """A connection is about to register this agent; :meth:`part` when it is over and that is recorded."""
        ...

    def part(self, agent_id: AgentId) -> None: ...
    def adopt(self, session: Session) -> None:
        """The newest session of an agent replaces an older one, in whatever order they come here."""
        ...

    def drop(self, session: Session) -> None: ...


class Session:
    """One agent's connection. Its fields mirror the database for speed; every write is checked there again."""

    __slots__ = (
        "_closing",
        "_cutting",
        "_ending",
        "_flushing",
        "_greeted",
        "_link",
        "_log_grew",
        "_outgoing",
        "_over",
        "_protocol",
        "_pump",
        "_recorder",
        "_reports",
        "_runs",
        "_s",
        "_sessions",
        "_stops",
        "_timer",
        "_waiting_for_frame",
        "agent_id",
        "assignment",
        "boot_id",
        "bound",
        "draining",
        "held",
        "idle_since",
        "number",
        "offered",
        "offered_at",
        "over",
        "pool",
        "single_use",
        "size",
    )

    def __init__(self, link: Link, services: Services, sessions: Registry) -> None:
        self._link = link
        self._s = services
        self._sessions = sessions
        self._protocol = ServerProtocol(
            services.clock.monotonic(),
            dead_after=services.settings.agent_dead_after,
            interval=services.settings.heartbeat_interval,
        )
        self._outgoing = Outgoing(self._say, self._hang_up)
        self._closing: tuple[int, str] | None = None
        # Made when a job first needs them: an idle agent is a few kilobytes less.
        self._pump: LogPump | None = None
        self._log_grew: asyncio.Event | None = None
        self._reports: asyncio.Queue[Report | None] | None = None
        self._recorder: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._runs: dict[tuple[JobId, int], RunId] = {}
        self._stops: dict[tuple[JobId, int], bool] = {}
        self._waiting_for_frame = False
        self._greeted: AgentId | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cutting: asyncio.Task[None] | None = None
        self._over: asyncio.Event | None = None
        self.over = False
        self.agent_id: AgentId | None = None
        self.number = 0
        self.boot_id = ""
        self.single_use = True
        self.pool = ""
        self.bound: JobId | None = None
        self.size = UNSIZED
        self.idle_since = 0
        self.draining = False
        self.held = False
        """By an operator."""
        self._flushing: set[tuple[JobId, int]] = set()
        """Jobs that it was told to stop and whose end it has not reported yet: it would decline another."""
        self.offered_at = 0.0
        """Monotonic second of the last offer."""
        self.assignment: tuple[JobId, int] | None = None
        self.offered: Offered = Offered(labels=NO_LABELS)

    # --- for the loops ---

    @property
    def idle(self) -> bool:
        able = self.assignment is None and not self.draining and not self.held and not self._flushing
        return able and self._closing is None and not self.over

    async def until_over(self) -> None:
        """Return when its last frame has been read."""
        if not self.over:
            self._over = self._over or asyncio.Event()
            await self._over.wait()

    def send(self, message: ToAgent) -> None:
        if len(self._outgoing) >= OUTGOING_LIMIT:
            self.close(close.SLOW, "the agent reads too slowly")
            return
        self._outgoing.put(message)

    def close(self, code: int, reason: str) -> None:
        """End the session after what is in the outbox; the first call counts."""
        if self._closing is None:
            self._closing = (code, reason)
            self._outgoing.end()

    def place(self, job_id: JobId, attempt: int, run_id: RunId) -> None:
        """A job is offered to this agent."""
        self.assignment = (job_id, attempt)
        self._runs[(job_id, attempt)] = run_id

    def vacate(self, job_id: JobId, attempt: int) -> None:
        """The agent is free of this attempt."""
        if self.assignment == (job_id, attempt):
            self.assignment = None
            self.idle_since = self._s.clock.now()

    def stop_job(self, job_id: JobId, attempt: int, message: Cancel) -> None:
        """Tell the agent once to stop a job, and once more when it becomes ``force``."""
        key = (job_id, attempt)
        if key in self._stops and self._stops[key] >= message.force:
            return
        self._stops[key] = message.force
        self.send(message)

    # --- the connection ---

    async def run(self) -> None:
        self._watch()
        try:
            await self._read()
        except LinkClosed:
            pass
        except ProtocolError as error:
            log.warning("agent %s at %s: %s", self.agent_id or "?", self._link.peer, error)
            self.close(error.close, error.message)
        except CorralError as error:
            log.warning("agent %s: %s", self.agent_id or "?", error)
            self.close(close.INTERNAL, "the coordinator cannot go on right now")
        except Exception:
            log.exception("agent %s: the session failed", self.agent_id or "?")
            self.close(close.INTERNAL, "the coordinator failed")
        finally:
            self._unwatch()
            await self._last_reports()
            await self._finish()

    def _recorder_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, Conflict):
                log.warning("agent %s: a report is not recorded: %s", self.agent_id, error, exc_info=error)
            self.close(close.INTERNAL, "the coordinator cannot go on right now")

    async def _last_reports(self) -> None:
        """What was read is written, also when nobody is there any more to hear of it."""
        recorder = self._recorder
        if recorder is None or self._reports is None:
            return
        with contextlib.suppress(asyncio.QueueFull):
            self._reports.put_nowait(None)
        await asyncio.wait({recorder, *self._ending}, timeout=LAST_REPORTS)
        recorder.cancel()
        await asyncio.gather(recorder, return_exceptions=True)

    async def _finish(self) -> None:
        self.over = True
        if self._over is not None:
            self._over.set()
        self._protocol.closed()
        self.close(close.INTERNAL, "")
        ending = (*self._ending, *(() if self._cutting is None else (self._cutting,)))
        for task in ending:
            task.cancel()
        await self._outgoing.flushed(LAST_WORDS)
        await asyncio.gather(*ending, return_exceptions=True)
        if self._pump is not None:
            await self._pump.stop()
        self._sessions.drop(self)
        await self._record_disconnect()
        if self._greeted is not None:
            self._sessions.part(self._greeted)

    async def _record_disconnect(self) -> None:
        if self.agent_id is None or self._sessions.draining:
            return
        agent_id, number = self.agent_id, self.number
        try:
            await self._s.database.write(lambda c: agent_rows.disconnect(c, agent_id, number))
        except CorralError as error:
            log.warning("agent %s: its disconnection is recorded later: %s", agent_id, error)
        self._s.bell.ring(bell.SCALE)

    async def _say(self, message: ToAgent) -> None:
        await self._link.send(encode(message))

    async def _hang_up(self) -> None:
        code, reason = self._closing or (close.INTERNAL, "")
        await self._link.close(code, close.fit_reason(reason))

    def _watch(self) -> None:
        """Heartbeats out, and the end of a line that went silent. A timer, not a task: there are thousands of them."""
        now = self._s.clock.monotonic()
        if not self._waiting_for_frame:
            # We are not reading (a full log store, a database that is away): silence would be our own.
            self._protocol.heard(now)
        dead = self._protocol.dead(now)
        if dead is not None:
            self._cutting = asyncio.create_task(self._cut(dead), name="session-cut")
            return
        beat = self._protocol.heartbeat_due(now)
        if beat is not None:
            self.send(beat)
        # Never past a heartbeat: registering makes the next deadline an earlier one than that of the hello.
        longest = self._s.settings.heartbeat_interval
        pause = min(longest, max(0.05, self._protocol.next_deadline() - now))
        self._timer = asyncio.get_running_loop().call_later(pause, self._watch)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _cut(self, code: int) -> None:
        self.close(code, close.CODES[code].meaning)
        await self._link.close(code, close.fit_reason(close.CODES[code].meaning))

    async def _read(self) -> None:
        while True:
            self._waiting_for_frame = True
            frame = await self._link.receive()
            self._waiting_for_frame = False
            message = self._protocol.receive(frame, self._s.clock.monotonic())
            answer = self._protocol.answer(message)
            if answer is not None:
                self.send(answer)
            await self._take(message)

    async def _take(self, message: FromAgent) -> None:
        match message:
            case Hello():
                await self._hello(message)
            case Log():
                await self._log(message)
            case JobStarted() | StepStarted() | StepFinished() | JobFinished():
                await self._report_queue().put(message)
            case Accept() | Decline():
                await self._s.on_answer(self, message)
            case ConfigAck():
                agent_id = self._agent()
                await self._s.database.write(lambda c: provisions_rows.config_acked(c, agent_id))
                await self._s.on_bound(agent_id)
            case Draining():
                await self._draining(message)
            case Heartbeat() | HeartbeatAck():
                pass

    @property
    def heard_at(self) -> float:
        """Monotonic seconds of the last word of the agent, heartbeats included."""
        return self._protocol.heard_at

    def _agent(self) -> AgentId:
        assert self.agent_id is not None
        return self.agent_id

    # --- registering ---

    async def _hello(self, hello: Hello) -> None:
        self._greeted = AgentId(hello.agent_id)
        self._s.on_hello(self._greeted)
        self._sessions.greet(self._greeted)
        outcome = await self._register(hello)
        answer = str(outcome.code) if isinstance(outcome, Turned) else "welcome"
        self._s.metrics.count(m.REGISTRATIONS, outcome=answer)
        if hello.claim_code:
            self._s.metrics.count(m.CLAIMS, outcome=answer)
        if isinstance(outcome, Turned):
            ring(self._s.bell, outcome.wake)
            self._refuse(outcome)
            return
        self._adopt(hello, outcome)
        bind(agent=outcome.agent_id, **({"pool": outcome.pool} if outcome.pool else {}))
        ring(self._s.bell, outcome.wake)
        self.send(
            Welcome(
                session=outcome.session,
                coordinator_urls=self._s.settings.urls,
                heartbeat_interval=self._s.settings.heartbeat_interval,
                limits=Limits(
                    agent_dead_after=self._s.settings.agent_dead_after,
                    lost_after=self._s.settings.lost_after,
                    stranded_after=self._s.settings.stranded_after,
                ),
                single_use=outcome.single_use,
                jobs=tuple([await self._job_answer(hello, answer) for answer in outcome.answers]),
            )
        )
        if outcome.releasing:
            self.send(Drain(reason="this instance is being given back", deadline=0.0))
        elif outcome.drain is not None:
            self.send(outcome.drain)
        self._protocol.welcomed(self._s.clock.monotonic())
        self._sessions.adopt(self)
        self._s.bell.ring(bell.QUEUE, bell.SCALE, bell.STOPS)

    async def _register(self, hello: Hello) -> Registered | Turned:
        """Never accepted without its rows: what cannot be looked up now is asked to come again."""
        too_many = Turned(
            code=RefusedCode.TOO_MANY,
            message="too many failed attempts from this address",
            retry_after=self._s.limiter.retry_after,
        )
        coordinator_id = self._s.coordinator_id
        for _ in range(REGISTER_TRIES):
            try:
                outcome = await self._s.database.write(lambda c: registration.register(c, hello, coordinator_id))
            except Conflict:
                continue
            except TemporaryError as error:
                return Turned(code=RefusedCode.RETRY, message=error.message, retry_after=error.retry_after)
            if isinstance(outcome, Turned) and not outcome.verified and not self._s.limiter.failed(self._link.peer):
                return too_many
            return outcome
        return Turned(code=RefusedCode.RETRY, message="the agent's rows keep changing", retry_after=RETRY_AFTER)

    def _refuse(self, turned: Turned) -> None:
        self.send(Refused(code=turned.code, message=turned.message, retry_after=turned.retry_after))
        code = close.REFUSED_FOR_NOW if turned.code in RETRYABLE_CODES else close.REFUSED
        self.close(code, turned.message)

    def _adopt(self, hello: Hello, outcome: Registered) -> None:
        mandatory, default = self._s.pool_offer(outcome.pool)
        self.agent_id = outcome.agent_id
        self.pool = outcome.pool
        self.number = outcome.session
        self.boot_id = hello.boot_id
        self.single_use = outcome.single_use
        self.bound = outcome.bound
        self.size = outcome.size
        self.idle_since = self._s.clock.now()
        self.draining = hello.draining or outcome.releasing or outcome.cordoned
        self.held = outcome.held
        self._flushing = {
            (answer.job_id, answer.attempt)
            for answer, held in zip(outcome.answers, hello.jobs, strict=True)
            if answer.action is Action.STOP and held.state is not HeldState.ACCEPTED
        }
        self.assignment = outcome.assignment
        self.offered = _shared(Offered(labels=outcome.labels, mandatory=mandatory, default=default))
        for answer in outcome.answers:
            if answer.run_id:
                self._runs[(answer.job_id, answer.attempt)] = answer.run_id

    async def _job_answer(self, hello: Hello, answer: HeldAnswer) -> JobAnswer:
        held = next(h for h in hello.jobs if h.job_id == answer.job_id and h.attempt == answer.attempt)
        positions = []
        if answer.run_id:
            for log_position in held.logs:
                key = LogKey(run_id=answer.run_id, job_id=answer.job_id, attempt=answer.attempt, step=log_position.step)
                positions.append(LogPosition(step=log_position.step, offset=(await self._s.logs.info(key)).size))
        action, secrets = answer.action, dict[str, str]()
        if action is Action.START:
            try:
                secrets = await self._s.secrets(answer.job_id, answer.run_id)
            except SecretUnavailable as error:
                await self._without_secrets(answer, error)
                action = Action.STOP
        return JobAnswer(
            job_id=answer.job_id,
            attempt=answer.attempt,
            action=action,
            sequence=answer.sequence,
            logs=tuple(positions),
            secrets=secrets,
        )

    async def _without_secrets(self, answer: HeldAnswer, error: SecretUnavailable) -> None:
        """Refusing the agent instead would bring it back with the same job for as long as that has time."""
        wake = Wake()
        await self._s.database.write(
            lambda c: offers.without_secrets(c, answer.job_id, answer.attempt, error.message, wake)
        )
        self.vacate(answer.job_id, answer.attempt)
        ring(self._s.bell, wake)

    async def _draining(self, message: Draining) -> None:
        """Nothing more is offered to it; a single-use agent without a job is given back."""
        self.draining = True
        agent_id = self._agent()
        await self._s.database.write(lambda c: agent_rows.cordon(c, agent_id, "drain"))
        self._s.bell.ring(bell.SCALE)

    # --- work ---

    async def _log(self, message: Log) -> None:
        key = await self._log_key(JobId(message.job_id), message.attempt, message.step)
        if key is None:
            # Not this agent's: let it forget the bytes.
            end = message.offset + len(message.data)
            self.send(LogAck(job_id=message.job_id, attempt=message.attempt, step=message.step, offset=end))
            return
        self._s.lines.note(key.job_id, message.data)
        if await self._s.quota.admits(key, message.offset, len(message.data)):
            await self._log_pump().put(key, message)
        else:
            await self._log_pump().drop(key, message)

    def _log_pump(self) -> LogPump:
        if self._pump is None:
            self._pump = LogPump(self._s.logs, self._s.clock, self._stored, self._count_bytes)
            self._pump.start()
        return self._pump

    def _count_bytes(self, size: int) -> None:
        self._s.metrics.count(m.LOG_BYTES, size)

    @property
    def log_stalled(self) -> bool:
        """The store does not take this agent's log now."""
        return self._pump is not None and self._pump.stalled

    async def _log_key(self, job_id: JobId, attempt: int, step: int) -> LogKey | None:
        run_id = self._runs.get((job_id, attempt))
        if run_id is None:
            run_id = await self._s.database.read(lambda c: _owned_run(c, self._agent(), job_id, attempt))
            if run_id is None:
                return None
            self._runs[(job_id, attempt)] = run_id
        return LogKey(run_id=run_id, job_id=job_id, attempt=attempt, step=step)

    def _stored(self, ack: LogAck) -> None:
        self.send(ack)
        if self._log_grew is not None:
            self._log_grew.set()

    def _report_queue(self) -> asyncio.Queue[Report | None]:
        if self._reports is None:
            self._reports = asyncio.Queue(REPORTS_LIMIT)
            self._recorder = asyncio.create_task(self._record(self._reports), name="session-recorder")
            self._recorder.add_done_callback(self._recorder_ended)
        return self._reports

    async def _record(self, queue: asyncio.Queue[Report | None]) -> None:
        """Write reports as they come: all that wait, in one transaction."""
        while True:
            batch = [await queue.get()]
            while not queue.empty():
                batch.append(queue.get_nowait())
            reports_ = [report for report in batch if report is not None]
            if reports_:
                await self._take_reports(reports_)
            if len(reports_) < len(batch):
                return

    async def _take_reports(self, batch: list[Report]) -> None:
        """The rest of a long log may follow its job's end: that end is committed when the log is stored, and
        meanwhile the line is read on."""
        ready: list[Report] = []
        for report in batch:
            if isinstance(report, JobFinished) and await self._missing(report):
                task = asyncio.create_task(self._finish_job(report), name="finish-job")
                self._ending.add(task)
                task.add_done_callback(self._job_ended)
            else:
                ready.append(report)
        if ready:
            await self._apply(ready)

    def _job_ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("agent %s: the end of its job is not recorded: %s", self.agent_id, error, exc_info=error)
            self.close(close.INTERNAL, "the coordinator cannot go on right now")

    async def _finish_job(self, report: JobFinished) -> None:
        lost = [await self._marked(report, loss) for loss in await self._await_logs(report)]
        for loss in lost:
            log.warning("job %s: %d bytes of its log did not arrive", report.job_id, loss.missing)
        await self._apply([report], lost)

    async def _await_logs(self, report: JobFinished) -> list[Loss]:
        """Until everything the agent printed is stored; what is given up. A store that does not accept is waited for
        too, but no longer than an agent without any coordinator would be."""
        last = self._s.clock.monotonic() + self._s.settings.stranded_after
        grew = self._log_grew = self._log_grew or asyncio.Event()
        while True:
            grew.clear()
            missing = await self._missing(report)
            if all(self._s.quota.cut(self._key_of(report, loss)) for loss in missing):
                return missing
            try:
                await asyncio.wait_for(grew.wait(), FLUSH_GRACE)
            except TimeoutError:
                if self._pump is None or not self._pump.stalled or self._s.clock.monotonic() >= last:
                    return missing

    def _key_of(self, report: JobFinished, loss: Loss) -> LogKey:
        run_id = self._runs[(JobId(report.job_id), report.attempt)]
        return LogKey(run_id=run_id, job_id=JobId(report.job_id), attempt=report.attempt, step=loss.step)

    async def _marked(self, report: JobFinished, loss: Loss) -> Loss:
        """A log that the run's limit cut says so itself, where its store takes it."""
        key = self._key_of(report, loss)
        if not self._s.quota.cut(key):
            return loss
        with contextlib.suppress(TemporaryError):
            marker = self._s.quota.marker(loss.missing)
            if len(marker) >= loss.missing:
                return loss
            stored = await self._s.logs.append(key, loss.stored, marker, self._s.clock.now())
            return Loss(step=loss.step, stored=stored, missing=loss.missing)
        return loss

    async def _missing(self, report: JobFinished) -> list[Loss]:
        found = []
        for position in report.logs:
            key = await self._log_key(JobId(report.job_id), report.attempt, position.step)
            if key is not None:
                info = await self._s.logs.info(key)
                if not info.final and info.size < position.offset:
                    found.append(Loss(step=position.step, stored=info.size, missing=position.offset - info.size))
        return found

    async def _apply(self, batch: list[Report], lost: Sequence[Loss] = ()) -> None:
        agent_id, number, single_use = self._agent(), self.number, self.single_use
        applied = await self._persist(
            lambda: self._s.database.write(
                lambda c: reports.apply(c, agent_id, number, batch, single_use=single_use, lost=lost)
            )
        )
        printed = {
            (JobId(report.job_id), report.attempt)
            for report in batch
            if isinstance(report, JobFinished) and any(position.offset for position in report.logs)
        }
        for job_id, attempt in applied.finished:
            await self._seal_logs(job_id, attempt, printed=(job_id, attempt) in printed)
            self.send(FinishedAck(job_id=job_id, attempt=attempt))
            self._flushing.discard((job_id, attempt))
            if self.single_use:
                self.draining = True
            self.vacate(job_id, attempt)
        ring(self._s.bell, applied.wake)
        if applied.finished:
            self._s.bell.ring(bell.SCALE)

    async def _persist(self, write: Callable[[], Awaitable[reports.Applied]]) -> reports.Applied:
        """A report is kept until the database takes it; meanwhile the connection is not read."""
        pause = 0.1
        while True:
            try:
                return await write()
            except Conflict:
                raise
            except TemporaryError as error:
                log.warning("agent %s: a report waits for the database: %s", self.agent_id, error)
                await self._s.clock.sleep(pause)
                pause = min(pause * 2, 5.0)

    async def _seal_logs(self, job_id: JobId, attempt: int, *, printed: bool) -> None:
        """At the end of a job. What readers need (size, what is missing) was committed with the end."""
        run_id = self._runs.pop((job_id, attempt), None)
        self._stops.pop((job_id, attempt), None)
        if run_id is None or not printed:
            return
        steps = await self._s.database.read(lambda c: job_rows.steps_of(c, job_id, attempt))
        for step in steps:
            if step.log_size:
                await self._seal_log(LogKey(run_id=run_id, job_id=job_id, attempt=attempt, step=step.number), step)

    async def _seal_log(self, key: LogKey, step: Step) -> None:
        try:
            info = await self._s.logs.finish(key, step.log_missing)
        except TemporaryError as error:
            # Readers know from the step's record where the log ends.
            log.warning("log of %s step %d cannot be closed: %s", key.job_id, key.step, error)
            return
        if step.log_digest and info.digest != step.log_digest:
            log.warning("log of %s step %d is not what its agent says it printed", key.job_id, key.step)
            await self._s.database.write(lambda c: run_rows.mark_log_incomplete(c, key.run_id))


@lru_cache(maxsize=1024)
def _shared(offered: Offered) -> Offered:
    """One object for all agents that offer the same."""
    return offered


def _owned_run(connection: Connection, agent_id: AgentId, job_id: JobId, attempt: int) -> RunId | None:
    row = job_rows.attempt(connection, job_id, attempt)
    if row is None or row.agent_id != agent_id or row.started_at is None:
        return None
    return job_rows.run_of(connection, job_id)
