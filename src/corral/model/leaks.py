# SPDX-License-Identifier: Apache-2.0
"""What is known to cost money and is not wanted, or wanted and not there; and how the outbox stands."""

from __future__ import annotations

from msgspec import Struct


class Leak(Struct, frozen=True, kw_only=True):
    """One instance. ``kind``: ``abandoned``, ``stray`` or ``ghost``. ``since``: RFC 3339. ``hours``: how long that is.
    ``cost``: ``hours`` at ``cost_per_hour``, money of the operator's kind."""

    kind: str
    agent_id: str
    pool: str
    target: str
    provider_id: str = ""
    since: str
    hours: float
    cost_per_hour: float
    cost: float
    detail: str = ""


class Alarm(Struct, frozen=True, kw_only=True):
    """``code``: ABANDONED, EPOCH_BEHIND, INVENTORY_UNANSWERED or STRAYS_HELD. ``subject``: which target or agent."""

    code: str
    subject: str
    message: str
    remedy: str


class TargetView(Struct, frozen=True, kw_only=True):
    """One provisioner. Moments are RFC 3339, absent: never. ``listing``: yes, no, or not known yet."""

    key: str
    told_epoch: str
    told_at: str | None = None
    listed_at: str | None = None
    listing: str = "unknown"
    stale: bool = False
    """It has seen a higher epoch than ours."""
    error: str = ""


class LedgerView(Struct, frozen=True, kw_only=True):
    """``waiting``: events that are not delivered; ``lag``: seconds that the one due longest has waited."""

    leaks: tuple[Leak, ...]
    alarms: tuple[Alarm, ...]
    targets: tuple[TargetView, ...]
    waiting: int
    lag: float

    def hourly(self, kind: str) -> float:
        """What all of a kind cost in an hour."""
        return sum(leak.cost_per_hour for leak in self.leaks if leak.kind == kind)

    def accumulated(self, kind: str) -> float:
        return sum(leak.cost for leak in self.leaks if leak.kind == kind)


class ReportView(Struct, frozen=True, kw_only=True):
    """What a report changed. ``taken``: False: nothing but its provider id was kept, ``message`` says why."""

    agent_id: str
    state: str
    taken: bool
    message: str = ""


class EpochView(Struct, frozen=True, kw_only=True):
    """The epoch from which the next term counts, or the generation whose strays may be destroyed."""

    generation: int
