# SPDX-License-Identifier: Apache-2.0
"""Simulated processes: whatever one starts belongs to it, and dies with it at whatever it was waiting for.

A process that is killed runs nothing any more. Its coroutines can only be ended by cancelling them, which runs their
``finally`` blocks; so everything that leads outside (database, links, backend) checks :meth:`Actor.check` and lets a
dead process do nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

_CURRENT: ContextVar[Actor | None] = ContextVar("actor", default=None)

KILL_ROUNDS = 200
"""Turns in which everything of a killed process must have ended; each awaited cleanup costs one or two."""


class Unkillable(RuntimeError):
    """A task survives any number of cancellations: in reality it would survive a shutdown."""


class Actor:
    """One process."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.alive = True
        self._loop = loop
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.context = Context()
        self.context.run(_CURRENT.set, self)

    def spawn(self, work: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Start ``work`` as a part of this process, whoever asks."""
        return self._loop.create_task(work, name=name or self.name, context=self.context.copy())

    def call_soon(self, call: Any, *args: Any) -> None:
        self._loop.call_soon(call, *args, context=self.context.copy())

    def check(self) -> None:
        """:raises asyncio.CancelledError: the process is dead."""
        if not self.alive:
            raise asyncio.CancelledError

    def owns(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    async def kill(self) -> None:
        """End it where it stands. :raises Unkillable: something of it goes on."""
        self.alive = False
        for _ in range(KILL_ROUNDS):
            if not self._tasks:
                return
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.sleep(0)
        raise Unkillable(f"{self.name}: {next(iter(self._tasks))}")


def assign(task: asyncio.Task[Any], context: Context | None) -> None:
    """For :class:`~corral.sim.loop.VirtualLoop`: a task belongs to the process that made it."""
    actor = context.get(_CURRENT) if context is not None else _CURRENT.get()
    if actor is not None:
        actor.owns(task)
