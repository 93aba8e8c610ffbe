# SPDX-License-Identifier: Apache-2.0
"""The smaller parts that touch the host: sources, Python environments, counters, directories."""

from __future__ import annotations

import asyncio
import hashlib
import http.server
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from corral.agent import pyenv, workdir
from corral.agent.command import CannotRun, function_runner, own_interpreter
from corral.agent.masks import JobMasks
from corral.agent.oom import OomCounter
from corral.agent.source import Sources, SourceUnavailable
from corral.model.spec import PythonSpec, Reason, SourceRef
from tests.agent.test_agent_process import archive

DATA = archive({"a": b"content"})
HASH = hashlib.sha256(DATA).hexdigest()


class Files(http.server.ThreadingHTTPServer):
    """Serves bytes by path; ``busy`` requests are answered 503 first."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.found: dict[str, bytes] = {}
        self.busy = 0
        self.asked = 0


class Handler(http.server.BaseHTTPRequestHandler):
    server: Files

    def do_GET(self) -> None:
        self.server.asked += 1
        body = self.server.found.get(self.path)
        if self.server.busy > 0:
            self.server.busy -= 1
            self.send_error(503)
        elif body is None:
            self.send_error(404)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def files() -> Iterator[Files]:
    server = Files()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def sources(tmp_path: Path, files: Files, *before: str) -> Sources:
    urls = (*before, f"http://127.0.0.1:{files.server_port}")
    return Sources(tmp_path / "cache", coordinators=lambda: urls, headers=lambda: {})


def check_out(found: Sources, tmp_path: Path, hash: str = HASH) -> Path:
    target = workdir.create(tmp_path / "jobs", "j").work
    found.check_out(SourceRef(hash=hash, size=len(DATA)), target, threading.Event())
    return target


def test_a_coordinator_that_is_away_or_busy_is_tried_again(tmp_path: Path, files: Files) -> None:
    files.found[f"/agent/v1/sources/{HASH}"] = DATA
    files.busy = 2
    target = check_out(sources(tmp_path, files, "http://127.0.0.1:1"), tmp_path)
    assert (target / "a").read_bytes() == b"content"


def test_a_cached_archive_that_was_changed_is_fetched_again(tmp_path: Path, files: Files) -> None:
    files.found[f"/agent/v1/sources/{HASH}"] = DATA
    found = sources(tmp_path, files)
    check_out(found, tmp_path)
    check_out(found, tmp_path)
    assert files.asked == 1
    (tmp_path / "cache" / "sources" / f"{HASH}.tar.gz").write_bytes(archive({"a": b"evil"}))
    target = check_out(found, tmp_path)
    assert (target / "a").read_bytes() == b"content"
    assert files.asked == 2


def test_what_does_not_have_its_hash_is_never_unpacked(tmp_path: Path, files: Files) -> None:
    wrong = "0" * 64
    files.found[f"/agent/v1/sources/{wrong}"] = DATA
    stop = threading.Event()
    stop.set()
    target = workdir.create(tmp_path / "jobs", "j").work
    with pytest.raises(SourceUnavailable):
        sources(tmp_path, files).check_out(SourceRef(hash=wrong, size=1), target, stop)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("hash", ["", "../../etc/passwd", "x" * 63, "../" + "a" * 61])
def test_a_hash_is_never_a_path(tmp_path: Path, files: Files, hash: str) -> None:
    with pytest.raises(SourceUnavailable, match="no hash"):
        check_out(sources(tmp_path, files), tmp_path, hash)
    assert files.asked == 0


# --- Python environments -----------------------------------------------------------------------------------


def build(tmp_path: Path, commands: list[list[str]], code: int) -> None:
    place = pyenv.environment_path(tmp_path / "cache", "/usr/bin/python3", ("a==1",))

    async def run(command: Sequence[str]) -> int:
        commands.append(list(command))
        if command[1:3] == ["-m", "venv"]:
            (Path(command[3]) / "bin").mkdir(parents=True)
            (Path(command[3]) / "bin" / "python").write_text(f"#!{command[3]}/bin/python\n")
            (Path(command[3]) / "pyvenv.cfg").write_text(f"command = x {command[3]}\n")
            return 0
        return code

    asyncio.run(pyenv.build(place, "/usr/bin/python3", ("a==1",), tmp_path, run))


def test_an_environment_is_complete_or_not_there(tmp_path: Path) -> None:
    commands: list[list[str]] = []
    with pytest.raises(CannotRun) as failed:
        build(tmp_path, commands, 1)
    assert failed.value.reason is Reason.ENVIRONMENT_FAILED
    assert list((tmp_path / "cache" / "python").iterdir()) == []
    build(tmp_path, commands, 0)
    (place,) = (tmp_path / "cache" / "python").iterdir()
    assert f"#!{place}/bin/python\n" == (place / "bin" / "python").read_text(), "scripts name the final place"
    count = len(commands)
    build(tmp_path, commands, 0)
    assert len(commands) == count, "made once"


def test_the_environment_depends_on_interpreter_and_requirements(tmp_path: Path) -> None:
    paths = {pyenv.environment_path(tmp_path, i, r) for i in ("/a", "/b") for r in (("x",), ("x", "y"), ("y", "x"))}
    assert len(paths) == 6


def test_the_interpreter_is_looked_for_on_the_jobs_path(tmp_path: Path) -> None:
    assert pyenv.interpreter_of(None, {}) == own_interpreter()
    python = tmp_path / "mypython"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    assert pyenv.interpreter_of(PythonSpec(interpreter="mypython"), {"PATH": str(tmp_path)}) == str(python)
    with pytest.raises(CannotRun, match="mypython"):
        pyenv.interpreter_of(PythonSpec(interpreter="mypython"), {"PATH": "/nowhere"})


def test_the_function_runner_is_found_without_its_package() -> None:
    assert function_runner().name == "runner.py" and function_runner().parent.name == "workflow"


# --- the rest ----------------------------------------------------------------------------------------------


def test_out_of_memory_counters_of_both_cgroup_versions(tmp_path: Path) -> None:
    v1, v2 = tmp_path / "memory.oom_control", tmp_path / "memory.events"
    v1.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    v2.write_text("low 0\nhigh 0\nmax 5\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert OomCounter((v1,)).kills() == 2
    assert OomCounter((v2,)).kills() == 3
    assert OomCounter((v1, v2)).kills() == 5
    assert OomCounter((tmp_path / "not-there",)).kills() is None


def test_directories_that_a_job_locked_are_removed(tmp_path: Path) -> None:
    made = workdir.create(tmp_path, "j")
    inner = made.work / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (made.work / "link").symlink_to(outside)
    inner.chmod(0)
    inner.parent.chmod(0)
    workdir.remove(made.root)
    assert not made.root.exists()
    assert (outside / "kept").exists()
    workdir.remove(made.root)


def test_masks_survive_a_step_that_removes_their_file(tmp_path: Path) -> None:
    file = tmp_path / "mask"
    masks = JobMasks(["given-value"], file)
    masker = masks.masker()
    file.write_text("late-value\nunfinished-li")
    masks.learn(masker)
    file.unlink()
    masks.learn(masker)
    assert masks.masked("given-value late-value unfinished-li") == "*** *** unfinished-li"
