# SPDX-License-Identifier: Apache-2.0
"""The configuration of a running server: replaced as a whole, by signal and by command, or not at all."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from bench.harness import Server, restart, server

from corral.model.errors import CorralError
from corral.model.views import PoolView
from tests.e2e.support import config, job, run_of, until_over, until_state
from tests.waiting import eventually_async

SECOND = """\
  - name: second
    backend: process
    labels: [second]
    max_agents: 2
"""


def with_second(text: str) -> str:
    return text.replace("timing:\n", SECOND + "timing:\n", 1)


def without_local(text: str) -> str:
    begin, end = text.index("  - name: local"), text.index("timing:")
    return text[:begin] + SECOND + text[end:]


async def pools(running: Server) -> dict[str, PoolView]:
    return {pool.name: pool for pool in await running.client.pools()}


def log(running: Server) -> str:
    return (running.state_dir / "server.log").read_text()


async def hang_up(running: Server, says: str) -> None:
    before = log(running).count(says)
    os.kill(running.process.pid, signal.SIGHUP)
    await eventually_async(lambda: log(running).count(says) > before, says)


async def cli(running: Server, *words: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "corral.cli", *words, "--state-dir", str(running.state_dir)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


def test_a_pool_is_added_and_a_removed_one_drains_while_its_job_goes_on(tmp_path: Path) -> None:
    """Q3, D3: nothing waits for the old pool to be empty, and nothing that works is ended."""
    go = tmp_path / "go"
    text = config()

    async def scenario() -> None:
        async with server(text) as running:
            file = running.state_dir / "bench.yaml"
            run = await running.client.create_run(run_of(job("j", f"while [ ! -e {go} ]; do sleep 0.05; done")))
            await until_state(running, run.id, "j", "running")
            file.write_text(with_second(text))
            await hang_up(running, "was reloaded: new: second")
            assert not (await pools(running))["local"].draining
            file.write_text(without_local(text))
            code, said = await cli(running, "config", "reload")
            assert code == 0 and "draining: local" in said
            view = (await pools(running))["local"]
            assert view.draining and view.busy == 1
            later = await running.client.create_run(run_of(job("later", "true", label="second")))
            assert (await until_over(running, later.id)).state == "succeeded"
            # Known as draining also to the next process, which never saw it configured.
            running.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(running.process.wait, 30)
            await asyncio.to_thread(restart, running)
            assert (await pools(running))["local"].draining
            go.touch()
            assert (await until_over(running, run.id)).state == "succeeded"

            async def forgotten() -> bool:
                return "local" not in await pools(running)

            await eventually_async(forgotten)

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["signal", "command"])
def test_one_fault_changes_nothing_and_ends_nothing(how: str) -> None:
    """Bug 24 of the reference: a refused file is never answered with success."""
    text = config()

    async def scenario() -> None:
        async with server(text) as running:
            file = running.state_dir / "bench.yaml"
            file.write_text(with_second(text).replace("max_agents: 2", "max_agents: 2\n    max_memory: 4Gi"))
            if how == "signal":
                await hang_up(running, "was not reloaded")
                assert "4Gi" in log(running)
            else:
                code, said = await cli(running, "config", "reload")
                assert code == 2 and "4Gi" in said and "bench.yaml:" in said
                with pytest.raises(CorralError):
                    await running.client.reload_config()
            assert list(await pools(running)) == ["local"]
            run = await running.client.create_run(run_of(job("j", "true")))
            assert (await until_over(running, run.id)).state == "succeeded"

    asyncio.run(scenario())


def test_a_backend_does_not_change_and_what_is_read_at_a_start_is_named() -> None:
    text = config()

    async def scenario() -> None:
        async with server(text) as running:
            file = running.state_dir / "bench.yaml"
            file.write_text(text + "listen: 127.0.0.1:1\n")
            view = await running.client.reload_config()
            assert view.at_next_start == ("listen",) and not view.changed
            changed = text.replace(
                "backend: process", "backend: event\n    provisioner:\n      exec: {command: [true]}"
            )
            file.write_text(changed)
            with pytest.raises(CorralError, match="backend"):
                await running.client.reload_config()
            assert (await pools(running))["local"].backend == "process"

    asyncio.run(scenario())
