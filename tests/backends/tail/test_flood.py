# SPDX-License-Identifier: Apache-2.0
"""Writers in processes of their own, as fast and as mean as they can; memory is measured meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from corral.backends.tail import Notice, Rewritten, tail_file
from tests.backends.tail.rig import Watch, both_ways
from tests.backends.tail.writer import LINES, is_good, number_of

HERE = Path(__file__).parent
MIB = 1024 * 1024
# What the design allows a tail under a flood.
MEMORY = 32 * MIB


async def fuzz(path: Path, mode: str, seed: int, watch: Watch) -> list[bytes]:
    stop, lines = asyncio.Event(), list[bytes]()
    command = [sys.executable, str(HERE / "writer.py"), mode, str(path), str(seed)]
    writer = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)

    async def stop_after_the_writer() -> None:
        assert await writer.wait() == 0
        stop.set()

    ending = asyncio.ensure_future(stop_after_the_writer())
    async with asyncio.timeout(60):
        async for line in tail_file(path, stop, watcher=watch()):
            lines.append(line)
    await ending
    return lines


@both_ways
@pytest.mark.parametrize("seed", [1, 2])
def test_lines_cut_at_any_byte_arrive_whole_and_in_order(tmp_path: Path, seed: int, watch: Watch) -> None:
    lines = asyncio.run(fuzz(tmp_path / "log", "split", seed, watch))
    assert all(map(is_good, lines))
    assert [number_of(line) for line in lines] == list(range(LINES))


@both_ways
@pytest.mark.parametrize("seed", [3, 4])
def test_rotation_at_random_never_mixes_repeats_or_reorders(tmp_path: Path, seed: int, watch: Watch) -> None:
    """A file that is rotated away before anybody looked is lost; everything that is read is right."""
    lines = asyncio.run(fuzz(tmp_path / "log", "rotate", seed, watch))
    assert all(map(is_good, lines))
    numbers = [number_of(line) for line in lines]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == LINES - 1


@both_ways
@pytest.mark.parametrize("seed", [5, 6])
def test_truncation_at_random_is_told_and_never_repeats_a_line(tmp_path: Path, seed: int, watch: Watch) -> None:
    lines = asyncio.run(fuzz(tmp_path / "log", "truncate", seed, watch))
    told = sum(isinstance(line, Notice) and isinstance(line.record, Rewritten) for line in lines)
    plain = [line for line in lines if not isinstance(line, Notice)]
    broken = [line for line in plain if not is_good(line)]
    # Only a line that was half read when the file was emptied is broken, and the marker stands behind it.
    assert len(broken) <= told
    numbers = [number_of(line) for line in plain if is_good(line)]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == LINES - 1


def read_in_a_process(
    path: Path, pace: str, while_reading: list[str] | None = None, within: float = 30
) -> dict[str, int]:
    command = [sys.executable, str(HERE / "reader.py"), str(path), pace]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        if while_reading is not None:
            subprocess.run(while_reading, check=True, timeout=120, stdout=subprocess.DEVNULL)
        try:
            found, _ = reader.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            reader.kill()
            raise
    report: dict[str, int] = json.loads(found)
    return report


@pytest.mark.parametrize("pace", ["prompt", "slow"])
def test_a_flood_faster_than_it_is_read_costs_no_memory(tmp_path: Path, pace: str) -> None:
    path = tmp_path / "log"
    flood = [sys.executable, str(HERE / "writer.py"), "flood", str(path), "7"]
    report = read_in_a_process(path, pace, flood)
    assert report["bytes_read"] == path.stat().st_size > 290 * MIB
    assert report["grown"] < MEMORY
    assert (report["dropped"] > 0) is (pace == "slow")
    assert report["notices"] <= report["lines"]


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.write(b"begins")
        file.truncate(size)


def test_a_gibibyte_without_a_newline_is_one_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    sparse(path, 1024 * MIB)
    report = read_in_a_process(path, "prompt")
    assert report["lines"] == report["notices"] == 1
    assert report["longest"] == 65_536 + len(b" [truncated]")
    assert report["bytes_read"] == 1024 * MIB
    assert report["grown"] < MEMORY


def test_a_hole_of_tebibytes_costs_no_time_and_what_stands_behind_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    size = 4 * 2**40
    try:
        sparse(path, size)
    except OSError as error:
        pytest.skip(f"no sparse file of 4 TiB here: {error.strerror}")
    with path.open("ab") as file:
        file.write(b"tail\nnext\n")
    if os.lseek(fd := os.open(path, os.O_RDONLY), MIB, os.SEEK_DATA) == MIB:
        os.close(fd)
        pytest.skip("this file system does not tell holes from data")
    os.close(fd)
    report = read_in_a_process(path, "prompt")
    assert report["lines"] == 2
    assert report["bytes_read"] == size + len(b"tail\nnext\n")


@pytest.mark.nightly
def test_ten_gibibytes_of_real_data_without_a_newline(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < 11 * 1024 * MIB:
        pytest.skip("less than 11 GiB free")
    path = tmp_path / "log"
    with path.open("wb") as file:
        for _ in range(10 * 1024):
            file.write(b"y" * MIB)
    report = read_in_a_process(path, "prompt", within=600)
    path.unlink()
    assert report["lines"] == report["notices"] == 1
    assert report["bytes_read"] == 10 * 1024 * MIB
    assert report["grown"] < MEMORY


@pytest.mark.nightly
def test_ten_gibibytes_of_hole_without_a_newline(tmp_path: Path) -> None:
    path = tmp_path / "log"
    sparse(path, 10 * 1024 * MIB)
    report = read_in_a_process(path, "prompt")
    assert report["lines"] == 1 and report["bytes_read"] == 10 * 1024 * MIB
    assert report["grown"] < MEMORY
