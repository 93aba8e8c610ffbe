# SPDX-License-Identifier: Apache-2.0
"""A tail in a process of its own, so that its memory can be measured: ``python reader.py PATH PACE``.

Prints that it is ready, reads until standard input closes, and prints a JSON object. ``PACE`` ``prompt``
takes every line at once; ``slow`` takes one per ten milliseconds until the tail has dropped lines for it.
"""

from __future__ import annotations

import asyncio
import json
import sys

from corral.backends.tail import Notice, tail_file


def resident_peak() -> int:
    """Bytes; the highest so far."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


async def main(path: str, pace: str) -> dict[str, int]:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), stop.set)
    tail = tail_file(path, stop)
    first = asyncio.ensure_future(anext(tail))
    await asyncio.sleep(0)
    before = resident_peak()
    print("ready", flush=True)
    lines, notices, longest = 0, 0, 0
    async for line in _after(first, tail):
        lines += 1
        notices += isinstance(line, Notice)
        longest = max(longest, len(line))
        if pace == "slow" and not tail.tally.dropped_lines:
            # Slow on purpose: this is the consumer under test, not a wait for luck.
            await asyncio.sleep(0.01)
    loop.remove_reader(sys.stdin.fileno())
    return {
        "lines": lines,
        "notices": notices,
        "longest": longest,
        "dropped": tail.tally.dropped_lines,
        "bytes_read": tail.tally.bytes_read,
        "grown": resident_peak() - before,
    }


async def _after(first: asyncio.Task[bytes], tail):  # type: ignore[no-untyped-def]
    try:
        yield await first
    except StopAsyncIteration:
        return
    async for line in tail:
        yield line


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2]))))
