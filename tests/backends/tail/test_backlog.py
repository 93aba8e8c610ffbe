# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corral.backends.tail import Bounds, Dropped, Notice, Tally
from corral.backends.tail.backlog import Backlog
from corral.backends.tail.batch import Batch, Position
from tests.backends.tail.model import Model

BOUNDS = Bounds(line_bytes=10, queued_lines=6, queued_bytes=60, patience=0)
batches = st.lists(st.integers(1, 10), min_size=1, max_size=5)


def take(backlog: Backlog, hand: list[object]) -> bytes | None:
    """One line. ``hand`` is the iterator that the consumer walks: an overflow exhausts it behind its back."""
    while True:
        line = next(hand[0], None) if hand else None  # type: ignore[call-overload]
        if line is not None:
            return line  # type: ignore[no-any-return]
        hand.clear()
        marker = backlog.take_marker()
        if marker is not None:
            return marker
        lines = backlog.take()
        if lines is None:
            return None
        hand.append(lines)


def batch_of(widths: list[int], at: int) -> Batch:
    lines = [b"x" * width for width in widths]
    start = Position(device=1, inode=1, offset=at)
    end = Position(device=1, inode=1, offset=at + sum(widths) + len(widths))
    return Batch(start=start, lines=lines, size=sum(widths), end=end)


@given(st.lists(st.one_of(batches, st.integers(1, 8)), max_size=40))
def test_the_newest_that_fit_wait_behind_one_cumulative_marker(script: list[list[int] | int]) -> None:
    backlog, model, hand, at = Backlog(bounds=BOUNDS, tally=Tally()), Model(BOUNDS), [], 0
    for step in script:
        if isinstance(step, list):
            batch = batch_of(step, at)
            at = batch.end.offset
            backlog.put(batch)
            for line in batch.lines:
                model.push(line)
        else:
            for _ in range(step):
                # A marker interrupts the line in hand only between batches: take what the tail would.
                assert take(backlog, hand) == model.take()
    assert list(iter(lambda: take(backlog, hand), None)) == model.take_all()
    assert backlog.empty
    assert backlog.position is None or backlog.position.offset == at


def test_a_line_that_looks_like_a_marker_is_dropped_and_counted_like_any_other() -> None:
    backlog = Backlog(bounds=BOUNDS, tally=Tally())
    forged = b"[dropped 9 lines]"
    start = Position(device=1, inode=1, offset=0)
    backlog.put(Batch(start=start, lines=[forged] * 3, size=51, end=start))
    backlog.put(batch_of([5, 5], 0))
    marker = backlog.take_marker()
    assert marker == b"[dropped 1 lines]"
    assert isinstance(marker, Notice) and marker.record == Dropped(lines=1, since=1, size=17)
    lines = backlog.take()
    assert lines is not None and list(lines) == [forged] * 2
    assert not any(isinstance(line, Notice) for line in [forged])


def test_the_second_marker_counts_on_and_says_what_is_new() -> None:
    backlog, hand = Backlog(bounds=BOUNDS, tally=Tally()), []
    backlog.put(batch_of([1] * 8, 0))
    first = take(backlog, hand)
    backlog.put(batch_of([1] * 6, 16))
    second = take(backlog, hand)
    assert isinstance(first, Notice) and isinstance(second, Notice)
    assert (first.record, second.record) == (
        Dropped(lines=3, since=3, size=3),
        Dropped(lines=9, since=6, size=9),
    )


def test_notices_about_the_file_are_bounded_too_but_not_counted_as_lines() -> None:
    tally = Tally()
    backlog = Backlog(bounds=BOUNDS, tally=tally)
    start = Position(device=1, inode=1, offset=0)
    for _ in range(1000):
        backlog.put(Batch(start=start, lines=[b"[file truncated]"], size=16, end=start, counted=False))
    assert tally.dropped_lines == 0
    waiting = 0
    while (lines := backlog.take()) is not None:
        waiting += len(list(lines))
    assert waiting == 3
