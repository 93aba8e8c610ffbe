# SPDX-License-Identifier: Apache-2.0
"""How a size is written: one way, so that a unit that is not known is found when the file is read."""

from __future__ import annotations

import re

SIZE_PATTERN = r"^\s*[0-9]+[kmgtKMGT]?\s*$(?!\n)"
_SIZE = re.compile(r"([0-9]{1,18})([kmgt]?)\Z", re.IGNORECASE)
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
SIZE_MAX = 2**62
"""Bytes: what a database column holds with room to add up."""


def parse_size(text: str | int) -> int:
    """Bytes. :raises ValueError: a unit that is not k, m, g or t, no number, or one beyond every machine."""
    found = _SIZE.match(str(text).strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size: digits, then k, m, g or t (binary)")
    size = int(found[1]) * _UNITS[found[2].lower()]
    if size > SIZE_MAX:
        raise ValueError(f"{text!r} is not a size that any machine has")
    return size
