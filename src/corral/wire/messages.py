# SPDX-License-Identifier: Apache-2.0
"""The messages of ``corral.agent.v1``: tagged structs, one per line of the protocol.

Offsets count bytes of one step's log from 0. Sequences count the reports of one attempt from 1. Times are
microseconds since the Unix epoch by the sender's clock, for display only. Unknown fields are ignored; a message
type that the first version does not know is sent only after its capability was negotiated.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from corral.model.spec import STEPS_LIMIT, JobOrder, Reason, Result

PROTOCOL = 1
SUBPROTOCOL = "corral.agent.v1"
FRAME_LIMIT = 1024 * 1024
"""Bytes of one frame, both directions."""
LOG_CHUNK_LIMIT = 64 * 1024
"""Bytes of log in one ``log`` message."""
HELLO_TIMEOUT = 5.0
"""Seconds a connection has to send ``hello``."""
HEARTBEAT_INTERVAL = 20.0
AGENT_DEAD_AFTER = 60.0
"""Seconds without any byte after which a session is dead, on either side."""
DISPATCH_ACK_TIMEOUT = 10.0
"""Seconds an agent has to answer an offer."""

# Bounds of what is stored or counted: a frame with a number outside them is no message.
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StepNumber = Annotated[int, Meta(ge=0, lt=STEPS_LIMIT)]
Bytes = Annotated[int, Meta(ge=0, le=2**53)]
Moment = Annotated[int, Meta(ge=-(2**62), le=2**62)]
ExitNumber = Annotated[int, Meta(ge=-(2**31), le=2**32)]


class HeldState(StrEnum):
    """What an agent says of a job in ``hello``."""

    ACCEPTED = "accepted"
    RUNNING = "running"
    FINISHED = "finished"


class Action(StrEnum):
    """What the coordinator answers for it in ``welcome``."""

    START = "start"
    CONTINUE = "continue"
    STOP = "stop"


class DeclineReason(StrEnum):
    BUSY = "busy"
    DRAINING = "draining"
    UNFIT = "unfit"


class Facts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The host as the agent sees it. ``memory`` in bytes."""

    os: str
    arch: str
    host: str
    version: str
    pid: int = 0
    cpus: int = 0
    memory: int = 0


class LogPosition(Struct, frozen=True, kw_only=True, array_like=True):
    """``offset``: from the agent, the end of what it holds; from the coordinator, what is stored."""

    step: StepNumber
    offset: Bytes


class HeldJob(Struct, frozen=True, kw_only=True):
    job_id: str
    attempt: Count
    state: HeldState
    sequence: Count
    """Highest report made."""
    logs: tuple[LogPosition, ...] = ()


class JobAnswer(Struct, frozen=True, kw_only=True):
    """``sequence``: the highest report stored; the agent sends what lies above. ``logs``: offsets stored."""

    job_id: str
    attempt: Count
    action: Action
    sequence: Count = 0
    logs: tuple[LogPosition, ...] = ()
    secrets: dict[str, str] = {}


# --- agent to coordinator ----------------------------------------------------------------------------------


class Hello(Struct, frozen=True, kw_only=True, tag="hello"):
    """``key`` is the agent's own 256-bit credential; ``claim_code`` binds it, once, to ``agent_id``. ``connection``
    rises with every connection of one boot, so that a ``hello`` which was overtaken by a later one is known; 0: the
    agent does not count."""

    protocol: int
    agent_id: str
    key: str
    boot_id: str
    facts: Facts
    claim_code: str = ""
    capabilities: tuple[str, ...] = ()
    jobs: tuple[HeldJob, ...] = ()
    draining: bool = False
    connection: int = 0


class ConfigAck(Struct, frozen=True, kw_only=True, tag="config_ack"):
    """The agent holds its key and configuration; what carried the claim may be wiped."""


class Accept(Struct, frozen=True, kw_only=True, tag="accept"):
    job_id: str
    attempt: Count


class Decline(Struct, frozen=True, kw_only=True, tag="decline"):
    job_id: str
    attempt: Count
    reason: DeclineReason
    detail: str = ""


class JobStarted(Struct, frozen=True, kw_only=True, tag="job_started"):
    job_id: str
    attempt: Count
    sequence: Count
    time: Moment


class StepStarted(Struct, frozen=True, kw_only=True, tag="step_started"):
    job_id: str
    attempt: Count
    sequence: Count
    step: StepNumber
    time: Moment


class StepFinished(Struct, frozen=True, kw_only=True, tag="step_finished"):
    """``log_size`` and ``log_digest`` (SHA-256, hex) say what the whole log of the step is."""

    job_id: str
    attempt: Count
    sequence: Count
    step: StepNumber
    time: Moment
    result: Result
    reason: Reason = Reason.NONE
    detail: str = ""
    exit_code: ExitNumber | None = None
    signal: ExitNumber | None = None
    tries: Count = 1
    outputs: dict[str, str] = {}
    log_size: Bytes = 0
    log_digest: str = ""
    log_dropped: Bytes = 0
    """Bytes that the limit or a full spool cost, stated, never silent."""


class JobFinished(Struct, frozen=True, kw_only=True, tag="job_finished"):
    job_id: str
    attempt: Count
    sequence: Count
    time: Moment
    result: Result
    reason: Reason = Reason.NONE
    detail: str = ""
    outputs: dict[str, str] = {}
    logs: tuple[LogPosition, ...] = ()


class Log(Struct, frozen=True, kw_only=True, tag="log"):
    """At most :data:`LOG_CHUNK_LIMIT` bytes of one step's log, as they were printed (after masking)."""

    job_id: str
    attempt: Count
    step: StepNumber
    offset: Bytes
    time: Moment
    data: bytes


class Heartbeat(Struct, frozen=True, kw_only=True, tag="heartbeat"):
    """Both directions. ``number`` rises by one; it comes back in the answer."""

    number: int


class HeartbeatAck(Struct, frozen=True, kw_only=True, tag="heartbeat_ack"):
    number: int


class Draining(Struct, frozen=True, kw_only=True, tag="draining"):
    """The agent will decline every further offer (its host asked it to stop)."""

    reason: str = ""


# --- coordinator to agent ----------------------------------------------------------------------------------


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the agent must keep to. Seconds and bytes."""

    agent_dead_after: float = AGENT_DEAD_AFTER
    lost_after: float = 120.0
    stranded_after: float = 1800.0
    log_chunk: int = LOG_CHUNK_LIMIT
    frame: int = FRAME_LIMIT


class Welcome(Struct, frozen=True, kw_only=True, tag="welcome"):
    session: Count
    coordinator_urls: tuple[str, ...]
    heartbeat_interval: float
    limits: Limits
    single_use: bool
    capabilities: tuple[str, ...] = ()
    jobs: tuple[JobAnswer, ...] = ()


class RefusedCode(StrEnum):
    """Why a ``hello`` is refused, and what the agent does then."""

    RETRY = "retry"
    """Cannot be looked up right now: same coordinator, after ``retry_after``."""
    IN_USE = "in_use"
    """Another process is connected under this identity: after ``retry_after``."""
    UNKNOWN = "unknown"
    """The credential does not verify: stop."""
    EXPIRED = "expired"
    """The claim is over: stop."""
    USED = "used"
    """The claim was spent by another key: stop."""
    GONE = "gone"
    """The instance is accounted as gone: stop."""
    REVOKED = "revoked"
    """An operator revoked the token: stop."""
    PROTOCOL = "protocol"
    """No protocol version in common: stop."""
    TOO_MANY = "too_many"
    """Failed attempts from this address are limited: after ``retry_after``."""


RETRYABLE = frozenset({RefusedCode.RETRY, RefusedCode.IN_USE, RefusedCode.TOO_MANY})


class Refused(Struct, frozen=True, kw_only=True, tag="refused"):
    code: RefusedCode
    message: str
    retry_after: float = 0.0


class Offer(Struct, frozen=True, kw_only=True, tag="offer"):
    """Nothing may be touched before ``start``. ``deadline`` in seconds from receipt."""

    job_id: str
    attempt: Count
    order: JobOrder
    deadline: float = DISPATCH_ACK_TIMEOUT


class Withdraw(Struct, frozen=True, kw_only=True, tag="withdraw"):
    """An offer, accepted or not, that will not be started."""

    job_id: str
    attempt: Count


class Start(Struct, frozen=True, kw_only=True, tag="start"):
    job_id: str
    attempt: Count
    secrets: dict[str, str] = {}


class Cancel(Struct, frozen=True, kw_only=True, tag="cancel"):
    """SIGINT, cleanup, then SIGKILL after ``grace`` seconds; ``force``: SIGKILL at once."""

    job_id: str
    attempt: Count
    reason: Reason = Reason.CANCELLED
    grace: float = 10.0
    force: bool = False


class LogAck(Struct, frozen=True, kw_only=True, tag="log_ack"):
    """Everything below ``offset`` is on stable storage."""

    job_id: str
    attempt: Count
    step: StepNumber
    offset: Bytes


class FinishedAck(Struct, frozen=True, kw_only=True, tag="finished_ack"):
    """The end is committed and the log stored (or its loss stated): the agent forgets the job."""

    job_id: str
    attempt: Count


class Drain(Struct, frozen=True, kw_only=True, tag="drain"):
    """Take nothing more. A job in hand goes on until ``deadline`` seconds from now."""

    reason: str
    deadline: float


FromAgent = (
    Hello
    | ConfigAck
    | Accept
    | Decline
    | JobStarted
    | StepStarted
    | StepFinished
    | JobFinished
    | Log
    | Heartbeat
    | HeartbeatAck
    | Draining
)
ToAgent = (
    Welcome | Refused | Offer | Withdraw | Start | Cancel | LogAck | FinishedAck | Drain | Heartbeat | HeartbeatAck
)
Report = JobStarted | StepStarted | StepFinished | JobFinished
