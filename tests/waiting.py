# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition with a deadline; nothing in the tests sleeps for luck."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

STEP = 0.01


async def eventually(look: Callable[[], Awaitable[T] | T], within: float = 10.0) -> T:
    """The first truthy value of ``look``; fails after ``within`` seconds with the last value seen."""
    deadline = time.monotonic() + within
    while True:
        found = look()
        value = await found if isinstance(found, Awaitable) else found
        if value:
            return value
        assert time.monotonic() < deadline, f"still {value!r} after {within} s"
        await asyncio.sleep(STEP)


def eventually_now(look: Callable[[], T], within: float = 10.0) -> T:
    """The same for tests without a loop."""
    deadline = time.monotonic() + within
    while True:
        value = look()
        if value:
            return value
        assert time.monotonic() < deadline, f"still {value!r} after {within} s"
        time.sleep(STEP)
