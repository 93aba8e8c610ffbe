# SPDX-License-Identifier: Apache-2.0
"""The state machines of run, job, attempt, step, agent and provision.

The diagrams in ``docs/states.md`` are generated from these tables, and so are the CHECK constraints of the
schema. A test walks the whole product of states and events.
"""

from __future__ import annotations

from enum import StrEnum

from corral.model.machine import Machine

# --- run ---------------------------------------------------------------------------------------------------


class RunState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RunEvent(StrEnum):
    START = "start"
    CANCEL = "cancel"
    SUCCEED = "succeed"
    FAIL = "fail"
    END_CANCELLED = "end-cancelled"


RUN = Machine(
    name="run",
    states=RunState,
    events=RunEvent,
    initial=RunState.QUEUED,
    terminal=frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED}),
    transitions={
        (RunState.QUEUED, RunEvent.START): RunState.RUNNING,
        (RunState.QUEUED, RunEvent.CANCEL): RunState.CANCELLING,
        (RunState.RUNNING, RunEvent.CANCEL): RunState.CANCELLING,
        # A run can end without ever starting: every job skipped, or none can be placed.
        (RunState.QUEUED, RunEvent.SUCCEED): RunState.SUCCEEDED,
        (RunState.QUEUED, RunEvent.FAIL): RunState.FAILED,
        (RunState.RUNNING, RunEvent.SUCCEED): RunState.SUCCEEDED,
        (RunState.RUNNING, RunEvent.FAIL): RunState.FAILED,
        # Cancelled too late: everything had already ended by itself.
        (RunState.CANCELLING, RunEvent.SUCCEED): RunState.SUCCEEDED,
        (RunState.CANCELLING, RunEvent.FAIL): RunState.FAILED,
        (RunState.CANCELLING, RunEvent.END_CANCELLED): RunState.CANCELLED,
    },
    ignored=frozenset(
        {
            (RunState.RUNNING, RunEvent.START),
            (RunState.CANCELLING, RunEvent.START),
            (RunState.CANCELLING, RunEvent.CANCEL),
        }
    ),
)

# --- job ---------------------------------------------------------------------------------------------------


class JobState(StrEnum):
    WAITING = "waiting"
    """For the jobs it needs."""
    QUEUED = "queued"
    """Ready, for an agent."""
    OFFERED = "offered"
    """One agent has been asked; nothing has been touched."""
    RUNNING = "running"
    """The accept is committed; from here on the job may have effects."""
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class JobEvent(StrEnum):
    READY = "ready"
    SKIP = "skip"
    OFFER = "offer"
    WITHDRAW = "withdraw"
    START = "start"
    RETRY = "retry"
    CANCEL = "cancel"
    SUCCEED = "succeed"
    FAIL = "fail"
    END_CANCELLED = "end-cancelled"


JOB = Machine(
    name="job",
    states=JobState,
    events=JobEvent,
    initial=JobState.WAITING,
    terminal=frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.SKIPPED}),
    transitions={
        (JobState.WAITING, JobEvent.READY): JobState.QUEUED,
        (JobState.WAITING, JobEvent.SKIP): JobState.SKIPPED,
        (JobState.WAITING, JobEvent.FAIL): JobState.FAILED,
        (JobState.WAITING, JobEvent.END_CANCELLED): JobState.CANCELLED,
        (JobState.QUEUED, JobEvent.OFFER): JobState.OFFERED,
        (JobState.QUEUED, JobEvent.FAIL): JobState.FAILED,
        (JobState.QUEUED, JobEvent.END_CANCELLED): JobState.CANCELLED,
        (JobState.OFFERED, JobEvent.WITHDRAW): JobState.QUEUED,
        (JobState.OFFERED, JobEvent.START): JobState.RUNNING,
        (JobState.OFFERED, JobEvent.FAIL): JobState.FAILED,
        (JobState.OFFERED, JobEvent.END_CANCELLED): JobState.CANCELLED,
        (JobState.RUNNING, JobEvent.RETRY): JobState.QUEUED,
        (JobState.RUNNING, JobEvent.CANCEL): JobState.CANCELLING,
        (JobState.RUNNING, JobEvent.SUCCEED): JobState.SUCCEEDED,
        (JobState.RUNNING, JobEvent.FAIL): JobState.FAILED,
        (JobState.RUNNING, JobEvent.END_CANCELLED): JobState.CANCELLED,
        # It ended by itself while the cancel was on its way.
        (JobState.CANCELLING, JobEvent.SUCCEED): JobState.SUCCEEDED,
        (JobState.CANCELLING, JobEvent.FAIL): JobState.FAILED,
        (JobState.CANCELLING, JobEvent.END_CANCELLED): JobState.CANCELLED,
    },
    ignored=frozenset(
        {
            (JobState.QUEUED, JobEvent.READY),
            (JobState.QUEUED, JobEvent.WITHDRAW),
            (JobState.OFFERED, JobEvent.READY),
            (JobState.RUNNING, JobEvent.READY),
            (JobState.RUNNING, JobEvent.START),
            (JobState.RUNNING, JobEvent.WITHDRAW),
            (JobState.CANCELLING, JobEvent.READY),
            (JobState.CANCELLING, JobEvent.CANCEL),
            (JobState.CANCELLING, JobEvent.START),
            (JobState.CANCELLING, JobEvent.WITHDRAW),
        }
    ),
)

# --- attempt -----------------------------------------------------------------------------------------------


class AttemptState(StrEnum):
    OFFERED = "offered"
    STARTING = "starting"
    """`start` is committed; the agent has not yet said that it began."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    WITHDRAWN = "withdrawn"
    """Declined, not answered in time, or never started: it had no effect and counts as no try."""
    LOST = "lost"
    """Its agent or instance went away in the middle."""


class AttemptEvent(StrEnum):
    START = "start"
    BEGAN = "began"
    SUCCEED = "succeed"
    FAIL = "fail"
    END_CANCELLED = "end-cancelled"
    WITHDRAW = "withdraw"
    LOSE = "lose"


_A, _AE = AttemptState, AttemptEvent
ATTEMPT = Machine(
    name="attempt",
    states=AttemptState,
    events=AttemptEvent,
    initial=AttemptState.OFFERED,
    terminal=frozenset({_A.SUCCEEDED, _A.FAILED, _A.CANCELLED, _A.WITHDRAWN, _A.LOST}),
    transitions={
        (_A.OFFERED, _AE.START): _A.STARTING,
        (_A.OFFERED, _AE.WITHDRAW): _A.WITHDRAWN,
        (_A.OFFERED, _AE.END_CANCELLED): _A.CANCELLED,
        (_A.OFFERED, _AE.LOSE): _A.WITHDRAWN,
        (_A.STARTING, _AE.BEGAN): _A.RUNNING,
        # Same agent process, and it knows nothing of the job: the start never reached it.
        (_A.STARTING, _AE.WITHDRAW): _A.WITHDRAWN,
        (_A.STARTING, _AE.LOSE): _A.LOST,
        # The end may overtake the beginning.
        (_A.STARTING, _AE.SUCCEED): _A.SUCCEEDED,
        (_A.STARTING, _AE.FAIL): _A.FAILED,
        (_A.STARTING, _AE.END_CANCELLED): _A.CANCELLED,
        (_A.RUNNING, _AE.SUCCEED): _A.SUCCEEDED,
        (_A.RUNNING, _AE.FAIL): _A.FAILED,
        (_A.RUNNING, _AE.END_CANCELLED): _A.CANCELLED,
        (_A.RUNNING, _AE.LOSE): _A.LOST,
    },
    ignored=frozenset(
        {
            (_A.STARTING, _AE.START),
            (_A.RUNNING, _AE.START),
            (_A.RUNNING, _AE.BEGAN),
        }
    ),
)

# --- step --------------------------------------------------------------------------------------------------


class StepState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Its agent went away; what it did is unknown."""


class StepEvent(StrEnum):
    START = "start"
    SUCCEED = "succeed"
    FAIL = "fail"
    SKIP = "skip"
    END_CANCELLED = "end-cancelled"
    LOSE = "lose"


_S, _SE = StepState, StepEvent
STEP = Machine(
    name="step",
    states=StepState,
    events=StepEvent,
    initial=StepState.PENDING,
    terminal=frozenset({_S.SUCCEEDED, _S.FAILED, _S.SKIPPED, _S.CANCELLED, _S.LOST}),
    transitions={
        (_S.PENDING, _SE.START): _S.RUNNING,
        # The end may overtake the beginning.
        (_S.PENDING, _SE.SUCCEED): _S.SUCCEEDED,
        (_S.PENDING, _SE.FAIL): _S.FAILED,
        (_S.PENDING, _SE.SKIP): _S.SKIPPED,
        (_S.PENDING, _SE.END_CANCELLED): _S.CANCELLED,
        (_S.PENDING, _SE.LOSE): _S.SKIPPED,
        (_S.RUNNING, _SE.SUCCEED): _S.SUCCEEDED,
        (_S.RUNNING, _SE.FAIL): _S.FAILED,
        (_S.RUNNING, _SE.END_CANCELLED): _S.CANCELLED,
        (_S.RUNNING, _SE.LOSE): _S.LOST,
    },
    ignored=frozenset({(_S.RUNNING, _SE.START)}),
)

# --- agent -------------------------------------------------------------------------------------------------


class AgentState(StrEnum):
    EXPECTED = "expected"
    """The row is made; nobody has registered under it."""
    ONLINE = "online"
    OFFLINE = "offline"
    """Registered before, no session now."""
    ENDED = "ended"
    """Its instance is gone, or its token was revoked."""


class AgentEvent(StrEnum):
    REGISTER = "register"
    DISCONNECT = "disconnect"
    END = "end"


AGENT = Machine(
    name="agent",
    states=AgentState,
    events=AgentEvent,
    initial=AgentState.EXPECTED,
    terminal=frozenset({AgentState.ENDED}),
    transitions={
        (AgentState.EXPECTED, AgentEvent.REGISTER): AgentState.ONLINE,
        (AgentState.OFFLINE, AgentEvent.REGISTER): AgentState.ONLINE,
        (AgentState.ONLINE, AgentEvent.DISCONNECT): AgentState.OFFLINE,
        (AgentState.EXPECTED, AgentEvent.END): AgentState.ENDED,
        (AgentState.ONLINE, AgentEvent.END): AgentState.ENDED,
        (AgentState.OFFLINE, AgentEvent.END): AgentState.ENDED,
    },
    ignored=frozenset(
        {
            (AgentState.ONLINE, AgentEvent.REGISTER),  # a newer session replaces the older
            (AgentState.OFFLINE, AgentEvent.DISCONNECT),
            (AgentState.EXPECTED, AgentEvent.DISCONNECT),
        }
    ),
)

# --- provision ---------------------------------------------------------------------------------------------


class ProvisionState(StrEnum):
    REQUESTED = "requested"
    """Written; the instance may or may not exist."""
    ACTIVE = "active"
    """Its agent has registered."""
    RELEASING = "releasing"
    """Not wanted any more; being destroyed."""
    GONE = "gone"
    """Confirmed not to exist."""
    ABANDONED = "abandoned"
    """Could not be destroyed; on the leak ledger."""


class ProvisionEvent(StrEnum):
    REGISTERED = "registered"
    RELEASE = "release"
    """Cordoned, condemned, failed for good, or its job went away."""
    GONE = "gone"
    """The backend confirms that it does not exist."""
    UNSENT = "unsent"
    """Given up before anything outside was asked for it."""
    EXHAUSTED = "exhausted"
    REAPPEARED = "reappeared"
    """Its agent knocked, or an inventory listed it."""
    RETRY = "retry"


_P, _PE = ProvisionState, ProvisionEvent
PROVISION = Machine(
    name="provision",
    states=ProvisionState,
    events=ProvisionEvent,
    initial=ProvisionState.REQUESTED,
    terminal=frozenset({_P.GONE}),
    transitions={
        (_P.REQUESTED, _PE.REGISTERED): _P.ACTIVE,
        (_P.REQUESTED, _PE.RELEASE): _P.RELEASING,
        (_P.REQUESTED, _PE.UNSENT): _P.GONE,
        # An instance seen to have ended still passes through `releasing`: what is left of it is cleaned up there.
        (_P.REQUESTED, _PE.GONE): _P.RELEASING,
        (_P.ACTIVE, _PE.RELEASE): _P.RELEASING,
        (_P.ACTIVE, _PE.GONE): _P.RELEASING,
        (_P.RELEASING, _PE.GONE): _P.GONE,
        (_P.RELEASING, _PE.EXHAUSTED): _P.ABANDONED,
        (_P.ABANDONED, _PE.RETRY): _P.RELEASING,
        (_P.ABANDONED, _PE.REAPPEARED): _P.RELEASING,
        (_P.ABANDONED, _PE.GONE): _P.GONE,
        (_P.GONE, _PE.REAPPEARED): _P.RELEASING,
    },
    ignored=frozenset(
        {
            (_P.REQUESTED, _PE.EXHAUSTED),
            (_P.REQUESTED, _PE.REAPPEARED),
            (_P.REQUESTED, _PE.RETRY),
            (_P.ACTIVE, _PE.REGISTERED),
            (_P.ACTIVE, _PE.UNSENT),
            (_P.ACTIVE, _PE.EXHAUSTED),
            (_P.ACTIVE, _PE.REAPPEARED),
            (_P.ACTIVE, _PE.RETRY),
            (_P.RELEASING, _PE.REGISTERED),
            (_P.RELEASING, _PE.RELEASE),
            (_P.RELEASING, _PE.UNSENT),
            (_P.RELEASING, _PE.REAPPEARED),
            (_P.RELEASING, _PE.RETRY),
            (_P.ABANDONED, _PE.REGISTERED),
            (_P.ABANDONED, _PE.RELEASE),
            (_P.ABANDONED, _PE.UNSENT),
            (_P.ABANDONED, _PE.EXHAUSTED),
        }
    ),
)

# --- delivery ----------------------------------------------------------------------------------------------


class DeliveryState(StrEnum):
    """Of one event in the outbox."""

    PENDING = "pending"
    """To be sent, now or at its next moment."""
    SENDING = "sending"
    """The sending is recorded; it may or may not have arrived."""
    DELIVERED = "delivered"
    FAILED = "failed"
    """Refused for good, or not delivered by its deadline."""
    DROPPED = "dropped"
    """Never sent, and not wanted any more."""


class DeliveryEvent(StrEnum):
    SEND = "send"
    AGAIN = "again"
    """Not answered, asked to come later, or accepted and not yet done."""
    DELIVER = "deliver"
    FAIL = "fail"
    DROP = "drop"


_D, _DE = DeliveryState, DeliveryEvent
DELIVERY = Machine(
    name="delivery",
    states=DeliveryState,
    events=DeliveryEvent,
    initial=DeliveryState.PENDING,
    terminal=frozenset({_D.DELIVERED, _D.FAILED, _D.DROPPED}),
    transitions={
        (_D.PENDING, _DE.SEND): _D.SENDING,
        (_D.PENDING, _DE.DROP): _D.DROPPED,
        # A report says by another way what became of it.
        (_D.PENDING, _DE.DELIVER): _D.DELIVERED,
        (_D.PENDING, _DE.FAIL): _D.FAILED,
        (_D.SENDING, _DE.AGAIN): _D.PENDING,
        (_D.SENDING, _DE.DELIVER): _D.DELIVERED,
        (_D.SENDING, _DE.FAIL): _D.FAILED,
    },
    ignored=frozenset(
        {
            (_D.PENDING, _DE.AGAIN),
            (_D.SENDING, _DE.SEND),
            # What is on its way cannot be taken back; a scale-down follows it.
            (_D.SENDING, _DE.DROP),
        }
    ),
)

MACHINES = (RUN, JOB, ATTEMPT, STEP, AGENT, PROVISION, DELIVERY)
