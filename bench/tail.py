# SPDX-License-Identifier: Apache-2.0
"""Measure the file tail, beside GNU ``tail`` where that compares: ``PYTHONPATH=src python bench/tail.py``.

Every figure is the median of several runs, each in a process of its own; writers are processes of their own.
Prints a table and writes ``bench/results/tail.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

MIB = 1024 * 1024
BULK = 512 * MIB
FLOOD = 512 * MIB
IDLE_SECONDS = 10.0
IDLE_TAILS = 1000
SAMPLES = 300

WRITE_STAMPS = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
for _ in range(int(sys.argv[2])):
    time.sleep(0.005)
    os.write(fd, b"%d\\n" % time.clock_gettime_ns(time.CLOCK_MONOTONIC))
"""
WRITE_FLOOD = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
block = (b"x" * 99 + b"\\n") * 10_000
for _ in range(int(sys.argv[2]) // len(block)):
    os.write(fd, block)
"""


def resident(field: str) -> int:
    """Bytes, from this process's status."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) * 1024


# -- one run each, inside a process of its own --------------------------------------------------------


async def run_bulk(path: str) -> dict[str, float]:
    from corral.backends.tail import tail_file

    stop = asyncio.Event()
    stop.set()
    lines = 0
    began = time.perf_counter()
    tail = tail_file(path, stop)
    async for _ in tail:
        lines += 1
    took = time.perf_counter() - began
    assert tail.tally.dropped_lines == 0
    return {"mib_per_s": tail.tally.bytes_read / MIB / took, "lines_per_s": lines / took}


async def run_latency(path: str, *, inotify: bool) -> dict[str, float]:
    from corral.backends.tail import Watcher, tail_file

    tail = tail_file(path, asyncio.Event(), watcher=Watcher(inotify=inotify))
    writer = subprocess.Popen([sys.executable, "-c", WRITE_STAMPS, path, str(SAMPLES)])
    delays = []
    async for line in tail:
        delays.append((time.clock_gettime_ns(time.CLOCK_MONOTONIC) - int(line)) / 1e6)
        if len(delays) == SAMPLES:
            break
    writer.wait()
    await tail.aclose()
    return percentiles(delays)


async def run_flood(path: str, pace: str) -> dict[str, float]:
    from corral.backends.tail import tail_file

    stop = asyncio.Event()
    tail = tail_file(path, stop)
    first = asyncio.ensure_future(anext(tail))
    await asyncio.sleep(0)
    before = resident("VmRSS")
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITE_FLOOD, path, str(FLOOD))
    ending = asyncio.ensure_future(_stop_after(writer, stop))
    await first
    lines = 1
    async for _ in tail:
        lines += 1
        if pace == "slow" and not stop.is_set():
            await asyncio.sleep(0.001)
    await ending
    return {
        "grown_mib": (resident("VmHWM") - before) / MIB,
        "lines": lines,
        "dropped": tail.tally.dropped_lines,
    }


async def _stop_after(writer: asyncio.subprocess.Process, stop: asyncio.Event) -> None:
    await writer.wait()
    stop.set()


async def run_idle(folder: str, *, inotify: bool) -> dict[str, float]:
    from corral.backends.tail import Watcher, tail_file

    watcher = Watcher(inotify=inotify)
    tails = [tail_file(f"{folder}/{n}", asyncio.Event(), watcher=watcher) for n in range(IDLE_TAILS)]
    waiting = [asyncio.ensure_future(anext(tail)) for tail in tails]
    await asyncio.sleep(1)
    before, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(IDLE_SECONDS)
    share = (time.process_time() - before) / (time.perf_counter() - began)
    armed = watcher.armed
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for tail in tails:
        await tail.aclose()
    return {"core_percent": share * 100, "armed": armed}


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median_ms": statistics.median(ordered), "p99_ms": ordered[int(len(ordered) * 0.99)]}


RUNS: dict[str, Callable[[str], dict[str, float]]] = {
    "bulk": lambda path: asyncio.run(run_bulk(path)),
    "latency-inotify": lambda path: asyncio.run(run_latency(path, inotify=True)),
    "latency-polling": lambda path: asyncio.run(run_latency(path, inotify=False)),
    "flood-prompt": lambda path: asyncio.run(run_flood(path, "prompt")),
    "flood-slow": lambda path: asyncio.run(run_flood(path, "slow")),
    "idle-inotify": lambda path: asyncio.run(run_idle(path, inotify=True)),
    "idle-polling": lambda path: asyncio.run(run_idle(path, inotify=False)),
}


# -- the peer -----------------------------------------------------------------------------------------


def peer_bulk(path: str) -> dict[str, float]:
    """GNU tail writes it all to a pipe; nobody splits it into lines."""
    began, count = time.perf_counter(), 0
    with subprocess.Popen(["tail", "-c", "+1", path], stdout=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        while data := os.read(tail.stdout.fileno(), MIB):
            count += len(data)
    return {"mib_per_s": count / MIB / (time.perf_counter() - began)}


def peer_latency(path: str) -> dict[str, float]:
    with subprocess.Popen(["tail", "-n", "0", "-F", path], stdout=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        _until_watching(tail.pid, path)
        writer = subprocess.Popen([sys.executable, "-c", WRITE_STAMPS, path, str(SAMPLES)])
        delays = []
        for _ in range(SAMPLES):
            line = tail.stdout.readline()
            delays.append((time.clock_gettime_ns(time.CLOCK_MONOTONIC) - int(line)) / 1e6)
        writer.wait()
        tail.terminate()
    return percentiles(delays)


def _until_watching(pid: int, path: str) -> None:
    """Returns once the process has the file open and waits."""
    while not any(os.path.realpath(link) == path for link in Path(f"/proc/{pid}/fd").iterdir()):
        time.sleep(0.01)
    time.sleep(0.2)


def peer_idle(folder: str) -> dict[str, float]:
    files = [f"{folder}/{n}" for n in range(IDLE_TAILS)]
    with subprocess.Popen(["tail", "-n", "0", "-F", *files], stdout=subprocess.DEVNULL) as tail:
        time.sleep(1)
        before = _cpu_of(tail.pid)
        time.sleep(IDLE_SECONDS)
        share = (_cpu_of(tail.pid) - before) / IDLE_SECONDS
        tail.terminate()
    return {"core_percent": share * 100}


def _cpu_of(pid: int) -> float:
    """Seconds of processor time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- all of it ----------------------------------------------------------------------------------------


def isolated(run: str, path: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--run", run, path], capture_output=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def median_of(count: int, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    runs = [measure() for _ in range(count)]
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def fill(path: Path, line: bytes) -> str:
    block = line * (MIB // len(line))
    with path.open("wb") as file:
        for _ in range(BULK // len(block)):
            file.write(block)
    return str(path)


def emptied(path: Path) -> str:
    path.write_bytes(b"")
    return str(path)


def measure_all(folder: Path, count: int) -> dict[str, dict[str, float]]:
    many = folder / "many"
    many.mkdir()
    for number in range(IDLE_TAILS):
        (many / str(number)).touch()
    log = folder / "log"
    found: dict[str, dict[str, float]] = {}
    for name, line in (("1 KiB lines", b"x" * 1023 + b"\n"), ("100-byte lines", b"x" * 99 + b"\n")):
        fill(log, line)
        found[f"bulk, {name}"] = median_of(count, lambda: isolated("bulk", str(log)))
        found[f"bulk, {name}: tail"] = median_of(count, lambda: peer_bulk(str(log)))
    for way in ("inotify", "polling"):
        found[f"latency, {way}"] = median_of(
            count,
            lambda way=way: isolated(f"latency-{way}", emptied(log)),  # type: ignore[misc]
        )
    found["latency: tail -F"] = median_of(count, lambda: peer_latency(emptied(log)))
    for pace in ("prompt", "slow"):
        found[f"flood, {pace} reader"] = median_of(
            count,
            lambda pace=pace: isolated(f"flood-{pace}", emptied(log)),  # type: ignore[misc]
        )
    for way in ("inotify", "polling"):
        found[f"1,000 idle, {way}"] = median_of(
            count,
            lambda way=way: isolated(f"idle-{way}", str(many)),  # type: ignore[misc]
        )
    found["1,000 idle: tail -F"] = median_of(count, lambda: peer_idle(str(many)))
    return found


TARGETS = {
    "bulk, 1 KiB lines": ("mib_per_s", ">= 200"),
    "bulk, 100-byte lines": ("lines_per_s", ">= 1,000,000"),
    "latency, inotify": ("median_ms", "< 5"),
    "flood, prompt reader": ("grown_mib", "< 32"),
    "flood, slow reader": ("grown_mib", "< 32"),
    "1,000 idle, inotify": ("core_percent", "< 2"),
    "1,000 idle, polling": ("core_percent", "< 2"),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--folder", type=Path, help="where the files are written (default: a temporary one)")
    options.add_argument("--run", nargs=2, metavar=("NAME", "PATH"), help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.run:
        print(json.dumps(RUNS[chosen.run[0]](chosen.run[1])))
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    folder = Path(tempfile.mkdtemp(dir=chosen.folder))
    try:
        found = measure_all(folder, chosen.runs)
    finally:
        shutil.rmtree(folder)
    results = Path(__file__).parent / "results" / "tail.json"
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps({"runs": chosen.runs, "cores": os.cpu_count(), "figures": found}, indent=2))
    for name, figures in found.items():
        shown = "  ".join(f"{key}={value:,.2f}" for key, value in figures.items())
        field, target = TARGETS.get(name, ("", ""))
        print(f"{name:32} {shown}" + (f"   target: {field} {target}" if target else ""))
    print(f"written to {results.relative_to(Path.cwd()) if results.is_relative_to(Path.cwd()) else results}")


if __name__ == "__main__":
    main()
