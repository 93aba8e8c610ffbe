# SPDX-License-Identifier: Apache-2.0
"""In-memory connections between an agent and a coordinator, with everything a network does to them.

Each direction keeps its order and loses nothing while the connection stands, as TCP does. It can be slow, be held up,
break (both ends notice), or go half-open (neither notices, whatever is sent vanishes).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from corral.agent.interface import LinkClosed as AgentLinkClosed
from corral.control.link import LinkClosed as ControlLinkClosed
from corral.sim.actors import Actor

WINDOW = 256 * 1024
"""Bytes on the way or unread after which the sender waits, as socket buffers make it."""


@dataclass(frozen=True)
class _Close:
    code: int
    reason: str


class _Pipe:
    """One direction. ``latency()``: seconds for the next frame; ``seen``: told of every frame that arrives."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, latency: Callable[[], float], seen: Callable[[bytes], None]
    ) -> None:
        self._loop = loop
        self._latency = latency
        self._seen = seen
        self._last = 0.0
        self._on_way = 0
        self._unread = 0
        self._way: deque[bytes | _Close] = deque()
        self._inbox: deque[bytes | _Close] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._room: deque[asyncio.Future[None]] = deque()
        self.dead = False
        """Whatever is sent vanishes."""
        self.broken: _Close | None = None

    def hold(self, seconds: float) -> None:
        """Nothing sent from now on arrives before so many seconds have passed."""
        self._last = max(self._last, self._loop.time() + seconds)

    def put(self, item: bytes | _Close) -> None:
        if self.broken is not None or self.dead:
            return
        size = len(item) if isinstance(item, bytes) else 0
        self._on_way += size
        self._last = max(self._last, self._loop.time() + self._latency())
        # A timer each, and a queue: timers of one moment come in no particular order.
        self._way.append(item)
        self._loop.call_at(self._last, self._arrive)

    def _arrive(self) -> None:
        item = self._way.popleft()
        size = len(item) if isinstance(item, bytes) else 0
        self._on_way -= size
        if isinstance(item, bytes) and not self.dead and self.broken is None:
            # Whoever watches may break the connection here, so that this very frame is lost.
            self._seen(item)
        if self.dead or self.broken is not None:
            return
        self._unread += size
        self._inbox.append(item)
        self._wake_reader()

    def end(self, close: _Close) -> None:
        """It is over, now, whatever was on the way."""
        if self.broken is None:
            self.broken = close
            self._inbox.clear()
            self._wake_reader()
            self._wake_senders()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_senders(self) -> None:
        while self._room:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)

    @property
    def full(self) -> bool:
        return self._on_way + self._unread > WINDOW

    async def room(self) -> None:
        while self.full and self.broken is None:
            waiter = self._loop.create_future()
            self._room.append(waiter)
            await waiter

    async def get(self) -> bytes | _Close:
        while not self._inbox:
            if self.broken is not None:
                return self.broken
            self._reader = self._loop.create_future()
            await self._reader
        item = self._inbox.popleft()
        if isinstance(item, bytes):
            self._unread -= len(item)
            self._wake_senders()
        return item


class End:
    """One side's view: a ``Link`` for the agent as for control; they differ in the error they expect."""

    def __init__(
        self,
        out: _Pipe,
        into: _Pipe,
        actor: Actor,
        closed: Callable[[str, int], Exception],
        peer: str,
    ) -> None:
        self._out = out
        self._into = into
        self._actor = actor
        self._closed = closed
        self._over: _Close | None = None
        self.peer = peer

    async def send(self, frame: bytes) -> None:
        self._actor.check()
        await self._out.room()
        self._raise_if_over()
        self._out.put(frame)

    async def receive(self) -> bytes:
        self._raise_if_over()
        item = await self._into.get()
        self._actor.check()
        if isinstance(item, _Close):
            self._over = self._over or item
            self._raise_if_over()
        assert isinstance(item, bytes)
        return item

    async def close(self, code: int, reason: str) -> None:
        if self._over is None and self._actor.alive:
            self._over = _Close(code, reason)
            self._out.put(self._over)
            self._into.end(self._over)

    def lose(self) -> None:
        self._over = self._over or _Close(0, "connection lost")

    def _raise_if_over(self) -> None:
        over = self._over or self._out.broken
        if over is not None:
            raise self._closed(over.reason or "connection closed", over.code)


class Wire:
    """One connection; ``agent`` and ``server`` are its ends."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        agent: Actor,
        server: Actor,
        address: str,
        latency: Callable[[], float],
        seen: Callable[[str, bytes], None],
    ) -> None:
        self._up = _Pipe(loop, latency, lambda frame: seen("up", frame))
        self._down = _Pipe(loop, latency, lambda frame: seen("down", frame))
        self.agent = End(self._up, self._down, agent, _agent_closed, "coordinator")
        self.server = End(self._down, self._up, server, _control_closed, address)

    @property
    def over(self) -> bool:
        return self._up.broken is not None or self._down.broken is not None

    def cut(self) -> None:
        """The connection breaks and both ends are told; what was on the way is lost."""
        self._up.end(_Close(0, "connection lost"))
        self._down.end(_Close(0, "connection lost"))

    def slip(self) -> None:
        """The agent's side is over at once; the coordinator still reads what was on the way, then the end."""
        self._down.end(_Close(0, "connection lost"))
        self._up.put(_Close(0, "connection lost"))
        self.agent.lose()

    def hold(self, up: float, down: float) -> None:
        """Late: what is sent from now on arrives only after these seconds, in order."""
        self._up.hold(up)
        self._down.hold(down)

    def repeat(self, direction: str, frame: bytes) -> None:
        """Say it once more, as a sender that lost its memory would."""
        (self._up if direction == "up" else self._down).put(frame)

    def half_open(self) -> None:
        """Everything vanishes and nobody is told."""
        self._up.dead = self._down.dead = True


def _agent_closed(message: str, code: int) -> Exception:
    return AgentLinkClosed(message, close_code=code)


def _control_closed(message: str, code: int) -> Exception:
    return ControlLinkClosed(message, close_code=code)
