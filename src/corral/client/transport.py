# SPDX-License-Identifier: Apache-2.0
"""Requests to an ASGI application in this process: no socket, and answers stream as they do over one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import httpx2

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]


class AppTransport(httpx2.AsyncBaseTransport):
    """Every request runs the application in a task of its own, which ends with the answer."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = _Exchange(request)
        return await exchange.run(self.app)


class _Exchange(httpx2.AsyncByteStream):
    """One request and its answer. The application waits in ``send`` until the piece before was read."""

    def __init__(self, request: httpx2.Request) -> None:
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        self.request = request
        self._upload = request.stream.__aiter__()
        self._uploaded = False
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)
        self._head: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._closed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def run(self, app: App) -> httpx2.Response:
        self._task = asyncio.create_task(self._run(app), name="in-process request")
        try:
            head = await asyncio.shield(self._head)
        except BaseException:
            await self.aclose()
            raise
        return httpx2.Response(head["status"], headers=list(head.get("headers", [])), stream=self)

    async def _run(self, app: App) -> None:
        try:
            await app(self._scope(), self._receive, self._send)
        except Exception as error:
            if not self._head.done():
                self._head.set_exception(error)
        finally:
            if not self._head.done():
                self._head.set_exception(httpx2.RemoteProtocolError("the application gave no answer"))
            if not self._closed.is_set():
                await self._pieces.put(None)

    def _scope(self) -> Message:
        url = self.request.url
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self.request.method,
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.split(b"?")[0],
            "query_string": url.query,
            "root_path": "",
            "headers": [(key.lower(), value) for key, value in self.request.headers.raw],
            "server": (url.host, url.port),
            "client": None,
        }

    async def _receive(self) -> Message:
        if self._uploaded:
            await self._closed.wait()
            return {"type": "http.disconnect"}
        piece = await anext(self._upload, None)
        self._uploaded = piece is None
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head.set_result(message)
        elif self._closed.is_set():
            return
        elif body := message.get("body", b""):
            await self._pieces.put(bytes(body))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def aclose(self) -> None:
        """The reader has gone: the application sees a disconnect, then ends."""
        self._closed.set()
        if self._task is not None:
            while not self._pieces.empty():
                self._pieces.get_nowait()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._head.done() and not self._head.cancelled():
            self._head.exception()
