# SPDX-License-Identifier: Apache-2.0
"""``/agent/v1``: a WebSocket as a :class:`corral.control.link.Link`. Nothing is dropped; slowness is waited for."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
from litestar.types import Receive, Send

from corral.control.api import Api
from corral.control.link import LinkClosed
from corral.model.errors import PermanentError
from corral.web.problems import problem_of
from corral.wire.close import BAD_FRAME, INTERNAL, fit_reason
from corral.wire.messages import SUBPROTOCOL

log = logging.getLogger(__name__)

CLOSE_PATIENCE = 5.0
"""Seconds that a close may wait for a reader that does not read; then the connection is cut."""


class SocketLink:
    """The server's end of one WebSocket."""

    __slots__ = ("_close_code", "_closed", "_cutting", "_reader", "_receive", "_send", "peer")

    def __init__(self, peer: str, receive: Receive, send: Send) -> None:
        self.peer = peer
        self._receive = receive
        self._send = send
        self._closed = False
        self._close_code = 0
        self._reader: asyncio.Task[Any] | None = None
        self._cutting: asyncio.Task[Any] | None = None

    async def send(self, frame: bytes) -> None:
        self._check()
        try:
            await self._send({"type": "websocket.send", "bytes": frame, "text": None})
        except (OSError, RuntimeError):
            # uvicorn raises OSError for a peer that went away, RuntimeError after a close.
            self._closed = True
            raise LinkClosed("the agent's connection ended") from None

    async def receive(self) -> bytes:
        self._check()
        self._reader = asyncio.current_task()
        try:
            message = await self._receive()
        except asyncio.CancelledError:
            self._raise_if_cut()
            raise
        finally:
            self._reader = None
        if message["type"] == "websocket.disconnect":
            self._closed = True
            self._close_code = int(str(message.get("code") or 0))
            raise LinkClosed("the agent's connection ended", close_code=self._close_code)
        data = message.get("bytes")
        if not isinstance(data, bytes):
            await self.close(BAD_FRAME, "a text frame; the protocol is binary")
            raise LinkClosed("the agent sent a text frame", close_code=BAD_FRAME)
        return data

    async def close(self, code: int, reason: str) -> None:
        if self._closed:
            return
        self._closed, self._close_code = True, code
        frame: Any = {"type": "websocket.close", "code": code, "reason": fit_reason(reason)}
        try:
            await asyncio.wait_for(self._send(frame), CLOSE_PATIENCE)
        except TimeoutError:
            self._cut()
        except (OSError, RuntimeError):
            return

    def _cut(self) -> None:
        """The other side reads nothing, so it will not answer the close either: end the reading from here."""
        reader, self._reader = self._reader, None
        if reader is not None:
            self._cutting = reader
            reader.cancel()

    def _raise_if_cut(self) -> None:
        cut, self._cutting = self._cutting, None
        if cut is not None:
            cut.uncancel()
            raise LinkClosed("the agent's connection was cut", close_code=self._close_code) from None

    def _check(self) -> None:
        if self._closed:
            raise LinkClosed("the agent's connection is closed", close_code=self._close_code)


async def agent_endpoint(api: Api, scope: Any, receive: Receive, send: Send) -> None:
    """Accept the connection and hand it to the coordinator, which owns it until it ends."""
    if scope["type"] != "websocket":
        await _refuse_http(send, "http.response", "connect with a WebSocket; subprotocol " + SUBPROTOCOL, 426)
        return
    await receive()
    if SUBPROTOCOL not in scope["subprotocols"]:
        await _refuse_http(send, "websocket.http.response", f"ask for the subprotocol {SUBPROTOCOL}", 400)
        return
    await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL, "headers": []})
    client = scope.get("client")
    link = SocketLink(client[0] if client else "", receive, send)
    await _serve(api, link)


async def _serve(api: Api, link: SocketLink) -> None:
    try:
        await api.serve_agent(link)
    except LinkClosed:
        pass
    except Exception:
        log.exception("an agent's session from %s failed", link.peer)
        await link.close(INTERNAL, "the coordinator failed inside; its log says how")
    else:
        await link.close(1000, "")


class _WrongConnection(PermanentError):
    code = "wrong_connection"


async def _refuse_http(send: Send, kind: str, message: str, status: int) -> None:
    error = _WrongConnection(message)
    error.status = status
    problem = problem_of(error)
    headers = [(b"content-type", b"application/problem+json")]
    if status == 426:
        headers += [(b"upgrade", b"websocket"), (b"connection", b"upgrade")]
    body = msgspec.json.encode(problem)
    events: list[Any] = [
        {"type": f"{kind}.start", "status": status, "headers": headers},
        {"type": f"{kind}.body", "body": body, "more_body": False},
    ]
    for each in events:
        await send(each)
