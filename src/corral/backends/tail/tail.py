# SPDX-License-Identifier: Apache-2.0
"""``tail_file``: the lines of a file that somebody hostile appends to, as they come."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType

from corral.backends.tail.batch import Position
from corral.backends.tail.bounds import STANDARD, Bounds
from corral.backends.tail.reader import Reader
from corral.backends.tail.records import Tally
from corral.backends.tail.source import Place
from corral.backends.tail.start import Start
from corral.backends.tail.watching import Watcher


def tail_file(
    path: str | os.PathLike[str],
    stop: asyncio.Event,
    *,
    create: bool = True,
    start: Start | Position | int = Start.BEGINNING,
    beneath: str | os.PathLike[str] | None = None,
    bounds: Bounds = STANDARD,
    watcher: Watcher | None = None,
) -> Tail:
    """Follow the append-only file at ``path`` until ``stop`` is set.

    Yields complete, non-empty lines as ``bytes`` without their LF; a :class:`~corral.backends.tail.Notice`
    where the tail itself has something to say. Once ``stop`` is set, what the file holds by then is still
    yielded, an unterminated last line too, and the iterator ends.

    :param create: make the file (empty, mode 0600) where it is missing; otherwise wait for it to appear.
    :param start: the beginning, the end, an offset in bytes, or a ``position`` of an earlier tail.
    :param beneath: a folder above ``path`` that the writer does not own. Below it no component may be a
        symbolic link; without it only the last one is held to that.
    :param bounds: what is read, queued and kept at most.
    :param watcher: wakes the tail; by default the one that the event loop's tails share.
    :raises TailRefused: (while iterating, after the lines before it) a FIFO, link, socket, device or folder
        stands at the path, or it may not be read.
    :raises TailUnavailable: (while iterating) the system failed to read what is there at the stop.
    """
    if isinstance(start, int) and start < 0:
        raise ValueError("start is not negative")
    place = Place(path=_absolute(path), beneath=None if beneath is None else _absolute(beneath))
    tally = Tally()
    reader = Reader(place=place, stop=stop, create=create, start=start, bounds=bounds, watcher=watcher, tally=tally)
    return Tail(reader=reader, tally=tally)


def _absolute(path: str | os.PathLike[str]) -> str:
    # Against a change of directory later; ".." stays out of what is checked component by component.
    return os.path.abspath(os.fspath(path))  # noqa: PTH100 - keeps a str


class Tail:
    """An async iterator over lines, for one consumer. Reading begins with the first line that is asked for.

    Letting go of it (``break``, an exception, ``aclose``) ends the reading and frees descriptor and watch.
    ``async with`` closes it at once rather than when the event loop gets round to it. A single ``anext``
    may be given up (a timeout) without ending the tail.
    """

    def __init__(self, *, reader: Reader, tally: Tally) -> None:
        self.tally = tally
        self._reader = reader
        self._lines = _lines(reader)

    @property
    def position(self) -> Position | None:
        """Where a restart goes on: behind the last line that was yielded; ``None`` before the first."""
        return self._reader.backlog.position

    def __aiter__(self) -> AsyncIterator[bytes]:
        # The generator itself: a million lines a second leave no room for one more call each.
        return self._lines

    async def __anext__(self) -> bytes:
        # Waited for out here: a caller that gives up on one line does not end the tail.
        self._reader.begin()
        await self._reader.filled()
        return await self._lines.__anext__()

    async def aclose(self) -> None:
        """End at once, without draining. May be repeated."""
        await self._lines.aclose()
        await self._reader.end()

    async def __aenter__(self) -> Tail:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def _lines(reader: Reader) -> AsyncGenerator[bytes, None]:
    backlog = reader.backlog
    reader.begin()
    try:
        while True:
            if (marker := backlog.take_marker()) is not None:
                yield marker
            elif (lines := backlog.take()) is not None:
                reader.taken()
                for line in lines:
                    yield line
            elif not reader.ended:
                reader.taken()
                await reader.filled()
            else:
                break
    finally:
        await reader.end()
    if reader.failure is not None:
        raise reader.failure
