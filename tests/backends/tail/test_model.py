# SPDX-License-Identifier: Apache-2.0
"""A real file, a real tail, and the model beside it: any sequence of writes, reads and takes, then a stop."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.backends.tail import Bounds, tail_file
from tests.backends.tail.model import Model
from tests.backends.tail.rig import SMALL, Watch, append, both_ways, has_read, rest, start_reading, take

# Few letters, many newlines, and bytes that are no UTF-8: limits and blank lines are met all the time.
pieces = [b"\n", b"a", b"bc", b"\xff", b"\xe2\x82", b"\xac", b"\r", b"0123456789"]
chunks = st.lists(st.sampled_from(pieces)).map(b"".join)
steps = st.lists(
    st.one_of(
        chunks.map(lambda data: ("write", data)),
        st.just(("read", b"")),
        st.integers(1, 6).map(lambda count: ("take", count)),
    ),
    max_size=25,
)
bounds = st.builds(
    Bounds,
    line_bytes=st.integers(1, 12),
    read_bytes=st.integers(1, 200),
    queued_lines=st.integers(2, 7),
    queued_bytes=st.integers(56, 90),
    patience=st.just(0.0),
)


async def follow(path: Path, script: list[tuple[str, object]], limits: Bounds, watch: Watch) -> None:
    stop, model = asyncio.Event(), Model(limits)
    tail = tail_file(path, stop, bounds=limits, watcher=watch())
    written, unread = 0, b""
    append(path, b"first\n")
    first = start_reading(tail)
    model.read(b"first\n")
    assert await first == model.take()
    for step, value in script:
        match step, value:
            case "write", bytes(data):
                append(path, data)
                written, unread = written + len(data), unread + data
            case "read", _:
                await has_read(tail, len(b"first\n") + written)
                # One read may be cut into several: the marker depends on what was read, not on how.
                model.read(unread)
                unread = b""
            case "take", int(count):
                expected = [line for line in (model.take() for _ in range(count)) if line is not None]
                assert await take(tail, len(expected)) == expected
    expected = model.take_all()
    assert await take(tail, len(expected)) == expected
    stop.set()
    model.read(unread)
    # The consumer is prompt now: it may take before all is read, so no more than the model is lost.
    left = await rest(tail)
    assert left == model.take_all() + model.stop()


@both_ways
def test_the_output_is_the_models_for_any_writes_reads_and_takes(watch: Watch) -> None:
    @settings(max_examples=100, deadline=None)
    @given(script=steps, limits=bounds.map(_read_at_once))
    def holds(script: list[tuple[str, object]], limits: Bounds) -> None:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(follow(Path(folder) / "console.log", script, limits, watch))

    holds()


def _read_at_once(limits: Bounds) -> Bounds:
    """Whole reads, so that what waits at the stop is read in one go and the model knows what was lost."""
    return Bounds(
        line_bytes=limits.line_bytes,
        queued_lines=limits.queued_lines,
        queued_bytes=limits.queued_bytes,
        patience=0,
    )


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(chunks, max_size=12), limits=bounds)
def test_no_bound_is_passed_however_little_is_read_at_once(parts: list[bytes], limits: Bounds) -> None:
    """Tiny reads, nothing taken until the end: the newest lines that fit, behind one marker."""

    async def run(path: Path) -> None:
        stop, model = asyncio.Event(), Model(limits)
        append(path, b"first\n")
        tail = tail_file(path, stop, bounds=limits)
        model.read(b"first\n")
        assert await start_reading(tail) == model.take()
        for part in parts:
            append(path, part)
            model.read(part)
        await has_read(tail, len(b"first\n") + sum(map(len, parts)))
        expected = model.take_all()
        assert await take(tail, len(expected)) == expected
        stop.set()
        assert await rest(tail) == model.stop()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder) / "console.log"))


def test_the_small_bounds_are_met() -> None:
    model = Model(SMALL)
    model.read(b"1\n2\n3\n4\n5\n123456789\n")
    assert model.take_all() == [b"[dropped 3 lines]", b"4", b"5", b"12345678 [truncated]"]
