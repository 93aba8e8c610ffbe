# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from corral.backends.tail import Tail, Watcher, tail_file
from tests.backends.tail.rig import append, has_read, start_reading, take, until

NEVER = 3600.0


def test_inotify_alone_wakes_a_tail_again_and_again(tmp_path: Path) -> None:
    """No tick comes in an hour: whatever wakes it here is an event."""

    async def run() -> None:
        log = tmp_path / "log"
        log.touch()
        tail = tail_file(log, asyncio.Event(), watcher=Watcher(interval=NEVER))
        for number in range(50):
            line = b"%d" % number
            waiting = start_reading(tail)
            await until(lambda: tail._reader.resting)
            append(log, line + b"\n")
            assert await asyncio.wait_for(waiting, 5) == line
        await tail.aclose()

    asyncio.run(run())


def test_two_tails_of_one_file_both_get_every_line(tmp_path: Path) -> None:
    async def run() -> None:
        log, watcher = tmp_path / "log", Watcher(interval=NEVER)
        log.touch()
        tails = [tail_file(log, asyncio.Event(), watcher=watcher) for _ in range(2)]
        for number in range(20):
            waiting = [start_reading(tail) for tail in tails]
            await until(lambda: watcher.armed == 2)
            append(log, b"%d\n" % number)
            assert await asyncio.wait_for(asyncio.gather(*waiting), 5) == [b"%d" % number] * 2
        await tails[0].aclose()
        waiting = [start_reading(tails[1])]
        append(log, b"last\n")
        assert await asyncio.wait_for(waiting[0], 5) == b"last"
        await tails[1].aclose()
        assert watcher.seats == 0

    asyncio.run(run())


def test_a_missed_event_costs_one_sweep_and_the_file_is_polled_from_then_on(tmp_path: Path) -> None:
    async def run() -> None:
        log, watcher = tmp_path / "log", Watcher(interval=0.005)
        log.touch()
        tail = tail_file(log, asyncio.Event(), watcher=watcher)
        waiting = start_reading(tail)
        await until(lambda: watcher.armed == 1)
        # What a file system without events looks like: the watch is there and never fires.
        seat = next(iter(watcher._seats))
        assert watcher._inotify is not None and seat.watch is not None
        watcher._by_watch.pop(seat.watch.wd)
        append(log, b"a\n")
        assert await asyncio.wait_for(waiting, 5) == b"a"
        assert watcher.armed == 0
        for _ in range(3):
            append(log, b"b\n")
            assert await take(tail, 1) == [b"b"]
        await tail.aclose()

    asyncio.run(run())


def test_a_storm_of_changes_is_one_event_per_look(tmp_path: Path) -> None:
    """Two files written in turn defeat the kernel's merging of events; one-shot watches do not need it."""

    async def run() -> None:
        watcher = Watcher(interval=NEVER)
        logs = [tmp_path / "a", tmp_path / "b"]
        tails = [tail_file(log, asyncio.Event(), watcher=watcher) for log in logs]
        waiting = [start_reading(tail) for tail in tails]
        await until(lambda: watcher.armed == 2)
        files = [log.open("ab", buffering=0) for log in logs]
        for _ in range(2000):
            for file in files:
                file.write(b"x")
        inotify = watcher._inotify
        assert inotify is not None
        events = 0
        while inotify.sync_get() is not None:
            events += 1
        assert events == 4  # per file: the change, and that the watch is used up
        for file in files:
            file.close()
        for task, tail in zip(waiting, tails, strict=True):
            task.cancel()
            await tail.aclose()

    asyncio.run(run())


def test_all_tails_of_a_loop_share_one_watcher() -> None:
    async def run() -> Watcher:
        assert Watcher.of_running_loop() is Watcher.of_running_loop()
        return Watcher.of_running_loop()

    assert asyncio.run(run()) is not asyncio.run(run())


def test_it_works_on_uvloop(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed here")
    log = tmp_path / "log"

    async def run() -> list[bytes]:
        tail: Tail = tail_file(log, asyncio.Event())
        waiting = start_reading(tail)
        await until(lambda: tail._reader.resting)
        append(log, b"a\nb\n")
        lines = [await waiting, *await take(tail, 1)]
        await tail.aclose()
        return lines

    assert uvloop.run(run()) == [b"a", b"b"]


# Runs where the kernel grants no inotify at all, or too few watches.
LIMITED = """
import asyncio, os, sys
from corral.backends.tail import Watcher, tail_file

async def main(folder, files):
    watcher, tails = Watcher(), []
    for number in range(files):
        path = os.path.join(folder, str(number))
        open(path, "wb").close()
        tails.append(tail_file(path, asyncio.Event(), watcher=watcher))
    waiting = [asyncio.ensure_future(anext(tail)) for tail in tails]
    while watcher.seats < files or not all(tail._reader.resting for tail in tails):
        await asyncio.sleep(0)
    armed = watcher.armed
    for round in range(2):
        for number in range(files):
            with open(os.path.join(folder, str(number)), "ab") as file:
                file.write(b"line\\n")
        assert await asyncio.wait_for(asyncio.gather(*waiting), 20) == [b"line"] * files
        waiting = [asyncio.ensure_future(anext(tail)) for tail in tails]
    for task, tail in zip(waiting, tails):
        task.cancel()
        await tail.aclose()
    print(armed)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def limited(setting: str, value: int, folder: Path, files: int) -> int:
    """How many of ``files`` tails inotify looks after under the kernel's limit; all were served."""
    shell = f'echo {value} > /proc/sys/user/{setting} || exit 77; exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", shell, "sh"]
    command += [sys.executable, "-c", LIMITED, str(folder), str(files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no user namespace of one's own here: {done.stderr.strip()[:200]}")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_without_an_inotify_instance_polling_takes_over(tmp_path: Path) -> None:
    assert limited("max_inotify_instances", 0, tmp_path, 5) == 0


def test_beyond_the_limit_of_watches_polling_takes_over(tmp_path: Path) -> None:
    assert limited("max_inotify_watches", 3, tmp_path, 8) == 3


def test_an_inotify_instance_that_becomes_free_is_taken_up(tmp_path: Path) -> None:
    async def run() -> None:
        log, watcher = tmp_path / "log", Watcher(interval=0.005)
        log.touch()
        tail = tail_file(log, asyncio.Event(), watcher=watcher)
        waiting = start_reading(tail)
        await until(lambda: watcher.armed == 1)
        # As if none had been granted at the start.
        assert watcher._inotify is not None
        asyncio.get_running_loop().remove_reader(watcher._inotify.fd)
        watcher._inotify.close()
        watcher._inotify = None
        next(iter(watcher._seats)).watch = None
        append(log, b"a\n")
        assert await asyncio.wait_for(waiting, 5) == b"a"
        await until(lambda: watcher._inotify is not None)
        append(log, b"b\n")
        assert await take(tail, 1) == [b"b"]
        waiting = start_reading(tail)
        await until(lambda: watcher.armed == 1)
        waiting.cancel()
        await has_read(tail, 4)
        await tail.aclose()

    asyncio.run(run())


def test_a_write_before_the_arming_is_seen_without_an_event(tmp_path: Path) -> None:
    """The watch is set after the last read; what was written between the two causes no event."""

    class Late(Watcher):
        """Something is written in the very moment before the watch is set."""

        def add_watch(self, seat, fd):  # type: ignore[no-untyped-def]
            if late:
                append(log, late.pop())
            return super().add_watch(seat, fd)

    log, late = tmp_path / "log", [b"late\n"]

    async def run() -> None:
        log.touch()
        tail = tail_file(log, asyncio.Event(), watcher=Late(interval=NEVER))
        assert await asyncio.wait_for(anext(tail), 5) == b"late"
        await tail.aclose()

    asyncio.run(run())
