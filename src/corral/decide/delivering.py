# SPDX-License-Identifier: Apache-2.0
"""Which events are sent now, and what each answer means for the event and for its provision.

An answer's meaning is a table over kind, verdict and the provision's state. It is total: an answer may come when the
agent has long registered, finished or been accounted as gone. Moments are microseconds, durations seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from corral.model.events import EventKind, Exec, Target, Verdict, Webhook, WorkflowTarget
from corral.model.ids import AgentId
from corral.model.records import Delivery
from corral.model.states import DeliveryEvent, ProvisionState

SECOND = 1_000_000
PER_TARGET = 8
"""Sends of one kind to one target at the same time: a provisioner is usually one small service or a cloud CLI, and
one that hangs on creations must still be asked to destroy."""
BACKOFF_BASE = 5.0
BACKOFF_MAX = 300.0
BACKOFF_LEAST = 0.5
"""Seconds: full jitter may draw nothing at all, and a refusing target would be asked in a loop."""
DELIVERY_DEADLINE = 600.0
"""Seconds within which a scale-up has to be taken, and after which an unanswered inventory request holds back no
scale-down any more."""
SEND_MARGIN = 5.0
"""Seconds after a send's timeout until which what it asked for may still begin."""
CONSISTENCY = 60.0
"""Seconds between two looks that find nothing of an instance whose destruction was only accepted: a provider's view
of what exists may lag behind."""
RELEASE_ATTEMPTS_MAX = 20
UNCONFIRMED_MAX = 24 * 3600.0
UNCONFIRMED_SENDS = 10
"""Sends that count before an instance is given up for want of a confirmation: the time alone would also pass while
this installation was switched off."""


def timeout_of(target: Target) -> float:
    match target:
        case Webhook() | Exec() | WorkflowTarget():
            return target.timeout


# --- which are sent ----------------------------------------------------------------------------------------


class Fence(StrEnum):
    """How far a target is with the first event of this term, its inventory request."""

    UNASKED = "unasked"
    ASKED = "asked"
    TOLD = "told"
    """It was received, or waited for long enough."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """``unresolved``: of each agent, the sends that may still arrive (deadline by delivery). ``load``: sends under way
    by target and kind."""

    fences: Mapping[str, Fence]
    now: int
    unresolved: Mapping[AgentId, Mapping[str, int]] = field(default_factory=dict)
    load: Mapping[tuple[str, EventKind], int] = field(default_factory=dict)
    per_target: int = PER_TARGET


def pick(due: Sequence[Delivery], situation: Situation) -> tuple[Delivery, ...]:
    """Those to be sent now, in order: a provision's events one after another, and never one while an earlier send about
    it may still arrive; a scale-down only where the target knows this term."""
    load = dict(situation.load)
    taken: set[AgentId] = set()
    chosen = []
    for row in sorted(due, key=lambda each: (each.position, each.sequence, each.id)):
        place = (row.target_key, row.kind)
        if row.agent_id is None or row.agent_id in taken:
            continue
        taken.add(row.agent_id)
        if not _may_follow(row, situation) or load.get(place, 0) >= situation.per_target:
            continue
        load[place] = load.get(place, 0) + 1
        chosen.append(row)
    return tuple(chosen)


def _may_follow(row: Delivery, situation: Situation) -> bool:
    assert row.agent_id is not None
    others = situation.unresolved.get(row.agent_id, {})
    if row.next_at > situation.now or any(key != row.id and at > situation.now for key, at in others.items()):
        return False
    fence = situation.fences.get(row.target_key, Fence.UNASKED)
    return fence is Fence.TOLD or (fence is Fence.ASKED and row.kind is EventKind.SCALE_UP)


# --- what an answer means ----------------------------------------------------------------------------------


class Consequence(StrEnum):
    """For the provision."""

    NOTHING = "nothing"
    CREATE_FAILED = "create-failed"
    """For good; as it may have made something all the same, a scale-down follows."""
    GONE = "gone"
    REFUSED = "refused"
    """One more answered refusal to destroy it."""
    REAPPEARED = "reappeared"
    """It was accounted as gone before this creation was answered: a scale-down has to follow."""


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """``again_after``: seconds it has to wait at least before the next send."""

    event: DeliveryEvent
    provision: Consequence = Consequence.NOTHING
    again_after: float = 0.0


_DELIVER = Meaning(event=DeliveryEvent.DELIVER)
_AGAIN = Meaning(event=DeliveryEvent.AGAIN)
_FAIL = Meaning(event=DeliveryEvent.FAIL)
_TAKEN = (Verdict.DONE, Verdict.ACCEPTED, Verdict.ALREADY)
_CONFIRMED = (Verdict.DONE, Verdict.ALREADY, Verdict.ABSENT)


def meaning(kind: EventKind, verdict: Verdict, state: ProvisionState | None, *, last: str = "") -> Meaning:
    """``state``: of the provision as it is now, None: it was purged. ``last``: what the send before came to."""
    if kind is EventKind.SCALE_UP:
        return _scale_up(verdict, state)
    if kind is EventKind.SCALE_DOWN:
        return _scale_down(verdict, state, last)
    return _DELIVER if received(verdict) else _AGAIN


def received(verdict: Verdict) -> bool:
    """Whether an inventory request arrived, whatever it was answered: from then on the target knows this term."""
    return verdict not in (Verdict.UNANSWERED, Verdict.LATER)


def _scale_up(verdict: Verdict, state: ProvisionState | None) -> Meaning:
    match state:
        case ProvisionState.REQUESTED:
            if verdict in _TAKEN:
                return _DELIVER
            if verdict is Verdict.ABSENT:
                return Meaning(event=DeliveryEvent.FAIL, provision=Consequence.CREATE_FAILED)
            return _AGAIN
        case ProvisionState.ACTIVE:
            return _DELIVER  # its agent is here: the instance exists, whatever was answered
        case ProvisionState.GONE if verdict is not Verdict.ABSENT:
            event = DeliveryEvent.DELIVER if verdict in _TAKEN else DeliveryEvent.FAIL
            return Meaning(event=event, provision=Consequence.REAPPEARED)
        case _:
            # Not wanted any more; the scale-down that is behind it is the answer to every uncertainty.
            return _DELIVER if verdict in _TAKEN else _FAIL


def _scale_down(verdict: Verdict, state: ProvisionState | None, last: str) -> Meaning:
    match state:
        case ProvisionState.RELEASING:
            return _releasing(verdict, last)
        case ProvisionState.ABANDONED:
            if verdict in _CONFIRMED:
                return Meaning(event=DeliveryEvent.DELIVER, provision=Consequence.GONE)
            return _FAIL
        case ProvisionState.GONE | None:
            return _DELIVER  # a report or two listings said so first
        case _:
            return _DELIVER if verdict in _CONFIRMED else _FAIL


def _releasing(verdict: Verdict, last: str) -> Meaning:
    if verdict is Verdict.ABSENT and last == Verdict.ACCEPTED:
        return Meaning(event=DeliveryEvent.AGAIN, again_after=CONSISTENCY)
    if verdict in _CONFIRMED:
        return Meaning(event=DeliveryEvent.DELIVER, provision=Consequence.GONE)
    if verdict is Verdict.REFUSED:
        return Meaning(event=DeliveryEvent.AGAIN, provision=Consequence.REFUSED)
    return _AGAIN


# --- for how long ------------------------------------------------------------------------------------------


def pause(attempts: int, chance: float, retry_after: float | None = None) -> float:
    """Seconds until the next send. ``attempts``: sends so far, at least 1. ``chance``: in [0, 1)."""
    ceiling: float = min(BACKOFF_MAX, BACKOFF_BASE * 2 ** min(max(attempts, 1) - 1, 16))
    asked = min(retry_after, BACKOFF_MAX) if retry_after is not None else 0.0
    return max(chance * ceiling, asked, BACKOFF_LEAST)


def too_late(row: Delivery, now: int) -> bool:
    """A scale-up that was not taken by its deadline fails for good."""
    return row.kind is EventKind.SCALE_UP and row.deadline_at is not None and now >= row.deadline_at


def exhausted(row: Delivery, *, refusals: int, verdict: Verdict, now: int) -> bool:
    """Whether a scale-down that was not confirmed is given up. One that is refused for our epoch never is: that says
    nothing of the instance."""
    if verdict is Verdict.STALE:
        return False
    if refusals >= RELEASE_ATTEMPTS_MAX:
        return True
    began = row.first_sent_at if row.first_sent_at is not None else now
    return row.attempts >= UNCONFIRMED_SENDS and now - began >= UNCONFIRMED_MAX * SECOND
