# SPDX-License-Identifier: Apache-2.0
"""Wake-ups inside one coordinator. A bell carries no news: whoever hears it looks at the state itself, and would
have looked anyway at its next interval."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Bell:
    """Topics that callbacks listen to for good and followers wait on once."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[[], None]]] = {}
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}

    def listen(self, topic: str, call: Callable[[], None]) -> None:
        """Call ``call`` at every ring of the topic."""
        self._listeners.setdefault(topic, []).append(call)

    def ring(self, *topics: str) -> None:
        for topic in topics:
            for call in self._listeners.get(topic, ()):
                call()
            for waiter in self._waiters.pop(topic, ()):
                if not waiter.done():
                    waiter.set_result(None)

    def ticket(self, topic: str) -> asyncio.Future[None]:
        """Resolves at the next ring; take it *before* looking at the state, so that no change is missed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(topic, set()).add(future)
        return future

    def drop(self, topic: str, ticket: asyncio.Future[None]) -> None:
        """Give back a ticket that is not waited for any more."""
        waiting = self._waiters.get(topic)
        if waiting is not None:
            waiting.discard(ticket)
            if not waiting:
                del self._waiters[topic]

    async def wait(self, topic: str, ticket: asyncio.Future[None], timeout: float) -> None:
        """Return at the ring, at the latest after ``timeout`` seconds: a lost ring costs time only."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ticket, timeout)
        self.drop(topic, ticket)


QUEUE = "queue"
"""A job became ready, or an agent idle."""
SCALE = "scale"
"""Demand or supply changed."""
HOST = "host"
"""A provision of this host has to be created or destroyed."""
OUTBOX = "outbox"
"""An event for a provisioner was committed, or a report came."""
STOPS = "stops"
"""A job on an agent has to be told to stop."""


def run_topic(run_id: str) -> str:
    return f"run:{run_id}"


def ended_topic(result: str) -> str:
    """Rung once for each job that ended so; whoever counts listens, nobody decides upon it."""
    return f"ended:{result}"
