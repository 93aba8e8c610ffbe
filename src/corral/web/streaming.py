# SPDX-License-Identifier: Apache-2.0
"""Answers that come bit by bit: they end with their reader, and with the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
from litestar.types import Receive, Scope, Send

from corral.model.errors import CorralError
from corral.web.problems import problem_of
from corral.web.stopping import Stopping

KEEP_ALIVE = 15.0
"""Seconds of silence after which a comment is sent: proxies cut at 30 to 60."""


class Streamed:
    """An ASGI answer whose chunks are sent as they come; waits where the reader is slow.

    It ends early, without its last chunk, when the reader goes away or the server stops.
    """

    def __init__(
        self, chunks: AsyncGenerator[bytes], *, status: int, headers: dict[str, str], stopping: Stopping
    ) -> None:
        self.chunks = chunks
        self.status = status
        self.headers = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers.items()]
        self.stopping = stopping
        self.sized = "content-length" in headers
        self.started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.ensure_future(self._pump(send))
        watchers = {asyncio.ensure_future(_gone(receive)), asyncio.ensure_future(self.stopping.wait())}
        try:
            await asyncio.wait({pump, *watchers}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pump, *watchers):
                task.cancel()
            await asyncio.gather(pump, *watchers, return_exceptions=True)
            await self.chunks.aclose()
        if pump.cancelled():
            await self._end_early(send)
        elif (error := pump.exception()) is not None:
            raise error

    async def _end_early(self, send: Send) -> None:
        """A stream without a stated length may end where it is; any other is cut by the server."""
        if self.stopping.begun and self.started and not self.sized:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        self.started = True
        async for chunk in self.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def event(name: str, data: Any, id: str = "") -> bytes:
    """One server-sent event; ``data`` as one line of JSON."""
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {name}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


async def with_keep_alive(events: AsyncIterator[bytes], seconds: float = KEEP_ALIVE) -> AsyncGenerator[bytes]:
    """The events, a comment in every silence, then ``end``, or ``problem`` where they fail."""
    following: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(_following(events))
            done, _ = await asyncio.wait({following}, timeout=seconds)
            if not done:
                yield b": still here\n\n"
                continue
            chunk, following = following.result(), None
            if chunk is None:
                yield event("end", {})
                return
            yield chunk
    except CorralError as error:
        yield event("problem", problem_of(error))
    finally:
        await _abandon(events, following)


async def _following(events: AsyncIterator[bytes]) -> bytes | None:
    return await anext(events, None)


async def _abandon(events: AsyncIterator[bytes], following: asyncio.Future[bytes | None] | None) -> None:
    if following is not None:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    close = getattr(events, "aclose", None)
    if close is not None:
        with contextlib.suppress(RuntimeError):
            await close()


def event_stream(events: AsyncIterator[bytes], stopping: Stopping) -> Streamed:
    headers = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-store",
        "x-accel-buffering": "no",
    }
    return Streamed(with_keep_alive(events), status=200, headers=headers, stopping=stopping)
