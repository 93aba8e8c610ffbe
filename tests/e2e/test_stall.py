# SPDX-License-Identifier: Apache-2.0
"""The log store takes nothing for a while. The server may not let a file grow beyond a few megabytes, as on a disk
that is full; its database stays far below that."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.harness import Server, agent_config, launch_agent, server

from corral.model.spec import OnLost
from tests.e2e.support import config, job, run_of, session_of, until_agent, until_over, until_state, verified, whole_log
from tests.waiting import eventually_async

MIB = 1024 * 1024
FILE_LIMIT = 8 * MIB
SPOOL = 12 * MIB
"""More than an agent sends ahead, so that the window and not the spool is what stops it."""


@contextlib.contextmanager
def _stalled(running: Server) -> Iterator[None]:
    _, hard = resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (FILE_LIMIT, hard))
    try:
        yield
    finally:
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (hard, hard))


async def _online_throughout(running: Server, agent_id: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        agent = next(each for each in await running.client.agents() if each.id == agent_id)
        assert agent.state == "online"
        await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    ("size", "seconds", "dead_after"),
    [(32 * MIB, 8.0, 2.0), pytest.param(200 * MIB, 60.0, 20.0, marks=pytest.mark.nightly)],
    ids=["8-s", "60-s"],
)
def test_a_log_store_that_stalls_slows_the_job_drops_no_session_and_costs_no_byte(
    tmp_path: Path, size: int, seconds: float, dead_after: float
) -> None:
    """It stalls for several times as long as a silent agent may live, and as a job that may be tried again may go on
    without an answer to its agent: heartbeats are answered throughout. G5: a follower sees all of it, to the end."""
    copy = tmp_path / "copy"
    copy.touch()
    timing = {"heartbeat_interval": dead_after / 4, "agent_dead_after": dead_after, "lost_after": 21 + dead_after}

    async def scenario() -> None:
        async with server(config(max_agents=0, **timing)) as running:
            path = await agent_config(running, "local", spool_limit=SPOOL)
            running.agents.append(launch_agent(path))
            agent_id = json.loads(path.read_text())["agent_id"]
            await until_agent(running, agent_id, "online")
            script = f"for n in $(seq {size // 65536}); do head -c 65536 /dev/urandom | tee -a {copy}; done"
            with _stalled(running):
                run = await running.client.create_run(run_of(job("noisy", script, on_lost=OnLost.RETRY)))
                following = asyncio.create_task(_followed(running, run.jobs[0].id))
                await eventually_async(lambda: _stands_still(copy), "the job is slowed", 60)
                stood = copy.stat().st_size
                assert stood < FILE_LIMIT + 2 * SPOOL
                await _online_throughout(running, agent_id, seconds)
                assert copy.stat().st_size == stood
                assert running.resident_mb() < 250
                assert not following.done()
                assert (await running.client.run(run.id)).state == "running"
            view = await until_over(running, run.id)
            assert view.state == "succeeded", view
            assert not view.log_incomplete
            assert copy.stat().st_size == size
            assert await whole_log(running, view.jobs[0]) == copy.read_bytes()
            assert await following == copy.read_bytes()
            await verified(running, view)
            assert session_of(running, agent_id) == 1

    asyncio.run(scenario())


def test_g5_a_job_that_ended_while_its_last_bytes_wait_for_the_store_is_followed_to_the_last(tmp_path: Path) -> None:
    """The agent spools all of it and ends the job; the store takes the rest later."""
    printed = tmp_path / "printed"

    async def scenario() -> None:
        async with server(config(max_agents=0)) as running:
            running.agents.append(launch_agent(await agent_config(running, "local")))
            script = f"head -c {FILE_LIMIT + MIB} /dev/urandom; echo last; touch {printed}"
            with _stalled(running):
                run = await running.client.create_run(run_of(job("j", script)))
                following = asyncio.create_task(_followed(running, run.jobs[0].id))
                await eventually_async(printed.exists, "all is printed", 60)
                await until_state(running, run.id, "j", "running")
                assert not following.done()
            view = await until_over(running, run.id)
            assert view.state == "succeeded"
            seen = await following
            assert len(seen) == FILE_LIMIT + MIB + 5
            assert seen.endswith(b"last\n")
            await verified(running, view)

    asyncio.run(scenario())


async def _followed(running: Server, job_id: str) -> bytes:
    return b"".join([part.data async for part in running.client.follow_log(job_id)])


async def _stands_still(copy: Path) -> bool:
    """Printing has begun, and nothing more comes for a second."""
    before = copy.stat().st_size
    await asyncio.sleep(1.0)
    return 0 < before == copy.stat().st_size
