# SPDX-License-Identifier: Apache-2.0
"""A server that reads a request and then does whatever the test tells it to, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

INFO = b'{"app_name":"Firecracker","id":"vm","state":"Running","vmm_version":"1.17.0"}'


def answer(status: int, body: bytes, *, length: int | None = None, extra: bytes = b"") -> bytes:
    size = len(body) if length is None else length
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n%s\r\n%s" % (status, size, extra, body)


GOOD = answer(200, INFO)


@dataclass
class Talk:
    """One connection, seen from the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server: Server

    async def request(self) -> bytes:
        """The next request's head and body; b"" where the client has closed."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        length = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        self.server.requests += 1
        return head + (await self.reader.readexactly(length) if length else b"")

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        try:
            await self.writer.drain()
        except ConnectionError:
            self.server.cut_off += 1

    async def until_closed(self) -> None:
        """Returns once the client has closed; noted, so that a test can wait for it."""
        try:
            while await self.reader.read(65_536):
                pass
        except ConnectionError:
            pass
        self.server.closed.set()


Script = Callable[[Talk], Awaitable[None]]


@dataclass
class Server:
    connections: int = 0
    requests: int = 0
    cut_off: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def misbehaving(path: Path, script: Script) -> AsyncIterator[Server]:
    state, tasks = Server(), set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state.connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await script(Talk(reader, writer, state))
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, str(path))
    try:
        yield state
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
