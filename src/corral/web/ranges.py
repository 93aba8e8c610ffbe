# SPDX-License-Identifier: Apache-2.0
"""HTTP byte ranges (RFC 9110, section 14), one range at a time."""

from __future__ import annotations

import re

from corral.web.problems import RangeNotSatisfiable

_FORM = re.compile(r"bytes=(\d{0,18})-(\d{0,18})\Z")


def byte_range(header: str, size: int) -> tuple[int, int] | None:
    """``(start, end)`` with ``end`` exclusive, or None where the whole is to be sent.

    A header of another form, also several ranges, is ignored, as the standard allows.
    :raises RangeNotSatisfiable: a well-formed range of which no byte exists.
    """
    form = _FORM.match(header.strip())
    if form is None or (not form[1] and not form[2]):
        return None
    if not form[1]:
        start, end = max(0, size - int(form[2])), size
    else:
        start = int(form[1])
        last = int(form[2]) if form[2] else size - 1
        if form[2] and last < start:
            return None
        end = min(last + 1, size)
    if start >= size or start >= end:
        raise RangeNotSatisfiable(f"range {header!r} of {size} bytes", size=size)
    return start, end
