# SPDX-License-Identifier: Apache-2.0
"""The agent's side of ``corral.agent.v1`` without any IO: messages and local happenings in, messages and events out.

An :class:`AgentSession` lives as long as the agent process, over any number of connections. It knows what the
agent holds (jobs, reports made, how far each log was sent and stored), and nothing of clocks, sockets or files:
the worker tells it what happened and carries out what it answers.

What a coordinator's message does is read from two tables: :data:`LINK_TABLE` (state of the connection × message)
and :data:`JOB_TABLE` (what the agent holds of the job × message about a job). A pair that the protocol does not
allow raises :class:`~corral.wire.codec.ProtocolError`; the connection is then closed with its code, dialled again,
and the next ``hello`` / ``welcome`` puts both sides right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, TypeVar, assert_never

from msgspec import Struct, structs

from corral.model.spec import JobOrder, Reason, Result
from corral.wire import close
from corral.wire.codec import ProtocolError, encode
from corral.wire.messages import (
    LOG_CHUNK_LIMIT,
    PROTOCOL,
    Accept,
    Action,
    Cancel,
    ConfigAck,
    Decline,
    DeclineReason,
    Drain,
    Draining,
    Facts,
    FinishedAck,
    FromAgent,
    Heartbeat,
    HeartbeatAck,
    HeldJob,
    HeldState,
    Hello,
    JobAnswer,
    JobFinished,
    JobStarted,
    Log,
    LogAck,
    LogPosition,
    Offer,
    Refused,
    Report,
    Start,
    StepFinished,
    StepStarted,
    ToAgent,
    Welcome,
    Withdraw,
)

LOG_WINDOW = 8 * 1024 * 1024
"""Bytes of one job's log sent but not yet acknowledged. Large enough for 50 MiB/s at 150 ms from send to stable
storage; small enough that a stalled log store holds little memory and heartbeats are never stuck behind log."""

DETAIL_LIMIT = 4000
"""Characters of a report's sentence."""

REMEMBERED = 64
"""Forgotten attempts whose late or repeated messages are still recognised."""


class JobKey(NamedTuple):
    job_id: str
    attempt: int


class LinkState(StrEnum):
    OFFLINE = "offline"
    GREETING = "greeting"
    """``hello`` is sent, not answered."""
    READY = "ready"
    ENDED = "ended"
    """Refused for good."""


class JobPhase(StrEnum):
    """What the agent holds of one attempt."""

    UNKNOWN = "unknown"
    ACCEPTED = "accepted"
    """Nothing is touched yet."""
    RUNNING = "running"
    FINISHED = "finished"
    """Ended here; its reports and log are kept until ``finished_ack``."""
    DROPPED = "dropped"
    """The coordinator wants no more of it; its processes are being killed. Nothing more is reported."""
    FORGOTTEN = "forgotten"


class Handling(StrEnum):
    TAKE = "take"
    REFUSE = "refuse"
    """Close with :data:`corral.wire.close.UNEXPECTED`."""


class Move(StrEnum):
    """What one message does to one job."""

    ANSWER = "answer"
    """Accept or decline."""
    ACCEPT_AGAIN = "accept again"
    BEGIN = "begin"
    CANCEL = "cancel"
    ACKNOWLEDGE = "acknowledge"
    FORGET = "forget"
    DROP = "drop"
    IGNORE = "ignore"
    REFUSE = "refuse"


_CONNECTION_MESSAGES: tuple[type, ...] = (Welcome, Refused, Drain, Heartbeat, HeartbeatAck)
_JOB_MESSAGES: tuple[type, ...] = (Offer, Withdraw, Start, Cancel, LogAck, FinishedAck)


def _link_table() -> dict[tuple[LinkState, type], Handling]:
    table = dict.fromkeys(
        ((state, kind) for state in LinkState for kind in (*_CONNECTION_MESSAGES, *_JOB_MESSAGES)), Handling.REFUSE
    )
    table[LinkState.GREETING, Welcome] = Handling.TAKE
    table[LinkState.GREETING, Refused] = Handling.TAKE
    for kind in (Drain, Heartbeat, HeartbeatAck, *_JOB_MESSAGES):
        table[LinkState.READY, kind] = Handling.TAKE
    return table


LINK_TABLE: Mapping[tuple[LinkState, type], Handling] = _link_table()
"""State of the connection × message. Total."""

_P, _M = JobPhase, Move
JOB_TABLE: Mapping[tuple[JobPhase, type], Move] = {
    (_P.UNKNOWN, Offer): _M.ANSWER,
    # A withdrawal and a decline may cross; so may a cancel and the end.
    (_P.UNKNOWN, Withdraw): _M.IGNORE,
    # Refused, so that the next hello says that this job never began here: it is queued again at once.
    (_P.UNKNOWN, Start): _M.REFUSE,
    (_P.UNKNOWN, Cancel): _M.IGNORE,
    (_P.UNKNOWN, LogAck): _M.IGNORE,
    (_P.UNKNOWN, FinishedAck): _M.IGNORE,
    (_P.ACCEPTED, Offer): _M.ACCEPT_AGAIN,
    (_P.ACCEPTED, Withdraw): _M.FORGET,
    (_P.ACCEPTED, Start): _M.BEGIN,
    (_P.ACCEPTED, Cancel): _M.FORGET,
    (_P.ACCEPTED, LogAck): _M.REFUSE,
    (_P.ACCEPTED, FinishedAck): _M.FORGET,
    (_P.RUNNING, Offer): _M.REFUSE,
    (_P.RUNNING, Withdraw): _M.REFUSE,
    (_P.RUNNING, Start): _M.IGNORE,
    (_P.RUNNING, Cancel): _M.CANCEL,
    (_P.RUNNING, LogAck): _M.ACKNOWLEDGE,
    # The coordinator settled it without us (lost, deadline of cancelling): what still runs is in nobody's name.
    (_P.RUNNING, FinishedAck): _M.DROP,
    (_P.FINISHED, Offer): _M.REFUSE,
    (_P.FINISHED, Withdraw): _M.REFUSE,
    (_P.FINISHED, Start): _M.IGNORE,
    (_P.FINISHED, Cancel): _M.IGNORE,
    (_P.FINISHED, LogAck): _M.ACKNOWLEDGE,
    (_P.FINISHED, FinishedAck): _M.FORGET,
    (_P.DROPPED, Offer): _M.REFUSE,
    (_P.DROPPED, Withdraw): _M.IGNORE,
    (_P.DROPPED, Start): _M.IGNORE,
    (_P.DROPPED, Cancel): _M.IGNORE,
    (_P.DROPPED, LogAck): _M.IGNORE,
    (_P.DROPPED, FinishedAck): _M.IGNORE,
    # The same attempt may be offered again after a withdrawal.
    (_P.FORGOTTEN, Offer): _M.ANSWER,
    (_P.FORGOTTEN, Withdraw): _M.IGNORE,
    (_P.FORGOTTEN, Start): _M.IGNORE,
    (_P.FORGOTTEN, Cancel): _M.IGNORE,
    (_P.FORGOTTEN, LogAck): _M.IGNORE,
    (_P.FORGOTTEN, FinishedAck): _M.IGNORE,
}
"""What is held of the job × message. Total."""

# --- outcomes and events -----------------------------------------------------------------------------------


class StepOutcome(Struct, frozen=True, kw_only=True):
    """How one step ended; the fields of ``step_finished``."""

    result: Result
    reason: Reason = Reason.NONE
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    tries: int = 1
    outputs: dict[str, str] = {}
    log_size: int = 0
    log_digest: str = ""
    log_dropped: int = 0


class JobOutcome(Struct, frozen=True, kw_only=True):
    result: Result
    reason: Reason = Reason.NONE
    detail: str = ""
    outputs: dict[str, str] = {}


class Send(Struct, frozen=True):
    message: FromAgent


class Begin(Struct, frozen=True):
    """Run it now."""

    key: JobKey
    order: JobOrder
    secrets: dict[str, str]


class StopJob(Struct, frozen=True, kw_only=True):
    key: JobKey
    reason: Reason
    grace: float
    force: bool


class Forget(Struct, frozen=True):
    """Nobody will ask for this job's log again."""

    key: JobKey


class Stored(Struct, frozen=True):
    """Log bytes below ``offset`` need not be kept."""

    key: JobKey
    step: int
    offset: int


class Registered(Struct, frozen=True):
    welcome: Welcome


class TurnedAway(Struct, frozen=True):
    refused: Refused


class Answered(Struct, frozen=True):
    """The heartbeat of this number, or with 0 the ``hello``, was answered."""

    number: int


class DrainAsked(Struct, frozen=True):
    reason: str
    deadline: float


Output = Send | Begin | StopJob | Forget | Stored | Registered | TurnedAway | Answered | DrainAsked


class LogSlice(NamedTuple):
    """Bytes to send next: read them, then call :meth:`AgentSession.log`."""

    key: JobKey
    step: int
    offset: int
    length: int


class _Mark:
    """One step's log: ``stored`` ≤ ``sent`` ≤ ``end``; ``reach`` is the furthest ever sent."""

    __slots__ = ("closed", "end", "reach", "sent", "stored")

    def __init__(self) -> None:
        self.stored = self.sent = self.reach = self.end = 0
        self.closed = False


class _Held:
    __slots__ = ("key", "marks", "order", "phase", "reports", "sequence")

    def __init__(self, key: JobKey, order: JobOrder) -> None:
        self.key = key
        self.order = order
        self.phase = JobPhase.ACCEPTED
        self.sequence = 0
        self.reports: list[Report] = []
        self.marks: dict[int, _Mark] = {}

    def told(self) -> HeldJob:
        return HeldJob(
            job_id=self.key.job_id,
            attempt=self.key.attempt,
            state=HeldState(self.phase.value),
            sequence=self.sequence,
            logs=self.positions(),
        )

    def positions(self) -> tuple[LogPosition, ...]:
        return tuple(LogPosition(step=step, offset=mark.end) for step, mark in sorted(self.marks.items()))

    def in_flight(self) -> int:
        return sum(mark.sent - mark.stored for mark in self.marks.values())


_NOTHING: tuple[Output, ...] = ()


class AgentSession:
    """See the module. Every method returns what the worker has to do, in this order."""

    def __init__(
        self, *, agent_id: str, key: str, claim_code: str, boot_id: str, facts: Facts, single_use: bool
    ) -> None:
        self._agent_id = agent_id
        self._key = key
        self._claim_code = claim_code
        self._boot_id = boot_id
        self._facts = facts
        self._held: dict[JobKey, _Held] = {}
        self._forgotten: deque[JobKey] = deque(maxlen=REMEMBERED)
        self._chunk = LOG_CHUNK_LIMIT
        self.link = LinkState.OFFLINE
        self.single_use = single_use
        self.session = 0
        self._connections = 0
        self.draining = False
        self.spent = False
        """A single-use agent has begun its one job."""

    # --- connection ----------------------------------------------------------------------------------------

    def connected(self) -> tuple[Output, ...]:
        """A connection stands: say hello."""
        self.link = LinkState.GREETING
        self._connections += 1
        return (Send(self._hello()),)

    def disconnected(self) -> None:
        """The connection is over, however it ended. What is held stays held."""
        if self.link is not LinkState.ENDED:
            self.link = LinkState.OFFLINE

    def _hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL,
            agent_id=self._agent_id,
            key=self._key,
            boot_id=self._boot_id,
            facts=self._facts,
            # Kept until it was answered: a lost welcome must not leave the key unbound.
            claim_code=self._claim_code,
            jobs=tuple(held.told() for held in self._held.values() if held.phase is not JobPhase.DROPPED),
            draining=self.draining,
            connection=self._connections,
        )

    def received(self, message: ToAgent) -> tuple[Output, ...]:
        """What the coordinator said.

        :raises ProtocolError: a message that this state does not allow; close with its code.
        """
        if LINK_TABLE[self.link, type(message)] is Handling.REFUSE:
            raise _unexpected(message, f"while {self.link}")
        match message:
            case Welcome():
                return self._welcomed(message)
            case Refused():
                return (TurnedAway(message),)
            case Heartbeat():
                return (Send(HeartbeatAck(number=message.number)),)
            case HeartbeatAck():
                return (Answered(message.number),)
            case Drain():
                self.draining = True
                return (DrainAsked(message.reason, message.deadline),)
            case Offer() | Withdraw() | Start() | Cancel() | LogAck() | FinishedAck():
                return self._about_job(message)
            case _:
                assert_never(message)

    def refused_for_good(self) -> None:
        self.link = LinkState.ENDED

    def drain(self, reason: str) -> tuple[Output, ...]:
        """The host wants this agent to stop: take nothing more."""
        if self.draining:
            return _NOTHING
        self.draining = True
        return (Send(Draining(reason=reason)),) if self.link is LinkState.READY else _NOTHING

    def done(self) -> bool:
        """Nothing is held and nothing will be taken: the agent may end."""
        return not self._held and (self.draining or (self.single_use and self.spent))

    def busy(self) -> bool:
        """A job is accepted, running, or being killed."""
        return any(held.phase is not JobPhase.FINISHED for held in self._held.values())

    def phase(self, key: JobKey) -> JobPhase:
        held = self._held.get(key)
        if held is not None:
            return held.phase
        return JobPhase.FORGOTTEN if key in self._forgotten else JobPhase.UNKNOWN

    # --- welcome -------------------------------------------------------------------------------------------

    def _welcomed(self, welcome: Welcome) -> tuple[Output, ...]:
        self.link = LinkState.READY
        self.session = welcome.session
        self.single_use = self.single_use or welcome.single_use
        self._claim_code = ""
        self._chunk = max(1, min(LOG_CHUNK_LIMIT, welcome.limits.log_chunk))
        out: list[Output] = [Registered(welcome), Answered(0), Send(ConfigAck())]
        answers = {JobKey(answer.job_id, answer.attempt): answer for answer in welcome.jobs}
        for held in list(self._held.values()):
            out += self._answered_job(held, answers.get(held.key))
        if self.draining:
            out.append(Send(Draining()))
        return tuple(out)

    def _answered_job(self, held: _Held, answer: JobAnswer | None) -> tuple[Output, ...]:
        if held.phase is JobPhase.DROPPED:
            return _NOTHING
        if answer is None:
            return self._drop(held)
        if held.phase is JobPhase.ACCEPTED:
            return self._answered_accepted(held, answer)
        out: tuple[Output, ...] = ()
        if answer.action is Action.STOP and held.phase is JobPhase.RUNNING:
            out = (StopJob(key=held.key, reason=Reason.AGENT_LOST, grace=0.0, force=True),)
        return out + self._rewind(held, answer)

    def _answered_accepted(self, held: _Held, answer: JobAnswer) -> tuple[Output, ...]:
        match answer.action:
            case Action.START:
                return self._begin(held, answer.secrets)
            case Action.CONTINUE:
                return _NOTHING
            case Action.STOP:
                return self._forget(held)
            case _:
                assert_never(answer.action)

    def _rewind(self, held: _Held, answer: JobAnswer) -> tuple[Output, ...]:
        """Send again what lies above the coordinator's own marks."""
        out: list[Output] = []
        stored = {position.step: position.offset for position in answer.logs}
        for step, mark in held.marks.items():
            # What was acknowledged is on stable storage and gone from the spool: never sent again.
            offset = max(mark.stored, stored.get(step, 0))
            if offset > mark.end:
                raise ProtocolError(
                    f"welcome says that {offset} bytes of step {step}'s log are stored; {mark.end} were made",
                    close=close.UNEXPECTED,
                )
            mark.sent = offset
            mark.reach = max(mark.reach, offset)
            if offset > mark.stored:
                mark.stored = offset
                out.append(Stored(held.key, step, offset))
        out += [Send(report) for report in held.reports if report.sequence > answer.sequence]
        return tuple(out)

    # --- jobs ----------------------------------------------------------------------------------------------

    def _about_job(self, message: Offer | Withdraw | Start | Cancel | LogAck | FinishedAck) -> tuple[Output, ...]:
        key = JobKey(message.job_id, message.attempt)
        move = JOB_TABLE[self.phase(key), type(message)]
        held = self._held.get(key)
        if move is Move.IGNORE:
            return _NOTHING
        if move is Move.ANSWER and isinstance(message, Offer):
            return self._answer(key, message.order)
        if move is Move.REFUSE or held is None:
            raise _unexpected(message, f"for a job that is {self.phase(key)}")
        return self._move(move, held, message)

    def _move(
        self, move: Move, held: _Held, message: Offer | Withdraw | Start | Cancel | LogAck | FinishedAck
    ) -> tuple[Output, ...]:
        if isinstance(message, LogAck):
            return self._acknowledge(held, message)
        if isinstance(message, Start) and move is Move.BEGIN:
            return self._begin(held, message.secrets)
        if isinstance(message, Cancel) and move is Move.CANCEL:
            return (StopJob(key=held.key, reason=message.reason, grace=max(0.0, message.grace), force=message.force),)
        if move is Move.ACCEPT_AGAIN:
            return (Send(Accept(job_id=held.key.job_id, attempt=held.key.attempt)),)
        return self._drop(held) if move is Move.DROP else self._forget(held)

    def _answer(self, key: JobKey, order: JobOrder) -> tuple[Output, ...]:
        if self.draining or (self.single_use and self.spent):
            return self._decline(key, DeclineReason.DRAINING)
        if self.busy():
            return self._decline(key, DeclineReason.BUSY)
        if (order.job_id, order.attempt) != key:
            return self._decline(key, DeclineReason.UNFIT, "the order is for another job than the offer")
        self._held[key] = _Held(key, order)
        return (Send(Accept(job_id=key.job_id, attempt=key.attempt)),)

    def decline(self, key: JobKey, detail: str) -> tuple[Output, ...]:
        """The worker cannot run what was offered: instead of the ``accept`` that :meth:`received` returned."""
        self._held.pop(key, None)
        return self._decline(key, DeclineReason.UNFIT, detail)

    def _decline(self, key: JobKey, reason: DeclineReason, detail: str = "") -> tuple[Output, ...]:
        return (Send(Decline(job_id=key.job_id, attempt=key.attempt, reason=reason, detail=detail)),)

    def _begin(self, held: _Held, secrets: dict[str, str]) -> tuple[Output, ...]:
        held.phase = JobPhase.RUNNING
        self.spent = True
        return (Begin(held.key, held.order, dict(secrets)),)

    def _acknowledge(self, held: _Held, ack: LogAck) -> tuple[Output, ...]:
        mark = held.marks.get(ack.step)
        # By the furthest byte ever sent: an ack may have been on its way while a new session rewound `sent`.
        if mark is None or ack.offset > mark.reach:
            raise _unexpected(ack, f"with offset {ack.offset} of step {ack.step}, which was never sent")
        if ack.offset <= mark.stored:
            return _NOTHING
        mark.stored = ack.offset
        mark.sent = max(mark.sent, ack.offset)
        return (Stored(held.key, ack.step, ack.offset),)

    def _drop(self, held: _Held) -> tuple[Output, ...]:
        if held.phase is not JobPhase.RUNNING:
            return self._forget(held)
        held.phase = JobPhase.DROPPED
        held.reports.clear()
        return (StopJob(key=held.key, reason=Reason.AGENT_LOST, grace=0.0, force=True),)

    def _forget(self, held: _Held) -> tuple[Output, ...]:
        del self._held[held.key]
        self._forgotten.append(held.key)
        return (Forget(held.key),)

    # --- reports -------------------------------------------------------------------------------------------

    def job_started(self, key: JobKey, time: int) -> tuple[Output, ...]:
        sequence = self._next(key)
        return self._report(key, JobStarted(job_id=key.job_id, attempt=key.attempt, sequence=sequence, time=time))

    def step_started(self, key: JobKey, step: int, time: int) -> tuple[Output, ...]:
        sequence = self._next(key)
        return self._report(
            key, StepStarted(job_id=key.job_id, attempt=key.attempt, sequence=sequence, step=step, time=time)
        )

    def step_finished(self, key: JobKey, step: int, outcome: StepOutcome, time: int) -> tuple[Output, ...]:
        report = StepFinished(
            job_id=key.job_id,
            attempt=key.attempt,
            sequence=self._next(key),
            step=step,
            time=time,
            result=outcome.result,
            reason=outcome.reason,
            detail=_sayable(outcome.detail),
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            tries=outcome.tries,
            outputs=outcome.outputs,
            log_size=outcome.log_size,
            log_digest=outcome.log_digest,
            log_dropped=outcome.log_dropped,
        )
        return self._report(key, _fitting(report))

    def job_finished(self, key: JobKey, outcome: JobOutcome, time: int) -> tuple[Output, ...]:
        """The job ended here and nothing of it runs any more."""
        held = self._held.get(key)
        if held is None:
            return _NOTHING
        if held.phase is JobPhase.DROPPED:
            return self._forget(held)
        report = JobFinished(
            job_id=key.job_id,
            attempt=key.attempt,
            sequence=self._next(key),
            time=time,
            result=outcome.result,
            reason=outcome.reason,
            detail=_sayable(outcome.detail),
            outputs=outcome.outputs,
            logs=held.positions(),
        )
        for mark in held.marks.values():
            mark.closed = True
        out = self._report(key, _fitting(report))
        held.phase = JobPhase.FINISHED
        return out

    def _next(self, key: JobKey) -> int:
        held = self._held.get(key)
        return held.sequence + 1 if held else 0

    def _report(self, key: JobKey, report: Report) -> tuple[Output, ...]:
        held = self._held.get(key)
        if held is None or held.phase is not JobPhase.RUNNING:
            return _NOTHING
        held.sequence = report.sequence
        held.reports.append(report)
        return (Send(report),) if self.link is LinkState.READY else _NOTHING

    # --- log -----------------------------------------------------------------------------------------------

    def log_grew(self, key: JobKey, step: int, end: int, *, closed: bool = False) -> None:
        """The spool holds this step's log up to ``end``; ``closed``: no more will come."""
        held = self._held.get(key)
        if held is None or held.phase is JobPhase.DROPPED:
            return
        mark = held.marks.setdefault(step, _Mark())
        mark.end = max(mark.end, end)
        mark.closed = mark.closed or closed

    def pending_logs(self) -> list[LogSlice]:
        """What may be sent now, at most one chunk per step, within the window. Empty while not registered."""
        if self.link is not LinkState.READY:
            return []
        return [piece for held in self._held.values() for piece in self._pending_of(held)]

    def _pending_of(self, held: _Held) -> list[LogSlice]:
        if held.phase is JobPhase.DROPPED:
            return []
        room = LOG_WINDOW - held.in_flight()
        pieces = []
        for step, mark in held.marks.items():
            length = min(mark.end - mark.sent, self._chunk)
            # Not a part of a chunk into the last of the window: it would be cut into crumbs.
            if 0 < length <= room:
                pieces.append(LogSlice(held.key, step, mark.sent, length))
        return pieces

    def log_closed(self, key: JobKey, step: int) -> bool:
        """True when the step will print no more, so that waiting for a fuller chunk is in vain."""
        held = self._held.get(key)
        mark = held.marks.get(step) if held else None
        return mark is not None and mark.closed

    def log(self, piece: LogSlice, data: bytes, time: int) -> Log:
        """The message for ``data``, read at ``piece``; counts it as sent."""
        mark = self._held[piece.key].marks[piece.step]
        mark.sent = piece.offset + len(data)
        mark.reach = max(mark.reach, mark.sent)
        return Log(
            job_id=piece.key.job_id,
            attempt=piece.key.attempt,
            step=piece.step,
            offset=piece.offset,
            time=time,
            data=data,
        )


E = TypeVar("E", StepFinished, JobFinished)


def _fitting(report: E) -> E:
    """``report``, without its outputs where they do not fit a frame: one that cannot be sent would never end."""
    if not report.outputs:
        return report
    try:
        encode(report)
    except (ProtocolError, UnicodeEncodeError):
        return structs.replace(
            report,
            outputs={},
            result=Result.FAILED,
            reason=Reason.OUTPUTS_INVALID,
            detail="the outputs do not fit one message, or are no text; store large results elsewhere",
        )
    return report


def _sayable(detail: str) -> str:
    """Cut, and without half characters (a file name may hold any byte)."""
    return detail[:DETAIL_LIMIT].encode("utf-8", "replace").decode()


def _unexpected(message: ToAgent, where: str) -> ProtocolError:
    return ProtocolError(f"unexpected {type(message).__name__} {where}", close=close.UNEXPECTED)
