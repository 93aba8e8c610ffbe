# SPDX-License-Identifier: Apache-2.0
"""What waits for the consumer: bounded in lines and bytes, the oldest dropped with one cumulative marker in
front.

Pure bookkeeping. The batch that the consumer is walking through still counts as waiting, as far as it is not
taken: overflow takes lines out of it too, by exhausting the iterator in the consumer's hand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from operator import length_hint

from corral.backends.tail import records
from corral.backends.tail.batch import Batch, Position
from corral.backends.tail.bounds import Bounds
from corral.backends.tail.records import Dropped, Notice, Tally


class Backlog:
    """Lines between the reader and one consumer."""

    def __init__(self, *, bounds: Bounds, tally: Tally) -> None:
        self._bounds = bounds
        self._tally = tally
        self._waiting: deque[Batch] = deque()
        self._lines = 0
        self._size = 0
        self._in_hand: Batch | None = None
        self._rest: Iterator[bytes] = iter(())
        self._done: Position | None = None
        self._told = 0

    @property
    def position(self) -> Position | None:
        """Where a restart goes on behind the last line taken; ``None`` before the first."""
        if self._in_hand is not None:
            return self._in_hand.after(len(self._in_hand.lines) - length_hint(self._rest))
        return self._done

    @property
    def empty(self) -> bool:
        return not self._waiting and length_hint(self._rest) == 0 and not self._owes_marker

    def fits(self, batch: Batch) -> bool:
        """True where ``batch`` can be put without dropping a line."""
        held = 0 if self._in_hand is None or length_hint(self._rest) == 0 else self._in_hand.size
        lines = self._lines + length_hint(self._rest) + len(batch.lines)
        return lines <= self._room and self._size + held + batch.size <= self._bounds.queued_bytes

    def put(self, batch: Batch) -> None:
        """Add ``batch``; drop the oldest where a bound is passed."""
        overflows = not self.fits(batch)
        self._push(batch)
        if overflows:
            self._put_back_what_is_in_hand()
            self._trim()

    def take_marker(self) -> Notice | None:
        """The marker that stands in front, once after each loss."""
        if not self._owes_marker:
            return None
        total = self._tally.dropped_lines
        record = Dropped(lines=total, since=total - self._told, size=self._tally.dropped_bytes)
        self._told = total
        if self._waiting:
            self._done = self._waiting[0].start
        return records.dropped(record)

    def take(self) -> Iterator[bytes] | None:
        """An iterator over the next lines, in the consumer's hand from now on; ``None`` where nothing
        waits."""
        if length_hint(self._rest):
            return self._rest
        if self._in_hand is not None:
            self._done = self._in_hand.end
            self._in_hand = None
        if not self._waiting:
            return None
        self._in_hand = self._pop()
        self._rest = iter(self._in_hand.lines)
        return self._rest

    @property
    def _owes_marker(self) -> bool:
        return self._tally.dropped_lines > self._told

    @property
    def _room(self) -> int:
        """Lines that may wait: the marker takes the place of one."""
        return self._bounds.queued_lines - self._owes_marker

    def _push(self, batch: Batch) -> None:
        self._waiting.append(batch)
        self._lines += len(batch.lines)
        self._size += batch.size

    def _pop(self) -> Batch:
        batch = self._waiting.popleft()
        self._lines -= len(batch.lines)
        self._size -= batch.size
        return batch

    def _push_front(self, batch: Batch) -> None:
        self._waiting.appendleft(batch)
        self._lines += len(batch.lines)
        self._size += batch.size

    def _put_back_what_is_in_hand(self) -> None:
        if self._in_hand is None:
            return
        held, left = self._in_hand, length_hint(self._rest)
        self._done = self.position
        # Exhausts the iterator that the consumer walks: its loop ends and comes back here.
        deque(self._rest, maxlen=0)
        self._in_hand = None
        if left:
            self._push_front(held.without(len(held.lines) - left))

    def _trim(self) -> None:
        while self._lines > self._room or self._size > self._bounds.queued_bytes:
            front = self._pop()
            count = self._to_drop(front)
            if front.counted:
                self._tally.dropped_lines += count
                self._tally.dropped_bytes += sum(map(len, front.lines[:count]))
            if count < len(front.lines):
                self._push_front(front.without(count))

    def _to_drop(self, front: Batch) -> int:
        """How many lines of ``front`` (already taken out) have to go: all, or as few as make the rest fit."""
        # The first loss makes room for its marker too.
        room = self._bounds.queued_lines - 1 if front.counted else self._room
        by_lines = max(self._lines + len(front.lines) - room, 0)
        over = self._size + front.size - self._bounds.queued_bytes
        by_size = 0
        while over > 0 and by_size < len(front.lines):
            over -= len(front.lines[by_size])
            by_size += 1
        return min(max(by_lines, by_size), len(front.lines))
