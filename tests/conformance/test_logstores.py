# SPDX-License-Identifier: Apache-2.0
"""What every log store does."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from corral.model.errors import Refused, StoreUnavailable
from corral.model.ids import JobId, RunId
from corral.store.interface import LogInfo, LogKey, LogStore
from corral.store.logdir import LogDirectory
from corral.store.logmemory import MemoryLogs
from tests.waiting import eventually_async

Use = Callable[[Callable[[LogStore], Awaitable[None]]], None]
MIB = 1024 * 1024


@pytest.fixture(params=["directory", "memory"])
def use(request: pytest.FixtureRequest, tmp_path: Path) -> Use:
    """Runs a test's coroutine function with a store, and closes it."""

    def run(test: Callable[[LogStore], Awaitable[None]]) -> None:
        async def go() -> None:
            store: LogStore = MemoryLogs() if request.param == "memory" else LogDirectory(tmp_path / "logs")
            try:
                await test(store)
            finally:
                await store.close()

        asyncio.run(go())

    return run


def key(step: int = 0, run: str = "run_a") -> LogKey:
    return LogKey(run_id=RunId(run), job_id=JobId("job_a"), attempt=1, step=step)


async def whole(store: LogStore, key: LogKey, start: int = 0, end: int | None = None) -> bytes:
    return b"".join([chunk async for chunk in store.read(key, start, end)])


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_log_nobody_wrote_to(use: Use) -> None:
    async def test(store: LogStore) -> None:
        assert await store.info(key()) == LogInfo(size=0, final=False, digest="")
        assert await whole(store, key()) == b""
        assert await store.delete_run(RunId("run_a")) == 0
        assert await store.usage() == {}

    use(test)


def test_appended_bytes_are_read_back(use: Use) -> None:
    async def test(store: LogStore) -> None:
        assert await store.append(key(), 0, b"hello ", 1) == 6
        assert await store.append(key(), 6, b"world\n", 2) == 12
        assert await store.info(key()) == LogInfo(size=12, final=False, digest="")
        assert await whole(store, key()) == b"hello world\n"

    use(test)


def test_every_range(use: Use) -> None:
    data = bytes(range(100))

    async def test(store: LogStore) -> None:
        for at in range(0, 100, 7):
            await store.append(key(), at, data[at : at + 7], 1)
        for start in range(0, 102, 3):
            for end in (0, 1, start, start + 1, start + 8, 99, 100, 101, 1000, None):
                assert await whole(store, key(), start, end) == data[start:end], (start, end)

    use(test)


@pytest.mark.parametrize("offset", [0, 3, 5])
def test_what_is_stored_already_is_dropped(use: Use, offset: int) -> None:
    async def test(store: LogStore) -> None:
        await store.append(key(), 0, b"01234", 1)
        assert await store.append(key(), offset, b"01234567"[offset:], 2) == 8
        assert await whole(store, key()) == b"01234567"
        assert await store.append(key(), 0, b"01234", 1) == 8

    use(test)


def test_a_gap_is_refused(use: Use) -> None:
    async def test(store: LogStore) -> None:
        with pytest.raises(Refused, match="gap"):
            await store.append(key(), 1, b"x", 1)
        await store.append(key(), 0, b"abc", 1)
        with pytest.raises(Refused, match="3 bytes; 4 would leave a gap"):
            await store.append(key(), 4, b"x", 1)
        assert await whole(store, key()) == b"abc"

    use(test)


def test_finished_has_size_and_digest(use: Use) -> None:
    async def test(store: LogStore) -> None:
        await store.append(key(), 0, b"abc", 1)
        await store.append(key(), 3, b"def", 1)
        final = LogInfo(size=6, final=True, digest=digest(b"abcdef"))
        assert await store.finish(key()) == final
        assert await store.finish(key(), missing=7) == final
        assert await store.info(key()) == final

    use(test)


def test_finished_without_a_byte(use: Use) -> None:
    async def test(store: LogStore) -> None:
        assert await store.finish(key(), missing=10) == LogInfo(size=0, final=True, digest=digest(b""))
        assert await whole(store, key()) == b""

    use(test)


def test_a_final_log_takes_nothing_more_but_answers_a_replay(use: Use) -> None:
    async def test(store: LogStore) -> None:
        await store.append(key(), 0, b"abc", 1)
        await store.finish(key())
        assert await store.append(key(), 0, b"abc", 1) == 3
        with pytest.raises(Refused, match="final"):
            await store.append(key(), 3, b"d", 1)
        with pytest.raises(Refused, match="final"):
            await store.append(key(), 0, b"abcd", 1)
        assert await whole(store, key()) == b"abc"

    use(test)


def test_appends_in_flight_together_keep_their_order(use: Use) -> None:
    pieces = [b"%d," % n for n in range(500)]
    data = b"".join(pieces)

    async def test(store: LogStore) -> None:
        at, calls = 0, []
        for piece in pieces:
            calls.append(asyncio.create_task(store.append(key(), at, piece, 1)))
            at += len(piece)
        end = asyncio.create_task(store.finish(key()))
        sizes = await asyncio.gather(*calls)
        assert all(size >= len(b"".join(pieces[: n + 1])) for n, size in enumerate(sizes))
        assert (await end).digest == digest(data)
        assert await whole(store, key()) == data

    use(test)


def test_many_logs_at_once_stay_apart(use: Use) -> None:
    async def test(store: LogStore) -> None:
        keys = [key(step, run) for step in range(50) for run in ("run_a", "run_b")]
        for round in range(3):
            await asyncio.gather(*(store.append(k, 3 * round, b"%02d," % k.step, 1) for k in keys))
        for k in keys:
            assert await whole(store, k) == b"%02d," % k.step * 3

    use(test)


def test_a_burst_and_one_long_line_are_complete(use: Use) -> None:
    data = b"x" * (10 * MIB)

    async def test(store: LogStore) -> None:
        for at in range(0, len(data), 65536):
            await store.append(key(), at, data[at : at + 65536], 1)
        await store.append(key(1), 0, data, 1)
        for step in (0, 1):
            assert (await store.finish(key(step))).digest == digest(data)
            chunks = [chunk async for chunk in store.read(key(step))]
            assert max(len(chunk) for chunk in chunks) <= MIB
            assert b"".join(chunks) == data

    use(test)


def test_changed_returns_when_there_is_more(use: Use) -> None:
    async def test(store: LogStore) -> None:
        await store.append(key(), 0, b"abc", 1)
        await asyncio.wait_for(store.changed(key(), 2), 5)
        waiting = asyncio.create_task(store.changed(key(), 3))
        await store.info(key())
        assert not waiting.done()
        await store.append(key(), 3, b"d", 1)
        await asyncio.wait_for(waiting, 5)
        assert (await store.info(key())).size == 4

    use(test)


def test_changed_returns_when_the_log_is_final(use: Use) -> None:
    async def test(store: LogStore) -> None:
        waiting = [asyncio.create_task(store.changed(key(), size)) for size in (0, 0, 100)]
        await store.info(key())
        await store.finish(key())
        await asyncio.wait_for(asyncio.gather(*waiting), 5)
        await asyncio.wait_for(store.changed(key(), 100), 5)

    use(test)


def test_a_follower_reads_everything(use: Use) -> None:
    async def test(store: LogStore) -> None:
        async def follow() -> bytes:
            seen = b""
            while True:
                await store.changed(key(), len(seen))
                info = await store.info(key())
                seen += await whole(store, key(), len(seen))
                if info.final and len(seen) == info.size:
                    return seen

        following = asyncio.create_task(follow())
        data = b"".join(b"line %d\n" % n for n in range(300))
        for at in range(0, len(data), 50):
            await store.append(key(), at, data[at : at + 50], 1)
        await store.finish(key())
        assert await asyncio.wait_for(following, 10) == data

    use(test)


def test_a_deleted_run_is_gone_and_others_stay(use: Use) -> None:
    async def test(store: LogStore) -> None:
        for run in ("run_a", "run_b"):
            for step in range(3):
                await store.append(key(step, run), 0, b"x" * 100, 1)
        assert set(await store.usage()) == {"run_a", "run_b"}
        freed = (await store.usage())[RunId("run_a")]
        waiting = asyncio.create_task(store.changed(key(0), 100))
        await asyncio.sleep(0)  # it waits now
        assert await store.delete_run(RunId("run_a")) == freed
        await asyncio.wait_for(waiting, 5)
        assert await store.delete_run(RunId("run_a")) == 0
        assert set(await store.usage()) == {"run_b"}
        assert (await store.info(key(0))).size == 0
        assert await whole(store, key(0, "run_b")) == b"x" * 100
        assert await store.append(key(0), 0, b"new", 1) == 3
        assert await whole(store, key(0)) == b"new"

    use(test)


def test_nothing_can_be_written_after_close(use: Use) -> None:
    async def test(store: LogStore) -> None:
        await store.append(key(), 0, b"abc", 1)
        waiting = asyncio.create_task(store.changed(key(1), 0))
        await store.info(key())
        await store.close()
        await store.close()
        with pytest.raises(StoreUnavailable):
            await store.append(key(), 3, b"d", 1)
        with pytest.raises(StoreUnavailable):
            await store.finish(key())
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    use(test)


def test_a_caller_that_leaves_does_not_disturb_the_others(use: Use) -> None:
    async def test(store: LogStore) -> None:
        first = asyncio.create_task(store.append(key(), 0, b"abc", 1))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)

        async def resend() -> bool:
            return await store.append(key(), 0, b"abcdef", 1) == 6

        await eventually_async(resend)
        assert await whole(store, key()) == b"abcdef"

    use(test)
