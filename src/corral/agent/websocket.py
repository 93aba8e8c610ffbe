# SPDX-License-Identifier: Apache-2.0
"""The real connection: WebSocket over TCP or TLS. Translates the library's errors into :class:`LinkClosed`."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.typing import Subprotocol

from corral.agent.interface import LinkClosed
from corral.wire.messages import FRAME_LIMIT, SUBPROTOCOL

CLOSE_TIMEOUT = 2.0
"""Seconds for the closing handshake; the other side may be gone."""
WRITE_LIMIT = 256 * 1024
"""Bytes that may wait in our own buffer: a few log chunks, so that a heartbeat is never far behind."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class WebSocketLink:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, frame: bytes) -> None:
        try:
            await self._connection.send(frame)
        except ConnectionClosed as error:
            raise _closed(error) from None

    async def receive(self) -> bytes:
        try:
            frame = await self._connection.recv(decode=False)
        except ConnectionClosed as error:
            raise _closed(error) from None
        return bytes(frame)

    async def close(self, code: int, reason: str) -> None:
        with contextlib.suppress(ConnectionClosed, OSError, TimeoutError):
            async with asyncio.timeout(2 * CLOSE_TIMEOUT):
                await self._connection.close(code, reason)


class WebSocketDial:
    """Dials ``URL/agent/v1``. Library pings and compression are off: liveness is the protocol's heartbeat."""

    async def dial(self, url: str) -> WebSocketLink:
        address, loopback = agent_address(url)
        try:
            connection = await connect(
                address,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                compression=None,
                ping_interval=None,
                max_size=FRAME_LIMIT,
                write_limit=WRITE_LIMIT,
                close_timeout=CLOSE_TIMEOUT,
                open_timeout=None,
                user_agent_header=None,
                proxy=None if loopback else True,
            )
        except (OSError, InvalidHandshake, InvalidURI, EOFError, ConnectionClosed) as error:
            raise LinkClosed(f"{url}: {error}") from None
        if connection.subprotocol != SUBPROTOCOL:
            await connection.close()
            raise LinkClosed(f"{url} does not speak {SUBPROTOCOL}")
        return WebSocketLink(connection)


def agent_address(url: str) -> tuple[str, bool]:
    """The WebSocket address under a coordinator's URL, and whether it is on this machine."""
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme, parts.scheme)
    address = parts._replace(scheme=scheme, path=parts.path.rstrip("/") + "/agent/v1").geturl()
    return address, (parts.hostname or "") in LOOPBACK


def _closed(error: ConnectionClosed) -> LinkClosed:
    code = error.rcvd.code if error.rcvd is not None else 0
    reason = error.rcvd.reason if error.rcvd is not None else "connection lost"
    return LinkClosed(f"closed by the coordinator: {reason or code}", close_code=code)
