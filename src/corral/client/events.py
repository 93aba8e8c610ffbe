# SPDX-License-Identifier: Apache-2.0
"""Server-sent events, split out of bytes as they come (no line of a log is too long for them)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

EVENT_LIMIT = 64 * 1024 * 1024
"""Bytes of one event before the stream is taken for something else."""


class NotEvents(ValueError):
    """The stream does not hold server-sent events of a sane size."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """``data`` is JSON."""

    name: str
    data: bytes
    id: str = ""


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """The events of a stream; an unfinished last one is dropped.

    :raises NotEvents: an event above :data:`EVENT_LIMIT`.
    """
    held = bytearray()
    async for chunk in chunks:
        searched = max(0, len(held) - 1)
        held += chunk
        while (end := held.find(b"\n\n", searched)) >= 0:
            block, searched = bytes(held[:end]), 0
            del held[: end + 2]
            if event := _parse(block):
                yield event
        if len(held) > EVENT_LIMIT:
            raise NotEvents(f"an event of more than {EVENT_LIMIT} bytes")


def _parse(block: bytes) -> Event | None:
    fields: dict[bytes, bytes] = {}
    for line in block.split(b"\n"):
        key, _, value = line.partition(b":")
        fields[key] = value.removeprefix(b" ")
    if b"data" not in fields:
        return None
    name = fields.get(b"event", b"message").decode("utf-8", "replace")
    return Event(name=name, data=fields[b"data"], id=fields.get(b"id", b"").decode("ascii", "replace"))
