# SPDX-License-Identifier: Apache-2.0
"""Any history of appends, replays, ends and crashes against a model of ten lines; any bytes as a file."""

from __future__ import annotations

import asyncio
import hashlib
import random
import tempfile
import tracemalloc
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.errors import CorralError, Refused
from corral.model.ids import JobId, RunId
from corral.store.interface import LogKey
from corral.store.logdir import LogDirectory

KEY = LogKey(run_id=RunId("run_a"), job_id=JobId("job_a"), attempt=1, step=2)
STREAM = random.Random(7).randbytes(40_000)


class Model:
    """What a log store is, in a few lines: bytes, and whether more may come."""

    def __init__(self) -> None:
        self.data, self.final = b"", False

    def append(self, offset: int, data: bytes) -> int:
        if offset > len(self.data) or (self.final and offset + len(data) > len(self.data)):
            raise Refused("")
        self.data += data[len(self.data) - offset :]
        return len(self.data)


appends = st.tuples(st.just("append"), st.integers(-300, 40), st.integers(0, 2000))
bursts = st.tuples(st.just("burst"), st.integers(1, 6), st.integers(1, 3000))
crashes = st.tuples(st.just("crash"), st.floats(0, 1), st.booleans())
others = st.sampled_from([("finish", 0, 0), ("restart", 0, 0), ("read", 0, 0)])
histories = st.lists(appends | bursts | crashes | others, max_size=14)


async def check(store: LogDirectory, model: Model) -> None:
    info = await store.info(KEY)
    assert (info.size, info.final) == (len(model.data), model.final)
    assert info.digest == (hashlib.sha256(model.data).hexdigest() if model.final else "")
    assert b"".join([chunk async for chunk in store.read(KEY)]) == model.data


async def play(root: Path, history: list[tuple[str, float, int]]) -> None:
    store, model = LogDirectory(root), Model()
    path = root / KEY.run_id / f"{KEY.job_id}.1.2.log.zst"
    for step, first, second in history:
        size = len(model.data)
        match step:
            case "append":
                offset = max(size + int(first), 0)
                data = STREAM[offset : offset + second]
                expected: int | type[Refused]
                try:
                    expected = model.append(offset, data)
                except Refused:
                    expected = Refused
                try:
                    assert await store.append(KEY, offset, data, 1) == expected
                except Refused:
                    assert expected is Refused
            case "burst" if not model.final:
                parts = [STREAM[at : at + second] for at in range(size, size + int(first) * second, second)]
                starts = [size + sum(map(len, parts[:n])) for n in range(len(parts))]
                await asyncio.gather(*(store.append(KEY, at, part, 1) for at, part in zip(starts, parts, strict=True)))
                model.data += b"".join(parts)
            case "finish":
                assert (await store.finish(KEY)).size == size
                model.final = True
            case "crash":
                await store.close()
                if path.exists():
                    before = path.read_bytes()
                    kept = int(len(before) * first)
                    # Cut short, or cut short and followed by blocks that were never written.
                    path.write_bytes(before[:kept] + (b"\0" * min(len(before) - kept, 5000) if second else b""))
                store = LogDirectory(root)
                info = await store.info(KEY)
                assert info.size <= size
                assert not info.final or (model.final and info.size == size)
                model.data, model.final = model.data[: info.size], info.final
            case "restart":
                await store.close()
                store = LogDirectory(root)
            case _:
                await check(store, model)
    await check(store, model)
    if model.data or model.final:
        await store.verify(KEY)
    await store.close()


@settings(max_examples=80, deadline=None)
@given(histories)
def test_any_history_ends_with_a_prefix_of_what_was_sent(history: list[tuple[str, float, int]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        asyncio.run(play(Path(root), history))


def _sample() -> bytes:
    """A real file: ten frames and an end."""

    async def make(root: Path) -> bytes:
        store = LogDirectory(root)
        for at in range(0, 20_000, 2000):
            await store.append(KEY, at, STREAM[at : at + 2000], 1)
        await store.finish(KEY)
        await store.close()
        return (root / KEY.run_id / f"{KEY.job_id}.1.2.log.zst").read_bytes()

    with tempfile.TemporaryDirectory() as root:
        return asyncio.run(make(Path(root)))


SAMPLE = _sample()

edits = st.lists(
    st.tuples(st.integers(0, len(SAMPLE)), st.integers(0, 300), st.binary(max_size=300)), min_size=1, max_size=4
)


def edited(changes: list[tuple[int, int, bytes]]) -> bytes:
    data = SAMPLE
    for at, removed, inserted in changes:
        data = data[:at] + inserted + data[at + removed :]
    return data


async def survive(root: Path, content: bytes) -> None:
    """Everything either works or raises one of our own errors; what is read is what was stored, or less."""
    path = root / KEY.run_id / f"{KEY.job_id}.1.2.log.zst"
    path.parent.mkdir()
    path.write_bytes(content)
    store = LogDirectory(root)
    seen = b""
    try:
        info = await store.info(KEY)
        assert 0 <= info.size <= 20_000
        async for chunk in store.read(KEY):
            seen += chunk
        await store.append(KEY, info.size, b"more", 1)
        await store.finish(KEY)
        await store.verify(KEY)
    except CorralError:
        pass
    finally:
        await store.close()
    assert STREAM.startswith(seen)


@settings(max_examples=120, deadline=None)
@given(edits.map(edited) | st.binary(max_size=400))
def test_any_bytes_as_a_file_give_a_typed_error_or_a_shorter_log(content: bytes) -> None:
    tracemalloc.start()
    try:
        with tempfile.TemporaryDirectory() as root:
            asyncio.run(survive(Path(root), content))
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024 * 1024
    finally:
        tracemalloc.stop()
