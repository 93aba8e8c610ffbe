# SPDX-License-Identifier: Apache-2.0
"""The smaller parts that touch the host: sources, Python environments, counters, directories."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.server
import os
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from corral.agent import pyenv, workdir
from corral.agent.cache import Cache
from corral.agent.command import CannotRun, function_runner, own_interpreter
from corral.agent.masks import JobMasks
from corral.agent.oom import OomCounter
from corral.agent.source import Sources, SourceUnavailable
from corral.agent.stopping import Abandoned, Stop, in_thread
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
    found.check_out(SourceRef(hash=hash, size=len(DATA)), target, Stop())
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
    stop = Stop()
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


async def never_again() -> bool:
    return False


async def environment(
    tmp_path: Path, commands: list[list[str]], code: int = 0, requirements: tuple[str, ...] = ("a==1",), **limits: int
) -> pyenv.Environment:
    """One that takes a few bytes instead of a real venv. ``code``: what pip ends with."""

    async def run(command: Sequence[str]) -> int:
        commands.append(list(command))
        if command[1:3] == ["-m", "venv"]:
            (Path(command[3]) / "bin").mkdir(parents=True)
            python = Path(command[3]) / "bin" / "python"
            python.write_text(f"#!{command[3]}/bin/python\n")
            python.chmod(0o755)
            (Path(command[3]) / "pyvenv.cfg").write_text(f"command = x {command[3]}\n")
            return 0
        return code

    scratch = Path(tempfile.mkdtemp(dir=tmp_path))
    made = pyenv.Environments(tmp_path / "cache", **limits)
    return await made.get("/usr/bin/python3", requirements, scratch=scratch, run=run, pause=never_again)


def build(tmp_path: Path, commands: list[list[str]], code: int = 0) -> Path:
    found = asyncio.run(environment(tmp_path, commands, code))
    found.give_back()
    return found.place


def test_an_environment_is_complete_or_not_there(tmp_path: Path) -> None:
    commands: list[list[str]] = []
    with pytest.raises(CannotRun) as failed:
        build(tmp_path, commands, 1)
    assert failed.value.reason is Reason.ENVIRONMENT_FAILED
    assert list((tmp_path / "cache" / "python").iterdir()) == []
    place = build(tmp_path, commands)
    assert list((tmp_path / "cache" / "python").iterdir()) == [place]
    assert f"#!{place}/bin/python\n" == (place / "bin" / "python").read_text(), "scripts name the final place"
    count = len(commands)
    build(tmp_path, commands)
    assert len(commands) == count, "made once"


@pytest.mark.parametrize("harm", ["emptied", "polluted", "no interpreter", "unrecorded"])
def test_a_broken_environment_is_made_again(tmp_path: Path, harm: str) -> None:
    commands: list[list[str]] = []
    place = build(tmp_path, commands)
    if harm == "emptied":
        (place / "pyvenv.cfg").write_text("")
    elif harm == "polluted":
        (place / "bin" / "evil").write_text("#!/bin/sh\n")
    elif harm == "no interpreter":
        (place / "bin" / "python").unlink()
    else:
        (tmp_path / "cache" / ".locks" / "python" / place.name).write_text("")
    build(tmp_path, commands)
    assert len(commands) == 4, "made twice"
    assert (place / "pyvenv.cfg").read_text() and not (place / "bin" / "evil").exists()
    build(tmp_path, commands)
    assert len(commands) == 4


def test_compiled_modules_that_came_by_use_break_nothing(tmp_path: Path) -> None:
    commands: list[list[str]] = []
    place = build(tmp_path, commands)
    (place / "__pycache__").mkdir()
    (place / "__pycache__" / "a.pyc").write_bytes(b"x" * 100)
    build(tmp_path, commands)
    assert len(commands) == 2


def test_an_environment_in_use_is_neither_removed_nor_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        commands: list[list[str]] = []
        used = await environment(tmp_path, commands, count=1)
        other = await environment(tmp_path, commands, requirements=("b",), count=1)
        assert used.place.exists(), "too many, but in use"
        other.give_back()
        (used.place / "pyvenv.cfg").write_text("broken")
        instead = await environment(tmp_path, commands, count=1)
        assert instead.held is None and instead.place != used.place, "a job of its own beside the broken one"
        assert (used.place / "pyvenv.cfg").read_text() == "broken"
        used.give_back()
        healed = await environment(tmp_path, commands, count=1)
        assert healed.place == used.place and (healed.place / "pyvenv.cfg").read_text() != "broken"
        healed.give_back()

    asyncio.run(scenario())


def test_an_environment_that_another_agent_makes_is_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        commands: list[list[str]] = []
        name = pyenv.environment_name("/usr/bin/python3", ("a==1",))
        maker = Cache(tmp_path / "cache" / "python", limit=1, count=1).hold(name, alone=True)
        assert maker is not None
        with pytest.raises(CannotRun, match="ended before"):
            await environment(tmp_path, commands)
        assert commands == []
        maker.close()
        (await environment(tmp_path, commands)).give_back()

    asyncio.run(scenario())


def test_the_environment_depends_on_interpreter_and_requirements(tmp_path: Path) -> None:
    names = {pyenv.environment_name(i, r) for i in ("/a", "/b") for r in (("x",), ("x", "y"), ("y", "x"))}
    assert len(names) == 6


# --- the cache ---------------------------------------------------------------------------------------------


def entry(cache: Cache, name: str, size: int, used: int) -> None:
    held = cache.hold(name)
    assert held is not None
    cache.path(name).write_bytes(b"x" * size)
    held.record(size)
    held.close()
    os.utime(cache.directory.parent / ".locks" / cache.directory.name / name, (used, used))


@pytest.mark.parametrize(("limit", "count", "kept"), [(100, 2, "cb"), (65, 9, "c"), (1000, 9, "abc"), (0, 0, "")])
def test_what_was_unused_longest_goes_first(tmp_path: Path, limit: int, count: int, kept: str) -> None:
    cache = Cache(tmp_path / "things", limit=limit, count=count)
    for name, size, used in (("a", 30, 10), ("b", 40, 20), ("c", 30, 30)):
        entry(cache, name, size, used)
    gone = cache.trim()
    assert {path.name for path in cache.directory.iterdir()} == set(kept)
    assert list(gone) == [name for name in "abc" if name not in kept]
    assert {path.name for path in (tmp_path / ".locks" / "things").iterdir()} == set(kept)


def test_what_is_in_use_stays_and_what_nobody_uses_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "things", limit=10, count=9)
    entry(cache, "used", 30, 10)
    entry(cache, "unused", 40, 20)
    (cache.directory / "foreign").write_bytes(b"x" * 50)
    held = cache.hold("used")
    assert held is not None
    assert cache.trim() == ("foreign", "unused")
    assert cache.hold("used", alone=True) is None
    held.close()
    assert cache.trim() == ("used",)


def test_what_a_killed_agent_half_made_is_swept_and_what_is_being_made_is_not(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "things", limit=1000, count=9)
    making = cache.hold(".part-alive", alone=True)
    assert making is not None
    for name in (".part-alive", ".part-dead"):
        cache.path(name).write_bytes(b"half")
    cache.trim()
    assert [path.name for path in cache.directory.iterdir()] == [".part-alive"]
    making.close()


def test_the_archives_of_sources_are_bounded(tmp_path: Path, files: Files) -> None:
    archives = [archive({"a": str(number).encode()}) for number in range(4)]
    names = [hashlib.sha256(data).hexdigest() for data in archives]
    for name, data in zip(names, archives, strict=True):
        files.found[f"/agent/v1/sources/{name}"] = data
    found = Sources(
        tmp_path / "cache",
        coordinators=lambda: [f"http://127.0.0.1:{files.server_port}"],
        headers=lambda: {},
        count=2,
    )
    for name in (*names[:2], names[0], *names[2:]):
        check_out(found, tmp_path, name)
    kept = {path.name.partition(".")[0] for path in (tmp_path / "cache" / "sources").iterdir()}
    assert kept == set(names[2:]), "the last two used"
    assert files.asked == 4


@pytest.mark.parametrize("where", ["connecting", "waiting", "busy"])
def test_a_stopped_fetch_ends_at_once(tmp_path: Path, where: str, files: Files) -> None:
    """Whatever it waits for: the handshake, the answer, or the next try."""
    with socket.socket() as deaf, contextlib.ExitStack() as crowd:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        if where == "busy":
            files.busy = 1000
            url = f"http://127.0.0.1:{files.server_port}"
        elif where == "connecting":
            # A full queue: further handshakes are not answered at all.
            for _ in range(4):
                waiting = crowd.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(deaf.getsockname())
        found = Sources(tmp_path / "cache", coordinators=lambda: [url], headers=lambda: {})
        target = workdir.create(tmp_path / "jobs", "j").work
        stop = Stop()
        began = threading.Event()

        def fetch() -> None:
            began.set()
            found.check_out(SourceRef(hash=HASH, size=1), target, stop)

        async def scenario() -> float:
            loop = asyncio.get_running_loop()
            fetching = asyncio.create_task(in_thread(fetch, stop))
            await asyncio.to_thread(began.wait)
            await asyncio.wait({fetching}, timeout=0.2)
            assert not fetching.done()
            asked = loop.time()
            stop.set()
            with pytest.raises(SourceUnavailable):
                await fetching
            return loop.time() - asked

        assert asyncio.run(scenario()) < 0.9, "before it would be abandoned"
        assert list(target.iterdir()) == []


def test_a_fetch_that_cannot_be_interrupted_is_abandoned() -> None:
    release = threading.Event()
    stop = Stop()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, stop.set)
        with pytest.raises(Abandoned):
            await in_thread(lambda: release.wait(5) and None, stop)

    asyncio.run(scenario())
    release.set()


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
