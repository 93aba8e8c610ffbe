# SPDX-License-Identifier: Apache-2.0
"""Streams: signs of life in silence, back-pressure, and an end when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from corral.web.stopping import Stopping
from corral.web.streaming import Streamed, event, event_stream, with_keep_alive


def test_a_silent_stream_shows_signs_of_life() -> None:
    async def test() -> None:
        go = asyncio.Event()

        async def silent() -> AsyncIterator[bytes]:
            await go.wait()
            yield event("log", {"a": 1})

        seen = []
        async for chunk in with_keep_alive(silent(), seconds=0.001):
            seen.append(chunk)
            if len(seen) == 3:
                go.set()
        assert seen[:3] == [b": still here\n\n"] * 3
        assert seen[-2:] == [b'event: log\ndata: {"a":1}\n\n', b"event: end\ndata: {}\n\n"]

    asyncio.run(test())


def test_a_slow_reader_is_waited_for() -> None:
    async def test() -> None:
        made = 0

        async def chunks() -> AsyncIterator[bytes]:
            nonlocal made
            while True:
                made += 1
                yield b"x"
                await asyncio.sleep(0)

        slow = asyncio.Event()
        received = 0

        async def send(message: object) -> None:
            nonlocal received
            received += 1
            if received == 5:
                await slow.wait()

        async def receive() -> object:
            await slow.wait()
            return {"type": "http.disconnect"}

        answer = Streamed(chunks(), status=200, headers={}, stopping=Stopping())  # type: ignore[arg-type]
        serving = asyncio.create_task(answer({}, receive, send))  # type: ignore[arg-type]
        for _ in range(100):
            await asyncio.sleep(0)
        assert made == 4
        slow.set()
        await serving

    asyncio.run(test())


def test_an_event_stream_ends_without_an_end_event_when_the_server_stops() -> None:
    async def test() -> None:
        closed = False

        async def endless() -> AsyncIterator[bytes]:
            nonlocal closed
            try:
                yield event("log", 1)
                await asyncio.Event().wait()
            finally:
                closed = True

        stopping = Stopping()
        sent: list[dict[str, object]] = []
        first = asyncio.Event()

        async def send(message: dict[str, object]) -> None:
            sent.append(message)
            if message.get("body"):
                first.set()

        async def receive() -> object:
            await asyncio.Event().wait()
            return {}

        serving = asyncio.create_task(event_stream(endless(), stopping)({}, receive, send))  # type: ignore[arg-type]
        await first.wait()
        stopping.begin()
        await asyncio.wait_for(serving, 5)
        assert closed
        assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        assert not any(b"end" in bytes(each.get("body", b"")) for each in sent)  # type: ignore[call-overload]

    asyncio.run(test())
