# SPDX-License-Identifier: Apache-2.0
"""T1 to T6: a canary in everything secret, looked for everywhere: database, write-ahead log, logs, server's and agents'
own output, command lines, environments, events, and what every command prints as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import msgspec
import pytest
from bench.harness import Server, agent_config, launch_agent, server

import corral.web.app  # noqa: F401  (enters the operations into their table)
from corral.model.ids import JobId, RunId, TokenId
from corral.model.spec import JobSpec, StepSpec
from corral.model.views import RotateToken
from corral.web.operations import OPERATIONS
from tests.e2e.support import config, job, run_of, until_agent, until_over, until_state, whole_log
from tests.waiting import eventually_async

SECRET = "canary-5ecre7-9f27"


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
        children.setdefault(parent, []).append(int(entry.name))
    found, pending = [], [root]
    while pending:
        found.append(pending.pop())
        pending += children.get(found[-1], [])
    return found


def _processes(running: Server) -> list[int]:
    roots = [running.process.pid, *(agent.pid for agent in running.agents)]
    wardens = [int(identity.read_text().split()[0]) for identity in (running.state_dir / "work").glob("*/warden")]
    return [pid for root in (*roots, *wardens) for pid in _descendants(root)]


def _steps(pids: list[int]) -> set[int]:
    """Those that run a step: only they may have the secret in their environment."""
    return {pid for pid in pids if b"CORRAL_STEP=" in _read(Path(f"/proc/{pid}/environ"))}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _places(running: Server) -> Iterator[tuple[str, bytes]]:
    """Everything on disk and in the process table but what steps hold."""
    for path in running.state_dir.rglob("*"):
        if path.is_file():
            yield str(path.relative_to(running.state_dir)), _read(path)
    pids = _processes(running)
    assert len(pids) >= 4, "server, two agents, a step"
    steps = _steps(pids)
    assert steps, "the job's step runs now"
    for pid in pids:
        yield f"command line of {pid}", _read(Path(f"/proc/{pid}/cmdline"))
        if pid not in steps:
            yield f"environment of {pid}", _read(Path(f"/proc/{pid}/environ"))


async def _answers(running: Server, run_id: str, job_id: str) -> list[tuple[str, bytes]]:
    """Every answer of the API to a GET, streams included."""
    found = []
    agent_id = (await running.client.job(JobId(job_id))).agent_id
    headers = {"authorization": f"Bearer {running.token}"}
    async with httpx2.AsyncClient(base_url=running.url, headers=headers, timeout=20, trust_env=False) as http:
        for each in OPERATIONS:
            if each.method != "GET" or each.path.startswith("/agent/"):
                continue
            path = each.path.format(run_id=run_id, job_id=job_id, step=0, agent_id=agent_id, name="none")
            response = await http.get(path)
            # No workflow is registered here; whatever is said of that is looked through as well.
            assert response.status_code == (404 if "{name}" in each.path else 200), path
            found.append((path, response.content))
    return found


def _commands(running: Server, *commands: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    environment = {**os.environ, "CORRAL_STATE_DIR": str(running.state_dir)}
    for words in commands:
        done = subprocess.run([sys.executable, "-m", "corral.cli", *words], env=environment, capture_output=True)
        assert done.returncode == 0, done.stderr
        yield " ".join(words), done.stdout + done.stderr


def test_t1_to_t6_no_secret_key_or_token_is_anywhere_but_where_it_belongs(tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"

    async def scenario() -> None:
        async with server(config(max_agents=1)) as running:
            path = await agent_config(running, "static")
            running.agents.append(launch_agent(path))
            described = json.loads(path.read_text())
            await until_agent(running, described["agent_id"], "online")
            token = next(view for view in await running.client.tokens() if view.agent_id == described["agent_id"])
            rotated = await running.client.rotate_token(TokenId(token.id), RotateToken(grace=60))
            path.unlink()
            script = f"echo the token is $TOKEN; touch {begun}; while [ ! -e {go} ]; do sleep 0.05; done"
            run = await running.client.create_run(
                run_of(job("j", script, secrets=("TOKEN",)), secrets={"TOKEN": SECRET})
            )
            started = await until_state(running, run.id, "j", "running")
            await eventually_async(begun.exists, "the step runs", 30)
            secrets = {
                "secret": SECRET.encode(),
                "a static agent's key": described["key"].encode(),
                "its next key": rotated.token.partition(".")[2].encode(),
                "the admin token": running.token.encode(),
            }
            belongs = {"admin.token": "the admin token"}
            places = [
                *_places(running),
                *_commands(
                    running,
                    ("runs", "--json"),
                    ("runs", "show", run.id, "--json"),
                    ("logs", run.id, "--json"),
                    ("why", run.id, "--json"),
                    ("agents", "--json"),
                    ("pools", "--json"),
                    ("token", "list", "--json"),
                ),
            ]
            _look(places, secrets, belongs)
            go.touch()
            view = await until_over(running, run.id)
            assert view.state == "succeeded"
            assert await whole_log(running, view.jobs[0]) == b"the token is ***\n"
            answers = await _answers(running, run.id, started.id)
            assert len(answers) > 10
            _look(answers, secrets, {})
            files = [(str(each), _read(each)) for each in running.state_dir.rglob("*") if each.is_file()]
            _look(files, secrets, {str(running.state_dir / "admin.token"): "the admin token"})
            # A kept copy would be sealed, but it is not kept either.
            again = await running.client.run(RunId(run.id))
            assert "TOKEN" not in str(again.jobs)

    asyncio.run(scenario())


def _look(places: list[tuple[str, bytes]], secrets: dict[str, bytes], belongs: dict[str, str]) -> None:
    assert places
    for where, content in places:
        for what, value in secrets.items():
            if belongs.get(where) != what:
                assert value not in content, f"{what} in {where}"


@pytest.mark.parametrize("line", ['echo "$TOKEN"', 'echo "$TOKEN=1"', 'echo "a=$TOKEN"', 'echo "a<<$TOKEN"'])
def test_a_secret_written_to_the_outputs_is_shown_nowhere(line: str) -> None:
    canary = "canary-outputs-5c1e77"

    async def scenario() -> None:
        async with server(config()) as running:
            step = StepSpec(name="s", script=f'{line} >> "$CORRAL_OUTPUT"')
            job = JobSpec(name="j", steps=(step,), runs_on=("local",), checkout=False, secrets=("TOKEN",))
            run = await running.client.create_run(run_of(job, secrets={"TOKEN": canary}))
            async for _ in running.client.watch_run(run.id):
                pass
            whole = await running.client.job(run.jobs[0].id)
            assert canary.encode() not in msgspec.json.encode(whole)
            assert canary.encode() not in (running.state_dir / "corral.db").read_bytes()

    asyncio.run(scenario())
