# SPDX-License-Identifier: Apache-2.0
"""The command line on a coordinator with memory: the wiring that tests give to ``corral``."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from typer.testing import CliRunner, Result

from corral.cli.app import app
from corral.cli.wired import Session
from corral.client import AppTransport, Client
from corral.control.api import Principal, Role
from corral.model.errors import CorralError
from corral.model.ids import TokenId
from corral.web.app import create_app
from tests.web.fake_api import FakeApi

LOCAL = Principal(token_id=TokenId("tok_local"), name="local", role=Role.ADMIN)


@dataclass
class DoubleWiring:
    """``play``: what happens to runs while an all-in-one coordinator lives. ``asked``: what commands asked for."""

    api: FakeApi = field(default_factory=FakeApi)
    live: bool = False
    play: Callable[[FakeApi], Any] | None = None
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    stops: list[bool] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        # Each command has a loop of its own; the records stay.
        self.api.changed = asyncio.Condition()
        app = create_app(self.api, local=LOCAL)
        async with Client("http://corral", "", AppTransport(app), retries=0) as client:
            yield client

    @contextlib.asynccontextmanager
    async def open_client(self, state_dir: Path | None, url: str | None, token: str | None) -> AsyncIterator[Client]:
        self.asked.append((state_dir, url, token))
        async with self._client() as client:
            yield client

    @contextlib.asynccontextmanager
    async def all_in_one(
        self,
        state_dir: Path,
        *,
        max_agents: int | None = None,
        inherit_env: tuple[str, ...] | None = None,
        on_ready: Callable[[str], None] = lambda url: None,
    ) -> AsyncIterator[Any]:
        self.asked.append(("all_in_one", state_dir, max_agents))

        async def stop(*, kill: bool = False) -> int:
            self.stops.append(kill)
            return 0

        async def trouble() -> CorralError:
            return await asyncio.get_running_loop().create_future()

        async with self._client() as client:
            player = asyncio.create_task(self.play(self.api)) if self.play else None
            yield SimpleNamespace(client=client, url="http://corral", state_dir=state_dir, stop=stop, trouble=trouble)
            if player is not None:
                player.cancel()
                await asyncio.gather(player, return_exceptions=True)

    def live_server(self, state_dir: Path) -> object | None:
        return object() if self.live else None


def corral(*words: str, wiring: Any = None, input: str | None = None, env: dict[str, str] | None = None) -> Result:
    """Run a command in this process."""
    runner = CliRunner(env={"NO_COLOR": "1", **(env or {})})
    return runner.invoke(app, list(words), input=input, obj=Session(wiring=wiring), prog_name="corral")


def git(tree: Path, *words: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *settings, *words], cwd=tree, check=True, capture_output=True, text=True)
    return done.stdout.strip()


WORKFLOW = """\
from corral.workflow import Workflow, sh

ci = Workflow("ci")
build = ci.job("build", steps=[sh("echo building")])
ci.job("test", needs=[build], steps=[sh("echo testing")])
"""


def make_tree(place: Path, workflow: str = WORKFLOW) -> Path:
    """A git work tree with one commit."""
    (place / ".corral" / "workflows").mkdir(parents=True)
    (place / ".corral" / "workflows" / "ci.py").write_text(workflow)
    (place / "README").write_text("hello\n")
    git(place, "init", "-q", "-b", "main")
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "Begin")
    return place
