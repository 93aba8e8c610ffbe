# SPDX-License-Identifier: Apache-2.0
"""Who leads, and for how long it may think so.

The lease is a row that only the database's clock and conditional writes decide over. What a coordinator *believes* of
it is decided here, from its own clock: it trusts a renewal from the moment at which it began to ask, never longer, and
it stops trusting itself before anybody else can hold the lease.
"""

from __future__ import annotations

from dataclasses import dataclass

TTL = 10.0
"""Seconds for which a renewal holds, by the database's clock."""
RENEW_EVERY = 3.0
STAND_EVERY = 1.0
"""Seconds between two tries of one that does not hold it."""
TRUST_MARGIN = 2.0
"""Seconds before the end of a term at which its holder stops trusting it: the leader's services end in this time."""
PAUSE = 2.0
"""Seconds by which the database's time and our own may drift apart between two renewals. More is a pause of ours (a
frozen virtual machine's monotonic clock need not count one) or a step of the database's clock."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The row. ``renewed_at``: microseconds, database time."""

    holder: str
    epoch: tuple[int, int]
    renewed_at: int


@dataclass(frozen=True, kw_only=True)
class Renewal:
    """One that succeeded: when the asking began (own monotonic seconds), and what the database's clock was."""

    asked_at: float
    database_at: int


def trusted_until(asked_at: float) -> float:
    """Own monotonic second at which a term renewed by asking at ``asked_at`` stops being trusted."""
    return asked_at + TTL - TRUST_MARGIN


def paused(before: Renewal, after: Renewal) -> bool:
    """We, or the database's clock, jumped between two renewals: every absence clock has to start again."""
    own = after.asked_at - before.asked_at
    database = (after.database_at - before.database_at) / 1_000_000
    return abs(database - own) > PAUSE


@dataclass(frozen=True, kw_only=True)
class Watch:
    """A lease as a standby first saw it, and since when (own monotonic seconds)."""

    lease: Lease
    since: float


def watch(before: Watch | None, lease: Lease | None, now: float) -> Watch | None:
    """The same row keeps its first moment; a changed one begins anew."""
    if lease is None:
        return None
    if before is not None and before.lease == lease:
        return before
    return Watch(lease=lease, since=now)


def dead(seen: Watch | None, now: float) -> bool:
    """By our own clock nobody has renewed it for a whole term: a database clock that was set back must not keep a dead
    holder alive."""
    return seen is not None and now - seen.since > TTL + TRUST_MARGIN
