# SPDX-License-Identifier: Apache-2.0
"""The HTTP server around the application: uvicorn without its signals, pings, compression and access log."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence

import uvicorn

from corral.web.app import WebApp
from corral.web.lean import LeanWebSocket
from corral.web.listen import BACKLOG, bind, url_of
from corral.wire.messages import FRAME_LIMIT

KEEP_ALIVE = 130
"""Seconds an idle connection is kept: longer than the 120 s after which common proxies drop theirs, so that they,
not we, close it, and no request meets a closing connection."""
STOP_GRACE = 5.0
"""Seconds that answers in progress may take once the server stops."""


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Corral owns the signals."""
        yield


class WebServer:
    """Serves one application on sockets that are already bound.

    ``stop`` ends the open streams first; agents' sessions are ended by the coordinator, with a coded reason, before.
    """

    def __init__(self, app: WebApp, sockets: Sequence[socket.socket], *, grace: float = STOP_GRACE) -> None:
        self.app = app
        self.sockets = list(sockets)
        self.grace = grace
        self._server = _Uvicorn(_config(app, grace))
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return url_of(self.sockets[0])

    async def start(self) -> None:
        """Return when connections are accepted. A second call does nothing."""
        if self._task is None:
            self._task = asyncio.create_task(self._server.serve(sockets=self.sockets), name="web")
            accepting = asyncio.create_task(self._server.accepting.wait())
            await asyncio.wait({self._task, accepting}, return_when=asyncio.FIRST_COMPLETED)
            accepting.cancel()
            if self._task.done():
                self._task.result()

    async def stop(self) -> None:
        """Stop accepting, end streams, wait for answers in progress at most ``grace`` seconds. Idempotent."""
        self.app.stopping.begin()
        task, self._task = self._task, None
        if task is None:
            for each in self.sockets:
                each.close()
            return
        self._server.should_exit = True
        await task


def _config(app: WebApp, grace: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws=LeanWebSocket,
        ws_max_size=FRAME_LIMIT,
        # A paused reader would let a library's ping kill a healthy agent: liveness is the protocol's heartbeat.
        ws_ping_interval=None,
        ws_ping_timeout=None,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(grace)),
    )


async def serve(
    app: WebApp,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    sockets: Sequence[socket.socket] | None = None,
    stop: asyncio.Event,
    ready: asyncio.Event | None = None,
    grace: float = STOP_GRACE,
) -> None:
    """Serve until ``stop`` is set. ``ready`` is set once connections are accepted.

    :raises PortInUse: naming the process that holds it.
    """
    server = WebServer(app, sockets if sockets is not None else [bind(host, port)], grace=grace)
    try:
        await server.start()
        if ready is not None:
            ready.set()
        await stop.wait()
    finally:
        await server.stop()
