# SPDX-License-Identifier: Apache-2.0
"""The wish that fetching a source ends, on its way from the event loop to the thread that fetches."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

ABANDON_AFTER = 1.0
"""Seconds that a stopped fetch may still take before nobody waits for it any more: what cannot be interrupted (a name
being looked up) touches none of the job's files afterwards."""


class Stop:
    """Set once. Threads: every method may be called from any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._actions: list[Callable[[], None]] = []

    def set(self) -> None:
        with self._lock:
            self._event.set()
            actions, self._actions = self._actions, []
        for action in actions:
            action()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Whether it was set within this time."""
        return self._event.wait(seconds)

    @contextlib.contextmanager
    def calling(self, action: Callable[[], None]) -> Iterator[None]:
        """Call ``action`` (once, from another thread) when it is set meanwhile, at once when it is already."""
        with self._lock:
            already = self._event.is_set()
            if not already:
                self._actions.append(action)
        if already:
            action()
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._actions.remove(action)

    def interrupting(self, connection: socket.socket) -> contextlib.AbstractContextManager[None]:
        """End whatever waits on the socket, connecting included, when it is set."""

        def shut() -> None:
            # Not the TLS layer's own: that one takes its state away from under the thread that reads.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

        return self.calling(shut)


class Abandoned(Exception):
    """A stopped fetch did not end in time; its thread ends by itself."""


async def in_thread(work: Callable[[], None], stop: Stop) -> None:
    """Run ``work`` in a thread of its own and raise what it raises.

    :raises Abandoned: ``stop`` was set and it did not end.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    stopped = asyncio.Event()

    def settle(error: BaseException | None) -> None:
        if not done.done():
            done.set_exception(error) if error is not None else done.set_result(None)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            loop.call_soon_threadsafe(settle, error)

    def wake() -> None:
        loop.call_soon_threadsafe(stopped.set)

    with stop.calling(wake):
        threading.Thread(target=run, name="corral-fetch", daemon=True).start()
        done.add_done_callback(lambda _: stopped.set())
        await stopped.wait()
        if not done.done():
            await asyncio.wait({done}, timeout=ABANDON_AFTER)
    if not done.done():
        done.cancel()
        raise Abandoned
    done.result()
