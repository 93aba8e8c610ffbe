# SPDX-License-Identifier: Apache-2.0
"""Measure the Firecracker client, beside curl on the same socket: ``PYTHONPATH=src python
bench/firecracker_api.py``.

Speaks to a real ``firecracker`` where one is on PATH, else to the tests' contract server; either is a
process of its own, and the report says which. Every figure is the median of several runs. Prints a table
and writes ``bench/results/firecracker_api.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from corral.backends.firecracker.api import FirecrackerApi

ROOT = Path(__file__).resolve().parent.parent
CALLS = 4000
CURL_PROCESSES = 50


@contextmanager
def server(path: Path) -> Iterator[str]:
    """Something that answers on ``path``; its name."""
    real = shutil.which("firecracker")
    contract = [sys.executable, "-m", "tests.backends.firecracker.contract", str(path)]
    command = [real, "--api-sock", str(path)] if real else contract
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            assert asyncio.run(_answers(path)), "the server did not come up"
            yield "firecracker" if real else "contract server"
        finally:
            process.terminate()


async def _answers(path: Path) -> bool:
    async with FirecrackerApi(path) as api:
        return await api.wait_for_socket(timeout=20)


async def sequential(path: Path) -> dict[str, float]:
    async with FirecrackerApi(path) as api:
        await api.instance_info()
        times = []
        began, spent = time.perf_counter(), time.process_time()
        for _ in range(CALLS):
            start = time.perf_counter()
            await api.instance_info()
            times.append(time.perf_counter() - start)
        took, spent = time.perf_counter() - began, time.process_time() - spent
    times.sort()
    return {
        "requests_per_s": CALLS / took,
        "median_us": statistics.median(times) * 1e6,
        "p99_us": times[int(CALLS * 0.99)] * 1e6,
        "own_cpu_us": spent / CALLS * 1e6,
    }


async def reconnecting(path: Path) -> dict[str, float]:
    api = FirecrackerApi(path)
    began = time.perf_counter()
    for _ in range(CALLS // 10):
        await api.instance_info()
        api.close()
    took = (time.perf_counter() - began) / (CALLS // 10)
    return {"requests_per_s": 1 / took, "median_us": took * 1e6}


def curl_kept(path: Path) -> dict[str, float]:
    """One curl, one connection, many requests."""
    url = 'url = "http://localhost/"\noutput = /dev/null\n'
    command = ["curl", "-sS", "--unix-socket", str(path), "-K", "-"]
    began = time.perf_counter()
    subprocess.run(command, input=url * CALLS, text=True, check=True)
    took = (time.perf_counter() - began) / CALLS
    return {"requests_per_s": 1 / took, "median_us": took * 1e6}


def curl_each(path: Path) -> dict[str, float]:
    """One curl per request, as a script would."""
    command = ["curl", "-sS", "-o", "/dev/null", "--unix-socket", str(path), "http://localhost/"]
    times = []
    for _ in range(CURL_PROCESSES):
        start = time.perf_counter()
        subprocess.run(command, check=True)
        times.append(time.perf_counter() - start)
    median = statistics.median(times)
    return {"requests_per_s": 1 / median, "median_us": median * 1e6}


def median_of(count: int, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    runs = [measure() for _ in range(count)]
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=5)
    count = options.parse_args().runs
    with tempfile.TemporaryDirectory() as folder, server(Path(folder) / "fc.sock") as name:
        path = Path(folder) / "fc.sock"
        found = {
            "one kept connection": median_of(count, lambda: asyncio.run(sequential(path))),
            "a connection per call": median_of(count, lambda: asyncio.run(reconnecting(path))),
        }
        if shutil.which("curl"):
            found["curl, one kept connection"] = median_of(count, lambda: curl_kept(path))
            found["curl, a process per call"] = median_of(count, lambda: curl_each(path))
    results = ROOT / "bench" / "results" / "firecracker_api.json"
    results.parent.mkdir(exist_ok=True)
    report = {"runs": count, "cores": os.cpu_count(), "server": name, "figures": found}
    results.write_text(json.dumps(report, indent=2))
    print(f"GET / against: {name}")
    for label, figures in found.items():
        shown = "  ".join(f"{key}={value:,.0f}" for key, value in figures.items())
        target = "   target: requests_per_s >= 2,000" if label == "one kept connection" else ""
        print(f"{label:28} {shown}{target}")


if __name__ == "__main__":
    main()
