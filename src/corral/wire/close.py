# SPDX-License-Identifier: Apache-2.0
"""Close codes (4000–4999) of ``corral.agent.v1``, listed once: meaning, and what the agent does next."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

REASON_LIMIT = 123
"""Bytes that a WebSocket close reason may have."""


class Next(StrEnum):
    AGAIN = "again"
    """Dial again, with backoff."""
    ANOTHER = "another"
    """Dial another URL first."""
    STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class CloseCode:
    code: int
    meaning: str
    next: Next


_LIST = (
    CloseCode(code=4000, meaning="a frame that is no known message", next=Next.AGAIN),
    CloseCode(code=4001, meaning="a frame above the limit", next=Next.AGAIN),
    CloseCode(code=4002, meaning="a message that its state does not allow", next=Next.AGAIN),
    CloseCode(code=4003, meaning="no hello in time", next=Next.AGAIN),
    CloseCode(code=4004, meaning="no byte for longer than agent_dead_after", next=Next.AGAIN),
    CloseCode(code=4005, meaning="refused for now; retry_after was given", next=Next.AGAIN),
    CloseCode(code=4006, meaning="refused for good", next=Next.STOP),
    CloseCode(code=4007, meaning="replaced by a newer session of the same agent", next=Next.STOP),
    CloseCode(code=4008, meaning="this coordinator is shutting down", next=Next.ANOTHER),
    CloseCode(code=4009, meaning="released: nothing more to do", next=Next.STOP),
    CloseCode(code=4010, meaning="the coordinator failed inside; its log says how", next=Next.AGAIN),
    CloseCode(code=4011, meaning="the agent reads too slowly", next=Next.AGAIN),
)
CODES = {entry.code: entry for entry in _LIST}

BAD_FRAME = 4000
TOO_LARGE = 4001
UNEXPECTED = 4002
NO_HELLO = 4003
SILENT = 4004
REFUSED_FOR_NOW = 4005
REFUSED = 4006
REPLACED = 4007
SHUTTING_DOWN = 4008
RELEASED = 4009
INTERNAL = 4010
SLOW = 4011


def fit_reason(text: str) -> str:
    """``text`` cut to what a close frame holds, at a character boundary."""
    return text.encode(errors="replace")[:REASON_LIMIT].decode(errors="ignore")


def next_of(code: int) -> Next:
    """What an agent does after a close with ``code``; anything unlisted is a broken connection: dial again."""
    entry = CODES.get(code)
    return entry.next if entry else Next.AGAIN
