# SPDX-License-Identifier: Apache-2.0
"""What can happen to a file and to what stands in its place, over inotify and over polling."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from corral.backends.tail import (
    Bounds,
    Cut,
    Dropped,
    Notice,
    Position,
    Rewritten,
    Start,
    Tail,
    TailRefused,
    TailUnavailable,
    tail_file,
)
from tests.backends.tail.rig import (
    SMALL,
    Watch,
    append,
    both_ways,
    has_read,
    open_descriptors,
    rest,
    start_reading,
    take,
    until,
    whole,
)

Body = Callable[[Tail, asyncio.Event], Coroutine[None, None, None]]


def follow(path: Path, watch: Watch, body: Body, **options: object) -> None:
    async def run() -> None:
        stop = asyncio.Event()
        async with tail_file(path, stop, watcher=watch(), **options) as tail:  # type: ignore[arg-type]
            await body(tail, stop)

    asyncio.run(run())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "console.log"


# -- reading ------------------------------------------------------------------------------------------


@both_ways
def test_lines_come_as_they_are_completed(log: Path, watch: Watch) -> None:
    async def body(tail: Tail, stop: asyncio.Event) -> None:
        first = start_reading(tail)
        append(log, b"one\ntw")
        assert await first == b"one"
        append(log, b"o\n\n\nthree\r\n")
        assert await take(tail, 2) == [b"two", b"three\r"]

    log.touch()
    follow(log, watch, body)


def test_a_missing_file_is_made_for_its_owner_only_and_never_emptied(log: Path) -> None:
    assert whole(log) == []
    assert log.stat().st_mode & 0o777 == 0o600
    append(log, b"kept\n")
    assert whole(log) == [b"kept"]


@both_ways
def test_a_file_that_appears_late_is_read_from_its_beginning(log: Path, watch: Watch) -> None:
    async def body(tail: Tail, stop: asyncio.Event) -> None:
        first = start_reading(tail)
        await until(lambda: tail._reader.resting)
        assert not log.exists()
        append(log, b"early\nmore\n")
        assert await first == b"early"
        assert await take(tail, 1) == [b"more"]

    follow(log, watch, body, create=False, start=Start.END)


@both_ways
def test_a_folder_that_appears_late_gets_its_file(tmp_path: Path, watch: Watch) -> None:
    log = tmp_path / "chroot" / "console.log"

    async def body(tail: Tail, stop: asyncio.Event) -> None:
        first = start_reading(tail)
        await until(lambda: tail._reader.resting)
        log.parent.mkdir()
        await until(log.exists)
        append(log, b"hello\n")
        assert await first == b"hello"

    follow(log, watch, body)


def test_bytes_that_are_no_text_are_kept_as_they_are(log: Path) -> None:
    append(log, b"\xff\xfe\x00x\n\xe2\x82\n")
    assert whole(log) == [b"\xff\xfe\x00x", b"\xe2\x82"]


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_character_split_across_reads_survives(log: Path, cut: int) -> None:
    append(log, "ab€cd€ef\n".encode())
    lines = whole(log, bounds=Bounds(read_bytes=cut))
    assert lines == ["ab€cd€ef".encode()]


def test_a_character_across_the_mebibyte_boundary_survives(log: Path) -> None:
    line = b"x" * 60_000 + "€".encode() * 1000 + b"\n"
    append(log, line * 40)
    assert whole(log) == [line[:-1]] * 40


# -- stopping -----------------------------------------------------------------------------------------


@both_ways
def test_at_stop_the_unterminated_last_line_is_told_and_it_ends(log: Path, watch: Watch) -> None:
    async def body(tail: Tail, stop: asyncio.Event) -> None:
        append(log, b"one\n")
        assert await take(tail, 1) == [b"one"]
        await until(lambda: tail._reader.resting)
        # Written and stopped without a turn of the loop between: there is no read in which to lose it.
        append(log, b"two\nlast")
        stop.set()
        assert await rest(tail) == [b"two", b"last"]
        assert await rest(tail) == []

    follow(log, watch, body)


def test_a_stop_before_the_start_still_reads_what_is_there(log: Path) -> None:
    append(log, b"a\nb\nc")
    assert whole(log) == [b"a", b"b", b"c"]


def test_nothing_is_lost_to_a_prompt_reader_however_much_there_is(log: Path) -> None:
    expected = [b"%07d" % number for number in range(200_000)]
    append(log, b"\n".join(expected) + b"\n")
    assert whole(log) == expected


def test_lines_of_one_byte_come_complete_too(log: Path) -> None:
    append(log, b"x\n" * 600_000)
    assert whole(log) == [b"x"] * 600_000


@both_ways
def test_a_stop_in_a_burst_ends_although_the_writer_never_rests(log: Path, watch: Watch) -> None:
    async def body(tail: Tail, stop: asyncio.Event) -> None:
        count = 0
        async with asyncio.timeout(10):
            async for _ in tail:
                count += 1
                # Whenever a line is read, two more are written: the end is never reached by reading.
                append(log, b"more\nmore\n")
                if count == 100:
                    stop.set()
        assert 100 <= count < 100_000

    append(log, b"first\n")
    follow(log, watch, body)


def test_a_slow_reader_that_never_stalls_loses_nothing(log: Path) -> None:
    """Each line costs turns of the loop; the queue is full all the time, and always makes room in time."""
    expected = [b"%04d" % number for number in range(3000)]
    append(log, b"\n".join(expected) + b"\n")

    async def run() -> list[bytes]:
        stop, found = asyncio.Event(), []
        stop.set()
        async for line in tail_file(log, stop, bounds=Bounds(queued_lines=10, patience=5)):
            found.append(line)
            await asyncio.sleep(0)
        return found

    assert asyncio.run(run()) == expected


def test_without_limit_of_patience_a_reader_that_stalls_loses_nothing(log: Path) -> None:
    expected = [b"%04d" % number for number in range(3000)]
    append(log, b"\n".join(expected) + b"\n")

    async def run() -> list[bytes]:
        stop = asyncio.Event()
        stop.set()
        tail = tail_file(log, stop, bounds=Bounds(queued_lines=10, patience=None))
        head = await take(tail, 1)
        for _ in range(1000):
            await asyncio.sleep(0)
        return head + await rest(tail)

    assert asyncio.run(run()) == expected


def test_a_reader_that_stalls_loses_the_oldest_and_is_told_how_many(log: Path) -> None:
    append(log, b"".join(b"%05d\n" % number for number in range(30_000)))

    async def run() -> tuple[list[bytes], list[bytes]]:
        stop = asyncio.Event()
        tail = tail_file(log, stop)
        head = await take(tail, 5)
        # The reader waits for its patience first, then reads on without us.
        await until(lambda: tail.tally.dropped_lines >= 30_000 - 5 - 9_999)
        stop.set()
        return head, await rest(tail)

    head, lines = asyncio.run(run())
    assert head == [b"%05d" % number for number in range(5)]
    marker = lines[0]
    assert isinstance(marker, Notice) and isinstance(marker.record, Dropped)
    assert marker.record.lines == 30_000 - 5 - 9_999
    assert marker == b"[dropped %d lines]" % marker.record.lines
    assert lines[1:] == [b"%05d" % number for number in range(30_000 - 9_999, 30_000)]


def test_the_queue_is_bounded_in_bytes_too(log: Path) -> None:
    line = b"x" * 65_536
    append(log, (line + b"\n") * 400)

    async def run() -> list[bytes]:
        stop = asyncio.Event()
        tail = tail_file(log, stop, bounds=Bounds(patience=0))
        await take(tail, 1)
        await has_read(tail, 400 * 65_537)
        stop.set()
        return await rest(tail)

    lines = asyncio.run(run())
    assert isinstance(lines[0], Notice)
    assert lines[1:] == [line] * 128


def test_giving_up_on_one_line_does_not_end_the_tail(log: Path) -> None:
    async def run() -> list[bytes]:
        tail = tail_file(log, asyncio.Event())
        for _ in range(3):
            waiting = start_reading(tail)
            await until(lambda: tail._reader.resting)
            waiting.cancel()
            await asyncio.wait([waiting])
        append(log, b"still here\n")
        lines = await take(tail, 1)
        await tail.aclose()
        return lines

    assert asyncio.run(run()) == [b"still here"]


@both_ways
def test_letting_go_frees_descriptor_watch_and_task(log: Path, watch: Watch) -> None:
    async def run() -> None:
        watcher = watch()
        append(log, b"a\nb\n")
        async for line in tail_file(log, asyncio.Event(), watcher=watcher):
            assert line == b"a"
            assert str(log) in open_descriptors()
            break
        await until(lambda: watcher.seats == 0)
        assert str(log) not in open_descriptors()
        assert not any("inotify" in target for target in open_descriptors())
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    asyncio.run(run())


def test_a_consumer_that_raises_frees_everything(log: Path) -> None:
    async def run() -> None:
        append(log, b"a\n")
        with pytest.raises(KeyError):
            async with tail_file(log, asyncio.Event()) as tail:
                async for _ in tail:
                    raise KeyError
        assert str(log) not in open_descriptors()

    asyncio.run(run())


# -- truncation, replacement, unlinking ---------------------------------------------------------------


@both_ways
def test_truncation_starts_again_at_the_beginning_and_says_so(log: Path, watch: Watch) -> None:
    async def body(tail: Tail, stop: asyncio.Event) -> None:
        append(log, b"old line\nunfinished")
        assert await take(tail, 1) == [b"old line"]
        await has_read(tail, 19)
        os.truncate(log, 0)
        unfinished, notice = await take(tail, 2)
        assert unfinished == b"unfinished"
        assert notice == b"[file truncated]"
        assert isinstance(notice, Notice) and notice.record == Rewritten(offset=19, size=0)
        append(log, b"new\n")
        assert await take(tail, 1) == [b"new"]
        assert tail.tally.rewrites == 1

    follow(log, watch, body)


@both_ways
def test_a_truncation_right_before_the_stop_is_not_missed(log: Path, watch: Watch) -> None:
    async def body(tail: Tail, stop: asyncio.Event) -> None:
        append(log, b"a longer old line\n")
        assert await take(tail, 1) == [b"a longer old line"]
        log.write_bytes(b"new")
        stop.set()
        assert await rest(tail) == [b"[file truncated]", b"new"]

    follow(log, watch, body)


def test_a_writer_that_truncates_for_ever_does_not_hold_up_the_stop(log: Path) -> None:
    async def run() -> None:
        stop = asyncio.Event()
        tail = tail_file(log, stop)
        append(log, b"a longer old line\n")
        await take(tail, 1)
        stop.set()
        log.write_bytes(b"b\n")
        async with asyncio.timeout(5):
            async for _ in tail:
                log.write_bytes(b"")
                append(log, b"c" * (1 + tail.tally.rewrites) + b"\n")

    asyncio.run(run())


@both_ways
def test_a_file_rewritten_beyond_what_was_read_is_noticed_by_its_content(log: Path, watch: Watch) -> None:
    async def body(tail: Tail, stop: asyncio.Event) -> None:
        append(log, b"old\n")
        assert await take(tail, 1) == [b"old"]
        # Between two looks: by its size alone the file has only grown.
        with log.open("wb", buffering=0) as file:
            file.write(b"quite new and longer\n")
        assert await take(tail, 2) == [b"[file truncated]", b"quite new and longer"]

    follow(log, watch, body)


@both_ways
def test_a_file_rewritten_to_the_same_size_is_noticed_when_it_grows(log: Path, watch: Watch) -> None:
    async def body(tail: Tail, stop: asyncio.Event) -> None:
        append(log, b"one\n")
        assert await take(tail, 1) == [b"one"]
        with log.open("wb", buffering=0) as file:
            file.write(b"two\n")
        append(log, b"three\n")
        assert await take(tail, 3) == [b"[file truncated]", b"two", b"three"]

    follow(log, watch, body)


@both_ways
def test_a_replaced_file_is_finished_before_the_new_one_is_read(log: Path, watch: Watch) -> None:
    async def body(tail: Tail, stop: asyncio.Event) -> None:
        writer = log.open("ab", buffering=0)
        writer.write(b"a\n")
        assert await take(tail, 1) == [b"a"]
        log.rename(log.with_suffix(".1"))
        log.touch()
        await until(lambda: tail._reader.astray)
        # A writer that was not told yet goes on writing to the old file: nothing of it is lost.
        writer.write(b"b\nunfinished")
        assert await take(tail, 1) == [b"b"]
        writer.close()
        append(log, b"c\n")
        assert await take(tail, 2) == [b"unfinished", b"c"]
        assert tail.tally.replacements == 1
        position = tail.position
        assert position is not None and position.inode == log.stat().st_ino and position.offset == 2

    follow(log, watch, body)


@both_ways
def test_a_file_moved_over_the_old_one_is_followed(log: Path, watch: Watch) -> None:
    async def body(tail: Tail, stop: asyncio.Event) -> None:
        append(log, b"a\n")
        assert await take(tail, 1) == [b"a"]
        other = log.with_suffix(".new")
        append(other, b"b\n")
        other.rename(log)
        assert await take(tail, 1) == [b"b"]
        append(log, b"c\n")
        assert await take(tail, 1) == [b"c"]

    follow(log, watch, body)


@both_ways
def test_an_unlinked_file_is_read_on_and_its_successor_after_it(log: Path, watch: Watch) -> None:
    async def body(tail: Tail, stop: asyncio.Event) -> None:
        writer = log.open("ab", buffering=0)
        writer.write(b"a\n")
        assert await take(tail, 1) == [b"a"]
        log.unlink()
        writer.write(b"b\n")
        assert await take(tail, 1) == [b"b"]
        assert not log.exists()
        append(log, b"c\n")
        assert await take(tail, 1) == [b"c"]
        writer.close()

    follow(log, watch, body)


@both_ways
def test_a_stop_right_after_a_rotation_reads_both_files(log: Path, watch: Watch) -> None:
    async def body(tail: Tail, stop: asyncio.Event) -> None:
        append(log, b"a\n")
        assert await take(tail, 1) == [b"a"]
        append(log, b"b\nc")
        log.rename(log.with_suffix(".1"))
        append(log, b"d\ne")
        stop.set()
        assert await rest(tail) == [b"b", b"c", b"d", b"e"]

    follow(log, watch, body)


def test_a_file_written_while_it_is_opened_is_complete(log: Path) -> None:
    expected = [b"%06d" % number for number in range(20_000)]

    async def run() -> list[bytes]:
        stop = asyncio.Event()
        writing = asyncio.to_thread(_write_line_by_line, log, expected)
        tail = tail_file(log, stop)
        lines, _ = await asyncio.gather(take(tail, len(expected)), writing)
        await tail.aclose()
        return lines

    assert asyncio.run(run()) == expected


def _write_line_by_line(path: Path, lines: list[bytes]) -> None:
    with path.open("ab", buffering=0) as file:
        for line in lines:
            file.write(line + b"\n")


# -- what is no regular file --------------------------------------------------------------------------


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_link(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.write_bytes(b"secret\n")
    path.symlink_to(target)


def make_dangling_link(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def make_folder(path: Path) -> None:
    path.mkdir()


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def make_device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("making a device needs root with CAP_MKNOD")


intruders = pytest.mark.parametrize(
    "intrude",
    [make_fifo, make_link, make_dangling_link, make_folder, make_socket, make_device],
    ids=lambda make: make.__name__,
)


@intruders
@pytest.mark.parametrize("create", [True, False])
def test_what_is_no_regular_file_is_refused(log: Path, intrude: Callable[[Path], None], create: bool) -> None:
    intrude(log)
    with pytest.raises(TailRefused, match=r"console\.log is a .*regular file"):
        whole(log, create=create)
    assert not log.with_name("nowhere").exists()


@both_ways
@intruders
def test_what_takes_the_files_place_is_refused_after_the_last_line(
    log: Path, watch: Watch, intrude: Callable[[Path], None]
) -> None:
    async def body(tail: Tail, stop: asyncio.Event) -> None:
        append(log, b"a\nunfinished")
        assert await take(tail, 1) == [b"a"]
        log.unlink()
        intrude(log)
        assert await take(tail, 1) == [b"unfinished"]
        with pytest.raises(TailRefused):
            await take(tail, 1)
        with pytest.raises(StopAsyncIteration):
            await anext(tail)

    follow(log, watch, body)


def test_a_fifo_that_comes_while_nothing_stands_there_is_refused(log: Path) -> None:
    async def run() -> None:
        append(log, b"a\n")
        tail = tail_file(log, asyncio.Event())
        await take(tail, 1)
        log.unlink()
        await until(lambda: tail._reader.astray)
        os.mkfifo(log)
        with pytest.raises(TailRefused, match="FIFO"):
            await take(tail, 1)

    asyncio.run(run())


def test_beneath_a_folder_no_component_may_be_a_link(tmp_path: Path) -> None:
    jail, outside = tmp_path / "jail", tmp_path / "outside"
    outside.mkdir()
    (outside / "log").write_bytes(b"secret\n")
    (jail / "var").mkdir(parents=True)
    append(jail / "var" / "log", b"mine\n")
    assert whole(jail / "var" / "log", beneath=jail) == [b"mine"]
    (jail / "var" / "log").unlink()
    (jail / "var").rmdir()
    (jail / "var").symlink_to(outside)
    with pytest.raises(TailRefused, match="symbolic link"):
        whole(jail / "var" / "log", beneath=jail)
    with pytest.raises(ValueError, match="beneath"):
        whole(outside / "log", beneath=jail)


def test_a_file_that_may_not_be_read_is_refused(log: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    log.touch()
    log.chmod(0)
    with pytest.raises(TailRefused, match="may not be opened"):
        whole(log)


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TailRefused, match="longer than the system allows"):
        whole(tmp_path / ("x" * 300))


def test_a_system_that_cannot_open_it_now_is_told_at_the_stop_not_hidden(log: Path) -> None:
    append(log, b"a\n")

    async def run() -> None:
        stop = asyncio.Event()
        stop.set()
        tail = tail_file(log, stop)
        held = []
        with pytest.raises(TailUnavailable, match="lines may be missing"):
            try:
                while True:
                    held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                await anext(tail)
            finally:
                for fd in held:
                    os.close(fd)
        assert tail.tally.faults == 1

    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        asyncio.run(run())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- where it begins, and where it was ----------------------------------------------------------------


@both_ways
def test_at_the_end_only_what_comes_is_read(log: Path, watch: Watch) -> None:
    async def body(tail: Tail, stop: asyncio.Event) -> None:
        first = start_reading(tail)
        await until(lambda: tail._reader.resting)
        append(log, b"new\n")
        assert await first == b"new"

    append(log, b"old\n")
    follow(log, watch, body, start=Start.END)


def test_an_offset_is_where_it_begins(log: Path) -> None:
    append(log, b"one\ntwo\nthree\n")
    assert whole(log, start=4) == [b"two", b"three"]
    assert whole(log, start=14) == []
    with pytest.raises(ValueError, match="not negative"):
        whole(log, start=-1)


def test_an_offset_behind_the_end_means_that_the_file_was_truncated(log: Path) -> None:
    append(log, b"one\n")
    notice, line = whole(log, start=400)
    assert isinstance(notice, Notice) and notice.record == Rewritten(offset=400, size=4)
    assert line == b"one"


def test_a_restart_goes_on_exactly_where_it_was(log: Path) -> None:
    append(log, b"a\n\n\nbb\n" + b"x" * 20 + b"\nccc\nunfinished")
    expected = [b"a", b"bb", b"xxxxxxxx [truncated]", b"ccc", b"unfinis"[:7] + b"hed"[:1] + b" [truncated]"]
    bounds = Bounds(line_bytes=8)

    async def one(start: Position | Start) -> tuple[bytes | None, Position | None]:
        stop = asyncio.Event()
        stop.set()
        async with tail_file(log, stop, start=start, bounds=bounds) as tail:
            return await anext(tail, None), tail.position

    async def run() -> list[bytes]:
        found: list[bytes] = []
        at: Position | Start = Start.BEGINNING
        while True:
            line, position = await one(at)
            if line is None:
                return found
            assert position is not None
            found, at = [*found, line], position

    assert asyncio.run(run()) == expected


def test_a_position_in_another_file_begins_at_the_new_files_start(log: Path) -> None:
    append(log, b"one\ntwo\n")
    other = Position(device=log.stat().st_dev, inode=log.stat().st_ino + 1, offset=4)
    assert whole(log, start=other) == [b"one", b"two"]


# -- what a guest writes cannot pass for what the tail says -------------------------------------------


def test_forged_markers_are_plain_bytes(log: Path) -> None:
    forged = [b"[dropped 7 lines]", b"[file truncated]", b"x [truncated]"]
    append(log, b"\n".join(forged) + b"\n" + b"y" * 100_000 + b"\n")
    lines = whole(log)
    assert [type(line) for line in lines[:3]] == [bytes] * 3 and lines[:3] == forged
    cut = lines[3]
    assert isinstance(cut, Notice) and cut.record == Cut(kept=65_536, offset=sum(map(len, forged)) + 3)
    assert cut == b"y" * 65_536 + b" [truncated]"


def test_bounds_that_cannot_hold_are_refused() -> None:
    for wrong in (
        {"line_bytes": 0},
        {"queued_lines": 1},
        {"queued_bytes": 100_000},
        {"patience": -1},
    ):
        with pytest.raises(ValueError):
            Bounds(**wrong)  # type: ignore[arg-type]
    assert SMALL.patience == 0
