# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition instead of sleeping for luck."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE = 20.0
"""Seconds: far above what any condition takes, so that only a real failure reaches it on a busy machine."""
PAUSE = 0.005
"""Seconds between two looks."""


def eventually(look: Callable[[], T], what: str = "", deadline: float = DEADLINE) -> T:
    """The first true value of ``look()``; fails, naming ``what``, when there is none in time."""
    until = time.monotonic() + deadline
    while not (value := look()):
        assert time.monotonic() < until, f"not within {deadline:g} s: {what or look}"
        time.sleep(PAUSE)
    return value


async def eventually_async(look: Callable[[], T | Awaitable[T]], what: str = "", deadline: float = DEADLINE) -> T:
    """The same inside an event loop; ``look`` may be a coroutine function."""
    until = time.monotonic() + deadline
    while True:
        value = look()
        seen: T = await value if isinstance(value, Awaitable) else value
        if seen:
            return seen
        assert time.monotonic() < until, f"not within {deadline:g} s: {what or look}"
        await asyncio.sleep(PAUSE)
