# SPDX-License-Identifier: Apache-2.0
"""The worked provisioners of ``examples/`` before the adversary, as users run them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from bench.harness import server

from corral.cli.config import PoolConfig
from tests.e2e.support import alive, job, rows, run_of, states, until_over, whole_log
from tests.waiting import eventually, eventually_async

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FAKE_SSH = """\
#!/bin/sh
# As sshd does it: what follows the host is one line for a shell.
while [ "$1" = -o ]; do shift 2; done
shift
exec env -i HOME="$HOME" PATH="$PATH" PYTHONPATH="$PYTHONPATH" sh -c "$*"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A home with `corral` and a fake `ssh` on its PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("corral", f'#!/bin/sh\nexec {sys.executable} -m corral.cli "$@"\n'), ("ssh", FAKE_SSH)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return tmp_path


def environment(place: Path) -> dict[str, str]:
    return {
        "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "HOME": str(place),
        "CORRAL_SSH_HOST": "agents.example",
    }


def verified(place: Path, *words: str, lag: float = 5.0) -> dict[str, str]:
    """What each row of the adversary came to; everything has to have passed, and nothing to be left."""
    command = [sys.executable, "-m", "corral.cli", "provisioner", "verify", "--json", "--list-lag", str(lag), *words]
    done = subprocess.run(command, env=environment(place), capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    wrong = {row["name"]: row["happened"] for row in told["rows"] if row["status"] == "failed"}
    assert (wrong, told["left"], done.returncode) == ({}, [], 0)
    assert "claim_" not in done.stdout + done.stderr
    return {row["name"]: row["status"] for row in told["rows"]}


def nothing_left(place: Path) -> None:
    eventually(lambda: alive(str(place)) == [], "every agent has ended", 30)


def test_exec_local(place: Path) -> None:
    rows = verified(place, "--env", "PYTHONPATH", "--", str(EXAMPLES / "exec-local" / "provision.sh"))
    assert {name for name, status in rows.items() if status != "passed"} == {"bad signature"}
    assert list((place / "corral-instances").iterdir()) == []
    nothing_left(place)


def test_exec_local_without_jq(place: Path) -> None:
    """python3 reads the event where there is no jq."""
    bare = place / "bare"
    bare.mkdir()
    for name in (
        *("sh", "flock", "head", "tail", "tr", "sync", "mv", "mkdir", "dirname", "sed", "cut", "sleep", "rm", "setsid"),
        *("python3", "grep", "cat", "env", "echo", "printf"),
    ):
        found = shutil.which(name)
        if found:
            (bare / name).symlink_to(sys.executable if name == "python3" else found)
    script = place / "provision.sh"
    script.write_text(f"#!/bin/sh\nPATH={place / 'bin'}:{bare}\nexec {EXAMPLES / 'exec-local' / 'provision.sh'}\n")
    script.chmod(0o755)
    verified(place, "--env", "PYTHONPATH", "--", str(script))
    nothing_left(place)


def test_exec_ssh(place: Path) -> None:
    words = ("--env", "PYTHONPATH", "--env", "CORRAL_SSH_HOST", "--", str(EXAMPLES / "exec-ssh" / "provision.sh"))
    assert verified(place, *words)["lost answer"] == "passed"
    assert list((place / "corral-instances").iterdir()) == []
    nothing_left(place)


@pytest.mark.skipif(shutil.which("terraform") is None, reason="there is no terraform on the PATH")
def test_exec_terraform(place: Path) -> None:
    words = ("--timeout", "120", "--", str(EXAMPLES / "exec-terraform" / "provision.sh"))
    assert verified(place, *words)["lost answer"] == "passed"
    assert list((place / ".local/state/corral-exec-terraform/instances").iterdir()) == []


def test_webhook_service(place: Path) -> None:
    secret = place / "secret"
    secret.write_text("whsec_" + "QUJD" * 10 + "\n")
    secret.chmod(0o600)
    command = [sys.executable, str(EXAMPLES / "webhook-service" / "service.py"), "--port", "0"]
    command += ["--secret-file", str(secret), "--directory", str(place / "service")]
    with subprocess.Popen(command, env=environment(place), stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            url = service.stdout.readline().split()[-1]
            rows = verified(place, "--secret", str(secret), url)
            assert set(rows.values()) == {"passed"}
        finally:
            service.terminate()
    assert list((place / "service" / "instances").iterdir()) == []
    nothing_left(place)


CONFIG = """\
version: 1
allow_root: true
pools:
  - name: cloud
    backend: event
    labels: [cloud]
    max_agents: 2
    provisioner:
      exec:
        command: [{script}]
        env: [PYTHONPATH, CORRAL_INSTANCES, CORRAL_PROVISIONER_STATE]
        timeout: 60
"""
NOT_WIRED = "provisioner" not in PoolConfig.__struct_fields__ or find_spec("corral.control.outbox") is None


@pytest.mark.skipif(NOT_WIRED, reason="this release's server takes no event pools from its configuration")
def test_a_job_runs_on_an_instance_of_exec_local_and_nothing_is_left(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1: and the claim code is in no log, no file and no argument."""
    instances = place / "instances"
    monkeypatch.setenv("PATH", environment(place)["PATH"])
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
    monkeypatch.setenv("CORRAL_INSTANCES", str(instances))
    monkeypatch.setenv("CORRAL_PROVISIONER_STATE", str(place / "state"))

    async def scenario() -> None:
        async with server(CONFIG.format(script=EXAMPLES / "exec-local" / "provision.sh")) as running:
            run = await running.client.create_run(run_of(job("j", "echo hello", label="cloud")))
            seen = await until_over(running, run.id)
            assert states(seen) == {"j": "succeeded"}
            assert await whole_log(running, seen.jobs[0]) == b"hello\n"

            def gone() -> bool:
                found = rows(running, "SELECT state FROM provisions")
                return found == [("gone",)] and not list(instances.iterdir())

            await eventually_async(gone, "the instance is gone", 60)
            kept = [path for path in (place / "state").rglob("*") if path.is_file()]
            text = "".join(path.read_text() for path in kept) + (running.state_dir / "server.log").read_text()
            assert "claim_" not in text

    asyncio.run(scenario())
    nothing_left(place)
