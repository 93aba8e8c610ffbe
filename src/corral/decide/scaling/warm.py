# SPDX-License-Identifier: Apache-2.0
"""How many agents a pool keeps ready for jobs that have not come."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from corral.model.pools import Pool, Window


def warm_target(pool: Pool, now: int) -> int:
    """The pool's ``min_idle``, or the largest of the windows that are open. ``now`` in microseconds."""
    open_now = [window.min_idle for window in pool.schedule if is_open(window, now)]
    return max(open_now) if open_now else pool.min_idle


def is_open(window: Window, now: int) -> bool:
    """By the wall clock of the window's place: an hour that a change of clocks leaves out does not come, one that it
    repeats comes twice. A window across midnight belongs to the day on which it begins."""
    local = datetime.fromtimestamp(now / 1_000_000, UTC).astimezone(ZoneInfo(window.timezone))
    minute, today = local.hour * 60 + local.minute, local.weekday()
    yesterday = (today - 1) % 7
    if window.start < window.end:
        return today in window.days and window.start <= minute < window.end
    return (today in window.days and minute >= window.start) or (yesterday in window.days and minute < window.end)
