# SPDX-License-Identifier: Apache-2.0
"""A user per instance. Needs root; the uids are made up and belong to nobody."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.backends.interface import Denied, NoCapacity
from corral.backends.process import cgroups
from corral.backends.process.backend import ProcessBackend
from corral.model.ids import AgentId
from tests.backends.process.rigs import DEADLINE, RUN, STANDIN, A, B, Host, alive, left_of, spec
from tests.waiting import eventually_async

FIRST = 100_000 + secrets.randbelow(1_000_000)
UIDS = range(FIRST, FIRST + 3)
"""Of this run alone: another one on the same host takes others."""
NO_CGROUPS = cgroups.Cgroups(())
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


def reachable_python() -> str | None:
    """An interpreter that any user of this host may run: tried, not guessed."""
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            done = subprocess.run(
                [candidate, "-I", "-S", "-c", "import signal, json"],
                user=UIDS.start,
                group=UIDS.start,
                extra_groups=[],
                cwd="/",
                check=False,
                capture_output=True,
            )
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    return None


class SlotHost(Host):
    """Everything lies where any user can pass through."""

    def __init__(self, directory: Path, python: str) -> None:
        super().__init__(directory)
        self.python = python
        self.standin = str(directory / "standin.py")
        shutil.copy(STANDIN, self.standin)
        (directory / "standin.py").chmod(0o755)

    def backend(self, *habit: str, **options: Any) -> ProcessBackend:
        command = (self.python, "-I", "-S", self.standin, *(habit or ("idle",)))
        return super().backend(**({"agent_command": command, "uids": UIDS} | options))


@pytest.fixture
def host() -> Iterator[SlotHost]:
    python = reachable_python()
    if python is None:
        pytest.skip("no interpreter here that another user may run")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o711)
        yield SlotHost(directory, python)


@needs_root
def test_each_instance_has_a_user_of_its_own(host: SlotHost) -> None:
    async def test(backend: ProcessBackend) -> None:
        for name in (A, B):
            await backend.create(spec(name), DEADLINE)
        uids = set()
        for name in (A, B):
            facts = host.facts(name)
            users, groups, others = facts["ids"]
            assert set(users) == set(groups) and len(set(users)) == 1
            assert others == []
            assert facts["no_new_privs"] == "1"
            assert facts["umask"] == 0o022
            uids.add(users[0])
        assert uids == {UIDS[0], UIDS[1]}

    host.use(test, "facts")


@needs_root
def test_slots_run_out_come_back_and_survive_a_restart(host: SlotHost) -> None:
    async def test(backend: ProcessBackend) -> None:
        names = [AgentId(f"agent_{n}_{RUN}") for n in range(4)]
        await asyncio.gather(*(backend.create(spec(name), DEADLINE) for name in names[:3]))
        with pytest.raises(NoCapacity, match=r"all 3 uids .* are in use"):
            await backend.create(spec(names[3]), DEADLINE)
        restarted = host.backend()
        with pytest.raises(NoCapacity):
            await restarted.create(spec(names[3]), DEADLINE)
        await restarted.destroy(names[0], DEADLINE)
        await restarted.create(spec(names[3]), DEADLINE)
        await restarted.close()
        await backend.destroy(names[0], DEADLINE)

    host.use(test)


@needs_root
def test_an_instance_cannot_read_what_is_not_its_own(host: SlotHost) -> None:
    directory = host.root.parent
    key = directory / "secret.key"
    key.touch(mode=0o600)
    key.write_text("the key of all secrets")
    targets = [
        key,
        host.root / A,
        host.root / A / "instance.json",
        host.root / A / "warden",
        host.root / A / "output",
        host.home(A),
        host.home(A) / "agent.json",
        host.home(A) / "work",
        host.root / B / "instance.json",
        host.root,
    ]

    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(A), DEADLINE)
        await backend.create(spec(B), DEADLINE)
        results = json.loads(host.said("results", B))
        assert results == {str(path): "Permission denied" for path in targets}

    host.use(test, "read", *(str(path) for path in targets))


@needs_root
def test_caches_are_per_pool_and_user(host: SlotHost) -> None:
    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(), DEADLINE)
        cache = Path(host.facts()["config"]["cache_dir"])
        assert cache == host.root.parent / "cache" / "small" / str(UIDS.start)
        assert (cache.stat().st_uid, cache.stat().st_mode & 0o777) == (UIDS.start, 0o700)

    host.use(test, "facts")


@needs_root
def test_the_own_uid_finds_what_hides_its_marker(host: SlotHost) -> None:
    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(), DEADLINE)
        pids = host.pids(1)
        os.kill(host.warden(), signal.SIGKILL)
        await eventually_async(lambda: left_of() == [])
        assert all(alive(pid) for pid in pids)
        await backend.destroy(A, DEADLINE)
        assert not any(alive(pid) for pid in pids)

    host.use(test, "hidden", host_cgroups=NO_CGROUPS)


@needs_root
def test_a_uid_that_somebody_uses_is_not_lent(host: SlotHost) -> None:
    stranger = subprocess.Popen(["/bin/sleep", "1000"], user=UIDS.start, group=UIDS.start, extra_groups=[], cwd="/")
    try:

        async def test(backend: ProcessBackend) -> None:
            await backend.create(spec(), DEADLINE)
            assert host.facts()["ids"][0][0] == UIDS[1]
            await backend.destroy(A, DEADLINE)
            assert alive(stranger.pid)

        host.use(test, "facts")
    finally:
        stranger.kill()
        stranger.wait(20)


@needs_root
def test_files_of_any_owner_are_removed(host: SlotHost) -> None:
    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(), DEADLINE)
        for owner in (0, UIDS[2]):
            path = host.home() / "work" / f"of-{owner}"
            path.mkdir()
            (path / "file").write_text("x")
            os.chown(path / "file", owner, owner)
            os.chown(path, owner, owner)
            path.chmod(0o000)
        await backend.destroy(A, DEADLINE)
        assert not (host.root / A).exists()

    host.use(test)


@needs_root
def test_check_tells_an_unpassable_directory(host: SlotHost) -> None:
    async def levels(backend: ProcessBackend) -> dict[str, str]:
        return {finding.message: finding.level for finding in await backend.check()}

    async def test(backend: ProcessBackend) -> None:
        assert "failed" not in (await levels(backend)).values()
        host.root.parent.chmod(0o700)
        failed = [message for message, level in (await levels(backend)).items() if level == "failed"]
        assert failed and f"uid {UIDS.start} cannot reach what an agent needs" in failed[0]
        host.root.parent.chmod(0o711)

    host.use(test, python=host.python)


@needs_root
def test_a_named_user(host: SlotHost) -> None:
    async def test(backend: ProcessBackend) -> None:
        await backend.create(spec(user="nobody"), DEADLINE)
        assert set(host.facts()["ids"][0]) == {65534}
        journal = json.loads((host.root / A / "instance.json").read_text())
        assert journal["slot"] == -1, "others may have processes of that user"

    host.use(test, "facts", uids=None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may become anybody")
def test_slots_need_root(tmp_path: Path) -> None:
    async def test(backend: ProcessBackend) -> None:
        with pytest.raises(Denied, match="started as root"):
            await backend.create(spec(), DEADLINE)
        assert any(f.level == "failed" and "root" in f.message for f in await backend.check())

    Host(tmp_path).use(test, uids=UIDS)
