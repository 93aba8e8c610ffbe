# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition with a deadline, never for luck."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(ready: Callable[[], T], deadline: float = 10.0) -> T:
    """The first true value of ``ready``; fails after ``deadline`` seconds."""
    end = time.monotonic() + deadline
    while not (value := ready()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline:g} s: {ready}")
        time.sleep(0.01)
    return value
