# SPDX-License-Identifier: Apache-2.0
"""Bytes in, batches of lines out; no IO. Holds at most one unfinished line of the limit and one slice.

Lines end at LF; CR stays. Nothing is decoded, so a character split across two reads cannot suffer, and
every limit is one of bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, compress

from corral.backends.tail import records
from corral.backends.tail.batch import Batch, Position
from corral.backends.tail.records import Tally

# Lines. Under half of the queue's 10,000: a batch must fit while the consumer still holds the one before it.
BATCH_LINES = 4096


class Splitter:
    """Cuts a file's bytes into lines of at most ``limit`` bytes.

    :param limit: a line longer than this is cut; also the size of a slice that is split at once, so that only
        the first line of a slice can be too long, and no list outgrows it.
    :param batch_lines: at most this many lines travel together.
    """

    def __init__(self, *, limit: int, batch_lines: int = BATCH_LINES, tally: Tally) -> None:
        self._limit = limit
        self._batch_lines = batch_lines
        self._tally = tally
        self._partial = bytearray()
        self._at = Position(device=0, inode=0, offset=0)

    @property
    def at(self) -> Position:
        """Behind the last byte that was fed."""
        return self._at

    @property
    def discarding(self) -> bool:
        """True inside the rest of a line that was cut."""
        return self._at.discarding

    def begin(self, position: Position) -> None:
        """Go on at ``position``; the caller has flushed what stood before."""
        self._partial.clear()
        self._at = position

    def feed(self, data: bytes, start: int = 0) -> Iterator[Batch]:
        """The lines that ``data[start:]`` completes, and one that outgrew the limit."""
        if self._at.discarding:
            start = self._discard(data, start)
        for at in range(start, len(data), self._limit):
            yield from self._slice(data[at : at + self._limit])

    def skip(self, count: int) -> None:
        """Count ``count`` bytes of a hole as read; legal only while discarding, where they end nothing."""
        assert self._at.discarding
        self._tally.discarded_bytes += count
        self._move(count)

    def flush(self) -> Iterator[Batch]:
        """The unterminated last line, if there is one."""
        if self._partial:
            line = bytes(self._partial)
            self._partial.clear()
            start = replace(self._at, offset=self._at.offset - len(line))
            yield Batch(start=start, lines=[line], size=len(line), end=self._at)

    def _move(self, count: int, *, discarding: bool | None = None) -> None:
        state = self._at.discarding if discarding is None else discarding
        self._at = replace(self._at, offset=self._at.offset + count, discarding=state)

    def _discard(self, data: bytes, start: int) -> int:
        newline = data.find(b"\n", start)
        end = len(data) if newline < 0 else newline + 1
        self._tally.discarded_bytes += end - start - (newline >= 0)
        self._move(end - start, discarding=newline < 0)
        return end

    def _slice(self, data: bytes) -> Iterator[Batch]:
        if self._at.discarding:
            data = data[self._discard(data, 0) :]
        pieces = data.split(b"\n")
        line_start = self._at.offset - len(self._partial)
        if self._partial:
            pieces[0] = bytes(self._partial) + pieces[0]
        self._partial[:] = pieces.pop()
        self._move(len(data))
        if pieces and len(pieces[0]) > self._limit:
            yield self._cut(pieces[0], line_start, terminated=True)
            line_start += len(pieces[0]) + 1
            del pieces[0]
        if pieces:
            yield from self._batches(pieces, line_start)
        if len(self._partial) > self._limit:
            yield self._cut(bytes(self._partial), line_start, terminated=False)
            self._partial.clear()
            self._move(0, discarding=True)

    def _cut(self, line: bytes, offset: int, *, terminated: bool) -> Batch:
        record = records.Cut(kept=self._limit, offset=offset)
        self._tally.cut_lines += 1
        self._tally.discarded_bytes += len(line) - self._limit
        text = records.cut(line[: self._limit], record)
        start = replace(self._at, offset=offset, discarding=False)
        if terminated:
            end = replace(start, offset=offset + len(line) + 1)
        else:
            end = replace(start, offset=offset + self._limit, discarding=True)
        return Batch(start=start, lines=[text], size=len(text), end=end)

    def _batches(self, pieces: list[bytes], offset: int) -> Iterator[Batch]:
        for first in range(0, len(pieces), self._batch_lines):
            part = pieces[first : first + self._batch_lines]
            end = offset + sum(map(len, part)) + len(part)
            batch = self._batch(part, offset, end)
            if batch is not None:
                yield batch
            offset = end

    def _batch(self, part: list[bytes], offset: int, end: int) -> Batch | None:
        ends = None
        size = end - offset - len(part)
        if not all(part):
            ends = _ends_of_filled(part, offset)
            part = list(filter(None, part))
        if not part:
            return None
        at = replace(self._at, discarding=False)
        return Batch(start=replace(at, offset=offset), lines=part, size=size, end=replace(at, offset=end), ends=ends)


def _ends_of_filled(part: list[bytes], offset: int) -> array[int]:
    """Offset behind each line that is not blank, with its newline."""
    ends = accumulate(len(line) + 1 for line in part)
    return array("q", (offset + end for end in compress(ends, part)))
