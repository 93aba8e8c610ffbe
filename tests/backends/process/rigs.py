# SPDX-License-Identifier: Apache-2.0
"""Process backends with stand-in agents, and eyes for what is left of them."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corral.backends.interface import InstanceSpec
from corral.backends.process import procfs, strays
from corral.backends.process.backend import ProcessBackend
from corral.backends.process.environment import MARKER
from corral.model.ids import AgentId, ClusterId
from corral.model.secret import Secret
from tests.waiting import eventually

STANDIN = str(Path(__file__).with_name("standin.py"))
WARDEN = str(Path(strays.__file__).with_name("warden.py"))
RUN = secrets.token_hex(4)
"""Two runs of these tests at once on one host must not take each other's instances for their own."""
A, B = AgentId(f"agent_a_{RUN}"), AgentId(f"agent_b_{RUN}")
CLUSTER = ClusterId("corral-test")
DEADLINE = 20.0
Test = Callable[[ProcessBackend], Awaitable[None]]


def agent_command(*habit: str, python: str = sys.executable) -> tuple[str, ...]:
    return (python, "-I", "-S", STANDIN, *habit)


def spec(name: str = A, **changes: Any) -> InstanceSpec:
    values: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "agent_id": AgentId(name),
        "pool": "small",
        "labels": frozenset(),
        "claim_code": Secret("very-secret-claim"),
        "coordinator_urls": ("http://127.0.0.1:1",),
    }
    return InstanceSpec(**(values | changes))


class Host:
    """A directory for instances; ``use`` runs a test with a backend on it and destroys what is left."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "instances"

    def backend(self, *habit: str, **options: Any) -> ProcessBackend:
        defaults: dict[str, Any] = {
            "cluster_id": CLUSTER,
            "root": self.root,
            "agent_command": agent_command(*(habit or ("idle",))),
            "kill_grace": 0.5,
            "min_free": 0,
        }
        return ProcessBackend(**(defaults | options))

    def use(self, test: Test, *habit: str, **options: Any) -> None:
        async def go() -> None:
            backend = self.backend(*habit, **options)
            try:
                await test(backend)
            finally:
                for instance in await backend.list():
                    await backend.destroy(instance.agent_id, DEADLINE)
                await backend.close()

        asyncio.run(go())

    def home(self, name: str = A) -> Path:
        return self.root / name / "home"

    def said(self, word: str, name: str = A) -> str:
        """What the stand-in left under ``word``, as soon as it is there."""
        path = self.home(name) / word
        eventually(path.exists, f"{path} is written")
        return path.read_text()

    def facts(self, name: str = A) -> dict[str, Any]:
        return json.loads(self.said("facts", name))  # type: ignore[no-any-return]

    def warden(self, name: str = A) -> int:
        return int((self.root / name / "warden").read_text().split()[0])

    def pids(self, count: int, name: str = A) -> list[int]:
        """The processes that the stand-in has set loose, once there are that many."""
        directory = self.home(name) / "pids"
        return eventually(
            lambda: (
                found
                if directory.exists() and len(found := [int(p.name) for p in directory.iterdir()]) >= count
                else None
            ),
            f"{count} processes are set loose",
        )


def alive(pid: int) -> bool:
    seen = procfs.stat(pid)
    return seen is not None and not seen.gone


def left_of(name: str = A) -> list[int]:
    """Living processes that carry the instance's marker."""
    return [pid for pid in procfs.pids() if alive(pid) and name in strays.markers_of(pid)]


class Warden:
    """A warden started by hand. ``exit`` is what it wrote last."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self.directory = directory
        self.process = process

    @property
    def exit(self) -> dict[str, Any]:
        return json.loads((self.directory / "exit.json").read_text())  # type: ignore[no-any-return]

    @property
    def agent(self) -> int:
        return int(self.said("up"))

    def said(self, word: str) -> str:
        path = self.directory / word
        eventually(path.exists, f"{path} is written")
        return path.read_text()

    def wait(self) -> dict[str, Any]:
        self.process.wait(20)
        return self.exit

    def children(self) -> list[int]:
        return procfs.children(self.process.pid)


@contextmanager
def warden(directory: Path, *habit: str, options: tuple[str, ...] = (), fds: tuple[int, ...] = ()) -> Iterator[Warden]:
    """The warden in its usual bare interpreter; killed, with all it holds, at the end."""
    directory.mkdir(exist_ok=True)
    config = directory / "agent.json"
    config.write_text(json.dumps({"grant_fd": 3}))
    command = [sys.executable, "-I", "-S", WARDEN, str(directory), *options, "--", *agent_command(*habit)]
    process = subprocess.Popen(
        [*command, "--config", str(config)],
        stdin=subprocess.DEVNULL,
        pass_fds=fds,
        start_new_session=True,
        env={"PATH": os.environ["PATH"], MARKER: str(directory)},
    )
    try:
        yield Warden(directory, process)
    finally:
        for pid in (process.pid, *left_of(str(directory))):
            if process.poll() is None or pid != process.pid:
                os.kill(pid, 9)
        process.wait(20)
