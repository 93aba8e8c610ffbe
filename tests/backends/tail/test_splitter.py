# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corral.backends.tail import Bounds, Cut, Notice, Tally
from corral.backends.tail.batch import Batch, Position
from corral.backends.tail.splitter import Splitter
from tests.backends.tail.model import Model

HERE = Position(device=1, inode=2, offset=0)
texts = st.lists(st.sampled_from([b"\n", b"a", b"bcd", b"\xff", b"0123456789"]), max_size=40).map(b"".join)
cuts = st.lists(st.integers(1, 30), max_size=20)


def parts_of(data: bytes, sizes: list[int]) -> list[bytes]:
    parts, at = [], 0
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return [*parts, data[at:]]


def split(parts: list[bytes], *, limit: int, batch_lines: int = 3, at: Position = HERE) -> list[Batch]:
    splitter = Splitter(limit=limit, batch_lines=batch_lines, tally=Tally())
    splitter.begin(at)
    batches = [batch for part in parts for batch in splitter.feed(part)]
    return batches + list(splitter.flush())


def lines_of(batches: list[Batch]) -> list[bytes]:
    return [line for batch in batches for line in batch.lines]


@given(data=texts, sizes=cuts, limit=st.integers(1, 12))
def test_lines_do_not_depend_on_where_the_reads_were_cut(data: bytes, sizes: list[int], limit: int) -> None:
    model = Model(Bounds(line_bytes=limit, queued_lines=10_000))
    model.read(data)
    assert lines_of(split(parts_of(data, sizes), limit=limit)) == model.stop()


@given(data=texts, sizes=cuts, limit=st.integers(1, 12))
def test_from_every_position_exactly_the_rest_follows(data: bytes, sizes: list[int], limit: int) -> None:
    batches = split(parts_of(data, sizes), limit=limit)
    lines = lines_of(batches)
    done = 0
    for batch in batches:
        for taken in range(len(batch.lines) + 1):
            at = batch.after(taken)
            assert lines_of(split([data[at.offset :]], limit=limit, at=at)) == lines[done + taken :]
        done += len(batch.lines)


@given(data=texts, sizes=cuts, limit=st.integers(1, 12))
def test_sizes_add_up_and_no_batch_is_empty_or_too_long(data: bytes, sizes: list[int], limit: int) -> None:
    for batch in split(parts_of(data, sizes), limit=limit):
        assert 0 < len(batch.lines) <= 3
        assert batch.size == sum(map(len, batch.lines)) <= 2 * limit + len(b" [truncated]")
        assert all(batch.lines)
        for taken in range(1, len(batch.lines)):
            behind = batch.without(taken)
            assert behind.lines == batch.lines[taken:] and behind.size == sum(map(len, behind.lines))
            assert behind.start == batch.after(taken) and behind.after(len(behind.lines)) == batch.end


def test_exactly_the_limit_is_whole_and_one_more_is_cut() -> None:
    whole, cut = lines_of(split([b"12345678\n123456789\n"], limit=8))
    assert (whole, type(whole)) == (b"12345678", bytes)
    assert cut == b"12345678 [truncated]"
    assert isinstance(cut, Notice) and cut.record == Cut(kept=8, offset=9)


def test_a_line_that_outgrows_the_limit_is_told_at_once_and_its_rest_is_not_kept() -> None:
    tally = Tally()
    splitter = Splitter(limit=8, tally=tally)
    splitter.begin(HERE)
    assert lines_of(list(splitter.feed(b"123456789"))) == [b"12345678 [truncated]"]
    for _ in range(1000):
        assert list(splitter.feed(b"y" * 100)) == []
    assert splitter.discarding and tally.discarded_bytes == 1 + 100_000
    assert lines_of(list(splitter.feed(b"tail\nnext\n"))) == [b"next"]
    assert list(splitter.flush()) == []


def test_carriage_returns_stay_and_blank_lines_go() -> None:
    assert lines_of(split([b"a\r\n\n\r\n\nb"], limit=8)) == [b"a\r", b"\r", b"b"]


def test_the_limit_is_one_of_bytes_not_of_characters() -> None:
    euro = "€".encode()
    assert lines_of(split([euro * 3 + b"\n"], limit=8)) == [(euro * 3)[:8] + b" [truncated]"]
