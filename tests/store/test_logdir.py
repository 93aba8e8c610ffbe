# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from corral.model.errors import CorralError, Refused, StoreUnavailable
from corral.model.ids import JobId, RunId
from corral.store.interface import LogKey
from corral.store.logdir import LogDirectory
from corral.store.logformat import FINAL_HEADER, RAW_LIMIT, LogDamaged
from tests.store.limits import file_size_limit
from tests.waiting import eventually_async

KEY = LogKey(run_id=RunId("run_a"), job_id=JobId("job_a"), attempt=1, step=2)
MIB = 1024 * 1024


def key(step: int) -> LogKey:
    return LogKey(run_id=RunId("run_a"), job_id=JobId("job_a"), attempt=1, step=step)


def file_of(root: Path, of: LogKey = KEY) -> Path:
    return root / of.run_id / f"{of.job_id}.{of.attempt}.{of.step}.log.zst"


def use(root: Path, test: Callable[[LogDirectory], Awaitable[None]], **options: int) -> None:
    async def go() -> None:
        store = LogDirectory(root, **options)
        try:
            await test(store)
        finally:
            await store.close()

    asyncio.run(go())


async def whole(store: LogDirectory, of: LogKey = KEY, start: int = 0, end: int | None = None) -> bytes:
    return b"".join([chunk async for chunk in store.read(of, start, end)])


async def write(store: LogDirectory, data: bytes, step: int = 64 * 1024, of: LogKey = KEY) -> None:
    for at in range(0, len(data), step):
        await store.append(of, at, data[at : at + step], 1)


def lines(count: int, seed: int = 1) -> bytes:
    chance = random.Random(seed)
    return b"".join(b"%d: compiling module_%08x.c\n" % (n, chance.randrange(1 << 32)) for n in range(count))


# --- the file --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the zstd program is not installed")
def test_the_zstd_program_prints_the_log(tmp_path: Path) -> None:
    data = lines(50_000)

    async def test(store: LogDirectory) -> None:
        await write(store, data)
        await store.finish(KEY)

    use(tmp_path, test)
    assert subprocess.run(["zstd", "-dc", str(file_of(tmp_path))], capture_output=True, check=True).stdout == data


def test_files_are_private(tmp_path: Path) -> None:
    use(tmp_path / "logs", lambda store: write(store, b"abc"))
    assert file_of(tmp_path / "logs").stat().st_mode & 0o777 == 0o600
    assert file_of(tmp_path / "logs").parent.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("bad", ["", "..", "../x", "a/b", "a\0b", "x" * 200])
def test_an_id_that_is_no_name_is_refused(tmp_path: Path, bad: str) -> None:
    async def test(store: LogDirectory) -> None:
        with pytest.raises(Refused, match="is no id"):
            await store.append(LogKey(run_id=RunId(bad), job_id=JobId("job_a"), attempt=1, step=0), 0, b"x", 1)
        with pytest.raises(Refused, match="is no id"):
            await store.append(LogKey(run_id=RunId("run_a"), job_id=JobId(bad), attempt=1, step=0), 0, b"x", 1)
        with pytest.raises(Refused, match="is no id"):
            await store.delete_run(RunId(bad))

    use(tmp_path, test)
    assert list(tmp_path.iterdir()) == []


# --- restarts --------------------------------------------------------------------------------------------------


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    data = lines(30_000)
    half = len(data) // 2
    use(tmp_path, lambda store: write(store, data[:half]))

    async def test(store: LogDirectory) -> None:
        assert (await store.info(KEY)).size == half
        assert await whole(store) == data[:half]
        assert await store.append(KEY, half - 10, data[half - 10 :], 1) == len(data)
        assert (await store.finish(KEY)).digest == hashlib.sha256(data).hexdigest()

    use(tmp_path, test)

    async def again(store: LogDirectory) -> None:
        info = await store.info(KEY)
        assert (info.size, info.final, info.digest) == (len(data), True, hashlib.sha256(data).hexdigest())
        assert await whole(store) == data
        assert await store.finish(KEY) == info

    use(tmp_path, again)


def test_a_torn_tail_is_dropped_and_written_over(tmp_path: Path) -> None:
    use(tmp_path, lambda store: write(store, lines(1000), step=5000))
    path = file_of(tmp_path)
    intact = path.read_bytes()
    for cut in (1, 20, 60, 200, 1000):
        path.write_bytes(intact[:-cut])

        async def test(store: LogDirectory) -> None:
            size = (await store.info(KEY)).size
            assert 0 < size < len(lines(1000))
            assert await whole(store) == lines(1000)[:size]
            await store.append(KEY, size, b"and on", 1)
            await store.finish(KEY)
            assert await whole(store) == lines(1000)[:size] + b"and on"
            await store.verify(KEY)

        use(tmp_path, test)


def test_a_tail_of_zeroes_is_dropped(tmp_path: Path) -> None:
    """What a file system may show after a power cut: the size is there, the blocks are not."""
    data = os.urandom(1000)
    use(tmp_path, lambda store: write(store, data, step=100))
    path = file_of(tmp_path)
    path.write_bytes(path.read_bytes()[:-50] + b"\0" * 50 + b"\0" * 5000)

    async def test(store: LogDirectory) -> None:
        assert (await store.info(KEY)).size == 900
        assert await store.append(KEY, 900, b"b" * 100, 1) == 1000
        assert await whole(store) == data[:900] + b"b" * 100

    use(tmp_path, test)


def test_a_torn_end_mark_leaves_the_log_open(tmp_path: Path) -> None:
    async def finished(store: LogDirectory) -> None:
        await write(store, b"abc")
        await store.finish(KEY)

    use(tmp_path, finished)
    path = file_of(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])

    async def test(store: LogDirectory) -> None:
        assert not (await store.info(KEY)).final
        assert await store.append(KEY, 3, b"def", 1) == 6
        assert (await store.finish(KEY)).digest == hashlib.sha256(b"abcdef").hexdigest()

    use(tmp_path, test)


# --- damage ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [0.1, 0.3, 0.5])
def test_damage_of_what_was_acknowledged_is_said_not_cut_off(tmp_path: Path, where: float) -> None:
    data = lines(2000)
    use(tmp_path, lambda store: write(store, data, step=2000))
    path = file_of(tmp_path)
    broken = bytearray(path.read_bytes())
    at = int(len(broken) * where)
    broken[at : at + 80] = bytes(byte ^ 0xFF for byte in broken[at : at + 80])
    path.write_bytes(broken)

    async def test(store: LogDirectory) -> None:
        seen = b""
        with pytest.raises(LogDamaged):
            async for chunk in store.read(KEY):
                seen += chunk
        assert data.startswith(seen)
        with pytest.raises(LogDamaged):
            await store.verify(KEY)
        with pytest.raises(CorralError):
            await store.append(KEY, len(data), b"more", 1)

    use(tmp_path, test)
    assert path.read_bytes() == bytes(broken)


def test_verify_finds_a_changed_byte(tmp_path: Path) -> None:
    async def test(store: LogDirectory) -> None:
        await write(store, lines(3000))
        await store.finish(KEY)
        assert (await store.verify(KEY)).final
        path = file_of(tmp_path)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(LogDamaged):
            await store.verify(KEY)

    use(tmp_path, test)


def test_verify_compares_with_the_digest_at_the_end(tmp_path: Path) -> None:
    """Frames that are each whole, and not those that were stored."""

    async def make(store: LogDirectory) -> None:
        for step, data in ((1, b"aaa"), (2, b"bbb")):
            await store.append(key(step), 0, data, 1)
            await store.finish(key(step))

    use(tmp_path, make)
    one, two = (file_of(tmp_path, key(step)) for step in (1, 2))
    one.write_bytes(one.read_bytes()[:-FINAL_HEADER] + two.read_bytes()[-FINAL_HEADER:])

    async def test(store: LogDirectory) -> None:
        with pytest.raises(LogDamaged, match="digest"):
            await store.verify(key(1))

    use(tmp_path, test)


def test_a_vanished_file_is_damage_not_an_empty_log(tmp_path: Path) -> None:
    async def test(store: LogDirectory) -> None:
        await write(store, b"abc")
        file_of(tmp_path).unlink()
        with pytest.raises(CorralError):
            await store.verify(KEY)

    use(tmp_path, test)


# --- a disk that does not take it ------------------------------------------------------------------------------


def test_a_full_disk_stores_nothing_and_passes(tmp_path: Path) -> None:
    noise = os.urandom(3 * MIB)

    async def test(store: LogDirectory) -> None:
        await store.append(KEY, 0, b"start", 1)
        before = file_of(tmp_path).read_bytes()
        with file_size_limit(2 * MIB), pytest.raises(StoreUnavailable, match="cannot be used now"):
            await store.append(KEY, 5, noise, 1)
        assert file_of(tmp_path).read_bytes() == before
        assert (await store.info(KEY)).size == 5
        assert await store.append(KEY, 5, noise, 1) == 5 + len(noise)
        final = await store.finish(KEY)
        assert final.digest == hashlib.sha256(b"start" + noise).hexdigest()
        assert await whole(store) == b"start" + noise

    use(tmp_path, test)


@pytest.mark.parametrize("behind", ["append", "finish"])
def test_what_was_queued_behind_a_failed_part_fails_too(tmp_path: Path, behind: str) -> None:
    """The first part fills a batch of its own, so what follows it would fit by itself."""
    noise = os.urandom(17 * MIB)

    async def test(store: LogDirectory) -> None:
        await store.append(KEY, 0, b"start", 1)
        with file_size_limit(2 * MIB):
            answers = await asyncio.gather(
                store.append(KEY, 5, noise, 1),
                store.append(KEY, 5 + len(noise), b"end", 1) if behind == "append" else store.finish(KEY),
                return_exceptions=True,
            )
        assert [type(answer) for answer in answers] == [StoreUnavailable] * 2
        info = await store.info(KEY)
        assert (info.size, info.final) == (5, False)
        assert await whole(store) == b"start"
        assert await store.append(KEY, 5, noise, 1) == 5 + len(noise)
        assert (await store.finish(KEY)).digest == hashlib.sha256(b"start" + noise).hexdigest()

    use(tmp_path, test)


def test_another_log_is_stored_while_one_does_not_fit(tmp_path: Path) -> None:
    async def test(store: LogDirectory) -> None:
        with file_size_limit(MIB):
            big, small = await asyncio.gather(
                store.append(key(1), 0, os.urandom(2 * MIB), 1),
                store.append(key(2), 0, b"fits", 1),
                return_exceptions=True,
            )
        assert isinstance(big, StoreUnavailable)
        assert small == 4
        assert await whole(store, key(1)) == b""
        assert await whole(store, key(2)) == b"fits"

    use(tmp_path, test)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_really_full_file_system(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("this host does not let us mount a tmpfs")
    try:

        async def test(store: LogDirectory) -> None:
            await store.append(KEY, 0, b"start", 1)
            with pytest.raises(StoreUnavailable, match="No space left"):
                await store.append(KEY, 5, os.urandom(2 * MIB), 1)
            with pytest.raises(StoreUnavailable):
                await store.append(key(9), 0, os.urandom(2 * MIB), 1)
            assert await store.append(KEY, 5, b" and on", 1) == 12
            assert await whole(store) == b"start and on"

        use(small / "logs", test)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    async def test(store: LogDirectory) -> None:
        with pytest.raises(StoreUnavailable):
            await store.append(KEY, 0, b"abc", 1)
        (tmp_path / "file").unlink()
        assert await store.append(KEY, 0, b"abc", 1) == 3

    use(tmp_path / "file" / "logs", test)


# --- bounds ----------------------------------------------------------------------------------------------------


def test_frames_hold_at_most_a_mebibyte(tmp_path: Path) -> None:
    data = b"y" * (5 * RAW_LIMIT + 17)

    async def test(store: LogDirectory) -> None:
        await store.append(KEY, 0, data, 1)
        chunks = [len(chunk) async for chunk in store.read(KEY)]
        assert chunks == [RAW_LIMIT] * 5 + [17]
        assert await whole(store, start=RAW_LIMIT - 1, end=2 * RAW_LIMIT + 1) == b"y" * (RAW_LIMIT + 2)

    use(tmp_path, test)


def test_the_queue_is_bounded_and_served_in_order(tmp_path: Path) -> None:
    async def test(store: LogDirectory) -> None:
        calls = [asyncio.create_task(store.append(KEY, at * 1000, b"z" * 1000, 1)) for at in range(50)]
        other = asyncio.create_task(store.append(key(9), 0, b"w" * 2000, 1))
        most = 0
        while not all(call.done() for call in (*calls, other)):
            most = max(most, store.queued_bytes)
            await asyncio.sleep(0)
        assert most <= 3000
        assert await asyncio.gather(*calls) and await other == 2000
        assert await whole(store) == b"z" * 50_000
        assert store.queued_bytes == 0

    use(tmp_path, test, queue_bytes=3000)


def test_many_logs_take_few_descriptors_and_the_oldest_are_forgotten(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    async def test(store: LogDirectory) -> None:
        for start in range(0, 1200, 400):
            await asyncio.gather(*(store.append(key(n), 0, b"one", 1) for n in range(start, start + 400)))
        assert len(os.listdir("/proc/self/fd")) - before < 300  # noqa: PTH208
        assert store.kept_logs <= 500
        await asyncio.gather(*(store.append(key(n), 3, b"two", 1) for n in range(0, 1200, 100)))
        for n in range(0, 1200, 100):
            info = await store.finish(key(n))
            assert info.digest == hashlib.sha256(b"onetwo").hexdigest()

    use(tmp_path, test, kept_logs=500)
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208


def test_a_deletion_while_appends_are_in_flight(tmp_path: Path) -> None:
    async def test(store: LogDirectory) -> None:
        await store.append(KEY, 0, b"abc", 1)
        calls = [asyncio.create_task(store.append(KEY, 3 + n, b"x", 1)) for n in range(20)]
        deleting = asyncio.create_task(store.delete_run(KEY.run_id))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(answer, int | Refused | StoreUnavailable) for answer in answers), answers
        await deleting
        assert not (tmp_path / KEY.run_id).exists()
        assert await store.append(KEY, 0, b"new", 1) == 3

    use(tmp_path, test)


def test_times_and_offsets_are_in_the_headers(tmp_path: Path) -> None:
    from corral.store.logformat import Chunk, unpack

    async def test(store: LogDirectory) -> None:
        await store.append(KEY, 0, b"abc", 111)
        await store.append(KEY, 3, b"defg", 222)

    use(tmp_path, test)
    data = file_of(tmp_path).read_bytes()
    first = unpack(data)
    assert isinstance(first, Chunk)
    assert (first.raw_offset, first.raw_length, first.time, first.synced) == (0, 3, 111, 0)
    second = unpack(data[56 + first.body_length :])
    assert isinstance(second, Chunk)
    assert (second.raw_offset, second.raw_length, second.time) == (3, 4, 222)
    assert second.synced == 56 + first.body_length


def test_a_reader_does_not_see_what_is_not_durable(tmp_path: Path) -> None:
    async def test(store: LogDirectory) -> None:
        call = asyncio.create_task(store.append(KEY, 0, b"abc", 1))
        seen: list[int] = []

        async def look() -> bool:
            seen.append((await store.info(KEY)).size)
            return call.done()

        await eventually_async(look)
        assert set(seen) <= {0, 3}
        assert await whole(store) == b"abc"

    use(tmp_path, test)
