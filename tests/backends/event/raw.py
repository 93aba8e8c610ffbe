# SPDX-License-Identifier: Apache-2.0
"""A server that says any bytes on a real socket, and events to send it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

CODE = "claim_" + "5eed" * 16
Behave = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def event(kind: str = "corral.scaler.scale-up.v1", **data: Any) -> bytes:
    usual = {
        "cluster_id": "corral-one",
        "agent_id": "agent_a",
        "sequence": 1,
        "epoch": "1.1",
        "pool": "cloud",
        "claim_code": CODE,
    }
    envelope = {"specversion": "1.0", "id": "evt_1", "type": kind, "subject": "agent_a", "data": usual | data}
    return msgspec.json.encode(envelope)


@dataclass
class Raw:
    """``requests``: head and body of each; ``connections``: how many came."""

    url: str
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    connections: int = 0


async def read_request(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    pairs = (line.partition(": ") for line in head[1:] if line)
    headers = {name.lower(): value for name, _, value in pairs}
    return headers, await reader.readexactly(int(headers.get("content-length", 0)))


@contextlib.asynccontextmanager
async def serving(behave: Behave | bytes, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Raw]:
    """``behave``: what to do after a request was read, or the bytes to answer, and then the connection is closed."""
    raw = Raw(url="")
    ended: set[asyncio.Task[Any]] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        ended.add(task)
        raw.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            try:
                while True:
                    raw.requests.append(await read_request(reader))
                    if isinstance(behave, bytes):
                        writer.write(behave)
                        await writer.drain()
                        return
                    await behave(reader, writer)
                    if writer.is_closing():
                        return
            finally:
                writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0, ssl=tls)
    scheme = "https" if tls else "http"
    raw.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    try:
        yield raw
    finally:
        server.close()
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
