# SPDX-License-Identifier: Apache-2.0
"""Tails under test: over inotify and over polling, with helpers that wait for a condition, never for time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.backends.tail import Bounds, Tail, Watcher, tail_file

WITHIN = 5.0


def by_inotify() -> Watcher:
    return Watcher(interval=0.02)


def by_polling() -> Watcher:
    """The same ticks without inotify; quick ones, so that the tests are."""
    return Watcher(interval=0.005, inotify=False)


both_ways = pytest.mark.parametrize("watch", [by_inotify, by_polling])
Watch = Callable[[], Watcher]

SMALL = Bounds(line_bytes=8, read_bytes=7, queued_lines=4, queued_bytes=48, patience=0)


async def take(tail: Tail, count: int) -> list[bytes]:
    """The next ``count`` lines; fails where one does not come.

    The loop turns only where a line has to be waited for.
    """
    async with asyncio.timeout(WITHIN):
        return [await anext(tail) for _ in range(count)]


async def rest(tail: Tail) -> list[bytes]:
    """All further lines of a tail that was told to stop."""
    async with asyncio.timeout(WITHIN):
        return [line async for line in tail]


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until ``condition`` holds."""
    deadline = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        await asyncio.sleep(0)


async def has_read(tail: Tail, count: int) -> None:
    """Returns once the tail has read ``count`` bytes in all."""
    await until(lambda: tail.tally.bytes_read >= count)


def append(path: Path, data: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(data)


def open_descriptors() -> set[str]:
    """What this process has open, by target."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.add(str(link.readlink()))
        except FileNotFoundError:
            continue
    return found


def start_reading(tail: Tail) -> asyncio.Task[bytes]:
    """Begin to read; the task is the first line, whenever it comes."""
    return asyncio.ensure_future(anext(tail))


def whole(path: Path, **options: object) -> list[bytes]:
    """Everything that a tail which was already told to stop yields."""

    async def read() -> list[bytes]:
        stop = asyncio.Event()
        stop.set()
        return await rest(tail_file(path, stop, **options))  # type: ignore[arg-type]

    return asyncio.run(read())
