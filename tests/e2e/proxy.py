# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy between agents and a server, with everything that networks do: cut, refuse, go silent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

PIECE = 64 * 1024


class Proxy:
    """``connections``: how many were made so far.

    A *cut* resets every connection. While it *refuses*, new connections are reset at once. When it goes *silent*,
    everything on the connections that stand vanishes, for good, and nobody is told: they are half-open; new ones are
    accepted and vanish too until :meth:`restore`.
    """

    def __init__(self) -> None:
        self._target: tuple[str, int] = ("", 0)
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._server: asyncio.Server | None = None
        self._lines: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusing = False
        self._silent = False
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @contextlib.asynccontextmanager
    async def running(self, url: str) -> AsyncIterator[None]:
        """Forward to the server at ``url``."""
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 0)
        self._server = await asyncio.start_server(self._accepted, sock=self._listener)
        try:
            yield
        finally:
            self._server.close()
            self.cut()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, *, refuse: bool = False) -> None:
        """Reset every connection; with ``refuse`` new ones too, until :meth:`restore`."""
        self._refusing = refuse
        for line in tuple(self._lines):
            line.reset()

    def cut_agents(self) -> None:
        """Reset the agents' side only: the server is not told, its connections are half-open."""
        for line in tuple(self._lines):
            line.dead = True
            line.agent.transport.abort()

    def silence(self) -> None:
        self._silent = True
        for line in self._lines:
            line.dead = True

    def restore(self) -> None:
        self._refusing = self._silent = False

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._refusing:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        line = _Line(writer, up_writer, dead=self._silent)
        self._lines.add(line)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(line.forward(reader, up_writer))
                group.create_task(line.forward(up_reader, writer))
        finally:
            self._lines.discard(line)
            line.reset()


class _Line:
    """One connection through the proxy: the agent's side and the server's."""

    def __init__(self, agent: asyncio.StreamWriter, server: asyncio.StreamWriter, *, dead: bool) -> None:
        self.agent = agent
        self.server = server
        self.dead = dead

    def reset(self) -> None:
        self.agent.transport.abort()
        self.server.transport.abort()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until one side ends; then the other is ended too, unless the line is half-open."""
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                if not self.dead:
                    writer.write(data)
                    await writer.drain()
        if self.dead:
            # Half-open: whoever ended it, the other side hears nothing until the proxy itself resets it.
            await asyncio.get_running_loop().create_future()
        self.reset()
