# SPDX-License-Identifier: Apache-2.0
"""Environment, cgroup discovery, sentences, /proc: the parts that need no instance."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from corral.backends.interface import Denied, Misconfigured, NoCapacity, Transient
from corral.backends.process import cgroups, procfs, sentences
from corral.backends.process.environment import agent_environment, has_credentials, inherited
from corral.backends.process.journal import ExitRecord, Journal, Place
from corral.backends.process.turns import Turns
from corral.model.ids import AgentId, ClusterId
from tests.waiting import eventually


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("http://user:word@host/", True),
        ("https://token@host", True),
        ("http://host/a@b", False),
        ("user:word@proxy:3128", True),
        ("http://a http://user:p@b", True),
        ("http://[user@", True),
        ("plain", False),
        ("", False),
        ("http://proxy:3128", False),
    ],
)
def test_credentials_in_urls(value: str, expected: bool) -> None:
    assert has_credentials(value) is expected


def test_the_default_inherits_no_credentials() -> None:
    own = {
        "PIP_INDEX_URL": "https://me:secret@index/simple",
        "PIP_EXTRA_INDEX_URL": "https://index/simple",
        "UV_CACHE_DIR": "/cache",
        "UV_PUBLISH_TOKEN": "t",
        "UV_INDEX_OURS_PASSWORD": "p",
        "NO_PROXY": "localhost",
        "VIRTUAL_ENV": "/venv",
    }
    assert inherited(own, None) == {k: own[k] for k in ("PIP_EXTRA_INDEX_URL", "UV_CACHE_DIR", "NO_PROXY")}
    assert inherited(own, ("PIP_*",)) == {"PIP_EXTRA_INDEX_URL": "https://index/simple"}
    assert inherited(own, ("UV_PUBLISH_TOKEN",)) == {"UV_PUBLISH_TOKEN": "t"}
    assert inherited(own, ("PIP_INDEX_URL",)) == {"PIP_INDEX_URL": "https://me:secret@index/simple"}
    assert inherited(own, ()) == {}


def test_nothing_inherited_replaces_what_is_fixed() -> None:
    environment = agent_environment({"HOME": "/mine"}, agent_id="agent_a", home="/home", inherit=("*",))
    assert environment["HOME"] == "/home"
    assert environment["CORRAL_INSTANCE"] == "agent_a"
    assert environment["PATH"].startswith("/usr/local/sbin")


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.EAGAIN, NoCapacity),
        (errno.ENOMEM, NoCapacity),
        (errno.ENOSPC, NoCapacity),
        (errno.EACCES, Denied),
        (errno.EPERM, Denied),
        (errno.ENOENT, Misconfigured),
        (errno.EIO, Transient),
        (errno.EMFILE, Transient),
    ],
)
def test_what_a_system_error_means(number: int, error: type[Exception]) -> None:
    found = sentences.system_error(number, "fork")
    assert type(found) is error
    assert errno.errorcode[number] in str(found)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (None, "the warden was killed from outside"),
        (ExitRecord(reason="ended", code=3), "exited with code 3"),
        (ExitRecord(reason="ended", signal=11), "killed by SIGSEGV"),
        (ExitRecord(reason="ended", signal=9), "killed by SIGKILL"),
        (ExitRecord(reason="ended", signal=9, oom_kills=1), "out of memory"),
        (ExitRecord(reason="ended", signal=99), "killed by signal 99"),
        (ExitRecord(reason="grant_ended", signal=9), "grant ran out"),
        (ExitRecord(reason="claim_ended", signal=9), "did not register in time"),
        (ExitRecord(reason="stopped", code=0), "told to stop; the agent exited with code 0"),
        (ExitRecord(reason="owner_gone", code=0), "tied to is gone"),
        (ExitRecord(reason="not_started", message="run x: No such file"), "could not be started: run x"),
        (ExitRecord(reason="of-a-later-release", code=1), "exited with code 1"),
    ],
)
def test_endings_in_words(record: ExitRecord | None, words: str) -> None:
    assert words in sentences.ending(record)


def test_children_with_and_without_the_kernels_list() -> None:
    child = subprocess.Popen(["/bin/sleep", "1000"])
    try:
        assert child.pid in procfs.children(os.getpid())
        assert child.pid in procfs.children_by_scan(os.getpid())
        assert procfs.children(child.pid) == procfs.children_by_scan(child.pid) == []
    finally:
        child.kill()
        eventually(lambda: (seen := procfs.stat(child.pid)) is not None and seen.gone)
        child.wait(20)
    assert procfs.stat(child.pid) is None
    assert procfs.children(child.pid) == []


def test_a_command_with_brackets_and_spaces_is_parsed(tmp_path: Path) -> None:
    odd = tmp_path / "a) S 1 (b"
    odd.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(odd), "1000"])
    try:
        eventually(lambda: b"a) S 1" in (procfs.read(f"/proc/{child.pid}/comm") or b""))
        seen = procfs.stat(child.pid)
        assert seen is not None
        assert seen.parent == os.getpid()
    finally:
        child.kill()
        child.wait(20)


@pytest.mark.parametrize("text", ["", "1", "1 2", "x y z", "1 2 3 4", "-1 2 boot", "1 2.5 boot"])
def test_an_identity_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "warden").write_text(text)
    assert Place(path=tmp_path).identity() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 1}', "\xff"])
def test_a_journal_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "instance.json").write_text(text)
    assert Place(path=tmp_path).journal() is None


def test_a_journal_is_read_as_written(tmp_path: Path) -> None:
    journal = Journal(
        cluster_id=ClusterId("corral-a"), pool="p", agent_id=AgentId("agent_a"), created=7, slot=5, cgroups=("/x",)
    )
    place = Place(path=tmp_path)
    place.write_journal(journal)
    place.write_journal(journal)
    assert place.journal() == journal
    assert [path.name for path in tmp_path.iterdir()] == ["instance.json"]


# --- cgroups ---------------------------------------------------------------------------------------------------

V1 = cgroups.Hierarchy(version=1, parent=Path("/v1"), controllers=frozenset({"memory"}))
V2_BARE = cgroups.Hierarchy(version=2, parent=Path("/v2"), controllers=frozenset())
V2_FULL = cgroups.Hierarchy(version=2, parent=Path("/v2"), controllers=frozenset({"cpu", "memory", "pids"}))
LIMITS = cgroups.Limits(cpu=1.5, memory=1000, pids=10)


def test_limits_go_to_version_2_where_it_has_the_controller() -> None:
    (group,) = cgroups.Cgroups((V1, V2_FULL)).plan(AgentId("a"), LIMITS)
    assert (group.version, group.path) == (2, Path("/v2/corral-a"))
    assert group.values == {"cpu": "150000 100000", "memory": "1000", "pids": "10"}


def test_a_hybrid_host_kills_by_version_2_and_limits_by_version_1() -> None:
    two, one = cgroups.Cgroups((V1, V2_BARE)).plan(AgentId("a"), LIMITS)
    assert (two.version, two.values) == (2, {})
    assert (one.version, one.values) == (1, {"memory": "1000"})


def test_what_cannot_be_enforced_is_not_claimed() -> None:
    assert cgroups.Cgroups((V1, V2_BARE)).enforceable() == {"memory"}
    assert cgroups.Cgroups(()).enforceable() == frozenset()
    assert cgroups.Cgroups(()).plan(AgentId("a"), LIMITS) == ()


@pytest.mark.parametrize(
    ("line", "own", "parent"),
    [
        ("30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", {"": "/user/x"}, "/sys/fs/cgroup/user/x"),
        ("31 24 0:27 / /cg/memory rw - cgroup cgroup rw,memory", {"memory": "/a"}, "/cg/memory/a"),
        ("31 24 0:27 /docker/1 /cg/memory rw - cgroup cgroup rw,memory", {"memory": "/docker/1/b"}, "/cg/memory/b"),
        ("31 24 0:27 /other /cg/memory rw - cgroup cgroup rw,memory", {"memory": "/docker/1"}, None),
        ("31 24 0:27 / /cg/blkio rw - cgroup cgroup rw,blkio", {"blkio": "/"}, None),
        ("31 24 0:27 / /proc rw shared:1 - proc proc rw", {"": "/"}, None),
    ],
)
def test_where_our_group_is(line: str, own: dict[str, str], parent: str | None) -> None:
    found = cgroups._hierarchy(line, own)
    assert (None if found is None else str(found.parent)) == parent


def test_the_warden_imports_only_the_standard_library() -> None:
    """In a bare interpreter: what it drags in costs every instance time and memory."""
    code = (
        f"import sys; sys.path.append({str(Path(procfs.__file__).parents[1])!r}); import process.guard; "
        "print(*sorted(name for name in sys.modules if not name.startswith('_')))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, check=True, text=True)
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.partition(".")[0] == "process"} == {
        "process",
        "process.attending",
        "process.guard",
        "process.killing",
        "process.launch",
        "process.procfs",
        "process.removal",
    }
    assert (
        loaded & {"asyncio", "dataclasses", "inspect", "logging", "msgspec", "subprocess", "typing", "corral"} == set()
    )


def test_turns_are_taken_in_order_and_leave_nothing() -> None:
    async def go() -> None:
        turns = Turns()
        order: list[str] = []

        async def use(key: str, name: str) -> None:
            async with turns.of(key):
                order.append(f"{name} in")
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                order.append(f"{name} out")

        await asyncio.gather(use("x", "a"), use("x", "b"), use("x", "c"))
        assert order == ["a in", "a out", "b in", "b out", "c in", "c out"]
        order.clear()
        first, second = asyncio.create_task(use("x", "a")), asyncio.create_task(use("x", "b"))
        await first
        await asyncio.gather(use("x", "late"), second)
        assert order == ["a in", "a out", "b in", "b out", "late in", "late out"]
        order.clear()
        await asyncio.gather(use("x", "a"), use("y", "b"))
        assert order[:2] == ["a in", "b in"]
        assert turns._locks == {}

    asyncio.run(go())
