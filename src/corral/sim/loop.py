# SPDX-License-Identifier: Apache-2.0
"""An event loop whose time jumps: whenever nothing is ready, the clock moves to the next timer.

Deterministic: there is one thread, no input or output, and futures and tasks hash by the order in which they were
made, so that even a ``set`` of them is walked in the same order in every process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from itertools import count
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

ROUNDS_PER_MOMENT = 50_000
"""Turns of the loop without any time passing before it counts as spinning: a thousand agents that all have something
to do at one moment need far fewer."""


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is set: nothing will ever happen again."""


class Livelock(RuntimeError):
    """Something keeps itself busy without time passing: in reality a core at 100 %."""


class VirtualFuture(asyncio.Future[T]):
    def __init__(self, number: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class VirtualTask(asyncio.Task[T]):
    def __init__(
        self,
        coroutine: Generator[Any, None, T] | Coroutine[Any, Any, T],
        number: int,
        *,
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self.number = number
        super().__init__(coroutine, loop=loop, context=context)

    def __hash__(self) -> int:
        return self.number


class _Jump:
    """Stands where a selector would wait: lets the time pass instead."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> tuple[()]:
        if timeout is None:
            raise Deadlock(f"nothing is left to happen at {self._loop.time():.6f} s")
        self._loop.pass_time(timeout)
        return ()


class VirtualLoop(asyncio.BaseEventLoop):
    """``on_task`` is told of every task that is made, with its context (None: the maker's)."""

    def __init__(
        self, on_task: Callable[[VirtualTask[Any], Context | None], None] = lambda task, context: None
    ) -> None:
        super().__init__()
        self._now = 0.0
        self._rounds = 0
        self._numbers = count(1)
        self._on_task = on_task
        self._selector = _Jump(self)
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._now

    def pass_time(self, timeout: float) -> None:
        """Called once per turn; ``timeout`` is 0 while something is ready."""
        if timeout <= 0:
            self._rounds += 1
            if self._rounds > ROUNDS_PER_MOMENT:
                raise Livelock(f"spinning at {self._now:.6f} s")
            return
        self._rounds = 0
        # The timer's own moment, not now + timeout: adding would be off by the last bit, and claims here are exact.
        self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]

    def create_future(self) -> asyncio.Future[Any]:
        return VirtualFuture(next(self._numbers), loop=self)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None
    ) -> VirtualTask[Any]:
        task: VirtualTask[Any] = VirtualTask(coroutine, next(self._numbers), loop=loop, context=context)
        self._on_task(task, context)
        return task

    # --- what there is not ---

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no threads in virtual time: the call would take real time and end in any order")

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        # The loop's own finaliser of generators calls this; there is only this one thread.
        return self.call_soon(callback, *args, context=context)

    def _process_events(self, events: object) -> None:
        """There are no files to be ready."""

    def _write_to_self(self) -> None:
        """Nobody has to be woken from a wait that never happens."""


def run(main: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """Run to the end on ``loop``, which is closed afterwards.

    :raises Deadlock: it waits for something that cannot happen.
    :raises Livelock: it spins.
    """
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)
