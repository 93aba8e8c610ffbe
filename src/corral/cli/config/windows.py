# SPDX-License-Identifier: Apache-2.0
"""Days and times of day as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])\Z")


def parse_days(value: str | Sequence[str]) -> frozenset[int]:
    """0 is Monday. :raises ValueError: what is neither a day nor a range of them."""
    parts = re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else list(value)
    days = frozenset(day for part in parts for day in _days(part))
    if not days:
        raise ValueError("names no day")
    return days


def _days(part: str) -> list[int]:
    first, dash, last = part.strip().lower().partition("-")
    if first not in DAYS or (dash and last not in DAYS):
        raise ValueError(f"{part!r} is no day: {', '.join(DAYS)}, or a range as mon-fri")
    start = DAYS.index(first)
    length = (DAYS.index(last) - start) % len(DAYS) if dash else 0
    return [(start + offset) % len(DAYS) for offset in range(length + 1)]


def parse_time(text: str) -> int:
    """Minutes after midnight. :raises ValueError: it is not HH:MM."""
    found = _TIME.match(text)
    if found is None:
        raise ValueError(f'{text!r} is no time of day: "HH:MM", from "00:00" to "23:59"')
    return int(found[1]) * 60 + int(found[2])


def known_zone(name: str) -> bool:
    """True where this machine has the rules of the time zone."""
    # Imported only where a schedule is: most configurations have none.
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        return False
    return True
