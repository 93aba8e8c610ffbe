# SPDX-License-Identifier: Apache-2.0
"""What waits to be said to one agent. Thousands of agents idle at the same time, so an empty one is next to nothing:
``asyncio.Queue`` takes 2.5 kB, and a task that waits for it another."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from corral.control.link import LinkClosed
from corral.wire.messages import ToAgent

log = logging.getLogger(__name__)


class Outgoing:
    """Messages in order; a task that sends them exists only while there are any.

    ``send`` says one message; ``close`` ends the line, after what was put before :meth:`end`.
    """

    __slots__ = ("_close", "_ended", "_items", "_send", "_writer")

    def __init__(self, send: Callable[[ToAgent], Awaitable[None]], close: Callable[[], Awaitable[None]]) -> None:
        self._send = send
        self._close = close
        self._items: deque[ToAgent] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._ended = False

    def __len__(self) -> int:
        return len(self._items) if self._items is not None else 0

    def put(self, message: ToAgent) -> None:
        if self._ended:
            return
        if self._items is None:
            self._items = deque()
        self._items.append(message)
        self._wake()

    def end(self) -> None:
        """Close the line after what is there; nothing more is taken."""
        self._ended = True
        self._wake()

    async def flushed(self, timeout: float) -> None:
        """Return when the line is closed, or not even that could be said in time."""
        writer = self._writer
        if writer is not None:
            await asyncio.wait({writer}, timeout=timeout)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    def _wake(self) -> None:
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write(), name="session-writer")

    async def _write(self) -> None:
        try:
            while self._items:
                await self._send(self._items.popleft())
        except LinkClosed:
            pass
        except Exception:
            log.exception("a message to an agent cannot be sent")
            self._ended = True
        self._items = None
        if self._ended:
            await self._close()
        self._writer = None
