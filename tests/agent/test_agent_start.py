# SPDX-License-Identifier: Apache-2.0
"""Starting: bad configurations, what a real agent process has loaded, how fast and how small it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from corral.agent.configfile import ConfigFault, WorkLock
from corral.agent.ending import ExitCode
from corral.wire.messages import Hello
from tests.agent.coordinator import in_loop, order, running
from tests.waiting import eventually

COLD_START = 0.2
"""Seconds of processor time from the process's start to its hello: starting waits for nothing else, and unlike the
time on the wall it does not depend on what the other tests are doing."""
RESIDENT = 40 * 1024
"""KiB."""


def config(tmp_path: Path, **changes: Any) -> Path:
    for name in ("work", "cache"):
        (tmp_path / name).mkdir(exist_ok=True)
    values = {
        "version": 1,
        "agent_id": "agent_1",
        "coordinator_urls": ["http://127.0.0.1:1"],
        "claim_code": "SECRET-CLAIM",
        "work_dir": str(tmp_path / "work"),
        "cache_dir": str(tmp_path / "cache"),
        **changes,
    }
    file = tmp_path / "agent.json"
    file.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
    return file


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "corral.agent", *arguments], capture_output=True, text=True, timeout=20, check=False
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 2}, "version 2"),
        ({"agent_id": None}, "agent_id"),
        ({"agent_id": ""}, "agent_id is empty"),
        ({"claim_code": ""}, "exactly one of claim_code and key"),
        ({"key": "k"}, "exactly one of claim_code and key"),
        ({"coordinator_urls": []}, "nobody to dial"),
        ({"coordinator_urls": ["ftp://x", "http://ok:1"]}, "'ftp://x'"),
        ({"coordinator_urls": ["http://host:port"]}, "'http://host:port'"),
        ({"work_dir": "relative"}, "not absolute"),
        ({"cache_dir": "/not/there"}, "no directory /not/there"),
        ({"spool_limit": 5}, "spool_limit"),
        ({"spool_limit": "many"}, "spool_limit"),
    ],
)
def test_a_bad_configuration_is_one_clear_error(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    done = run("--config", str(config(tmp_path, **changes)))
    assert done.returncode == ExitCode.CONFIG
    assert says in done.stderr and str(tmp_path / "agent.json") in done.stderr
    assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr
    assert "SECRET-CLAIM" not in done.stderr


def test_several_faults_are_told_at_once(tmp_path: Path) -> None:
    done = run("--config", str(config(tmp_path, agent_id="", work_dir="x", claim_code="")))
    assert done.stderr.count(";") == 2


@pytest.mark.parametrize("content", [b"", b"not json", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_configuration(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(content)
    done = run("--config", str(file))
    assert (done.returncode, "Traceback" in done.stderr) == (ExitCode.CONFIG, False)
    assert str(file) in done.stderr


def test_no_file_and_bad_arguments() -> None:
    assert run("--config", "/not/there").returncode == ExitCode.CONFIG
    assert run("--confg", "x").stderr.startswith("usage:")
    assert run("--help").stdout.startswith("usage:")


def test_two_agents_never_share_a_work_directory(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "left-over").mkdir(parents=True)
    with WorkLock(tmp_path), pytest.raises(ConfigFault, match="in use"), WorkLock(tmp_path):
        raise AssertionError("the second got in")
    assert not (tmp_path / "jobs").exists(), "what an earlier agent left is removed"


PROBE = """
import os, signal, sys
def show(number, frame):
    with open(os.environ["CORRAL_TEST_MODULES"] + ".part", "w") as file:
        file.write("\\n".join(sorted(sys.modules)))
    os.rename(os.environ["CORRAL_TEST_MODULES"] + ".part", os.environ["CORRAL_TEST_MODULES"])
signal.signal(signal.SIGUSR1, show)
"""
ALLOWED = ("corral.agent", "corral.runtime", "corral.wire", "corral.model")
FORBIDDEN = ("uvloop", "httpx", "httpx2", "sqlalchemy", "litestar", "rich", "typer", "cryptography", "zstandard")


def test_a_real_agent_has_loaded_only_its_rooms(tmp_path: Path) -> None:
    """Idle, and again after a job: nothing but agent, runtime, wire and model, and no server library."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(PROBE)
    listing = tmp_path / "modules"
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])

    async def work() -> None:
        env = {"PYTHONPATH": path, "CORRAL_TEST_MODULES": str(listing)}
        async with running(tmp_path, single_use=False, env=env) as (coordinator, agent):
            await coordinator.registered()
            for job in (None, "job_1"):
                if job is not None:
                    await coordinator.run(order("true", job_id=job))
                listing.unlink(missing_ok=True)
                agent.process.send_signal(signal.SIGUSR1)
                eventually(listing.exists)
                modules = listing.read_text().split()
                ours = {m for m in modules if m.startswith("corral.")}
                assert {m for m in ours if not m.startswith(ALLOWED)} == set()
                tops = {m.split(".")[0] for m in modules}
                assert tops.isdisjoint(FORBIDDEN)

    in_loop(work)


def test_cold_start_and_size(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (coordinator, agent):
            await coordinator.hears(Hello)
            assert processor_seconds(agent.pid) < COLD_START
            status = Path(f"/proc/{agent.pid}/status").read_text()
            assert int(status.split("VmHWM:")[1].split()[0]) < RESIDENT

    in_loop(work)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_static_agent_keeps_its_file_and_its_key(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, single_use=False, claim_code="", key="corral_agent_static") as (
            coordinator,
            agent,
        ):
            await coordinator.run(order("true"))
            assert agent.config.exists()
            assert coordinator.said(Hello)[0].key == "corral_agent_static"

    in_loop(work)
