# SPDX-License-Identifier: Apache-2.0
"""The network between agents and the server goes away in every way there is."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from bench.harness import Server, agent_config, launch_agent, server

from tests.e2e.proxy import Proxy
from tests.e2e.support import (
    config,
    job,
    run_of,
    session_of,
    until_agent,
    until_over,
    until_state,
    verified,
    whole_log,
)
from tests.waiting import eventually_async

MIB = 1024 * 1024
CUTS = 5


async def _static(running: Server, proxy: Proxy) -> str:
    """A static agent's process, online, that knows only the proxy; its id."""
    path = await agent_config(running, "local", coordinator_urls=[proxy.url])
    running.agents.append(launch_agent(path))
    agent_id: str = json.loads(path.read_text())["agent_id"]
    await until_agent(running, agent_id, "online")
    return agent_id


def _printing(copy: Path, pieces: int, piece: int, pause: float) -> str:
    """Noise, in pieces, to the log and to a file."""
    return f"for n in $(seq {pieces}); do head -c {piece} /dev/urandom | tee -a {copy}; sleep {pause}; done"


@pytest.mark.parametrize(
    ("size", "seconds"),
    [(20 * MIB, 1.5), pytest.param(200 * MIB, 30.0, marks=pytest.mark.nightly)],
    ids=["20-MB", "200-MB"],
)
def test_a_connection_cut_five_times_while_a_job_prints_costs_no_byte(
    tmp_path: Path, size: int, seconds: float
) -> None:
    """G1: reset or gone silent in turn, for seconds each, in the middle of the printing."""
    copy = tmp_path / "copy"
    copy.touch()
    pieces = 128

    async def scenario() -> None:
        proxy = Proxy()
        async with server(config(max_agents=0, url=proxy.url)) as running, proxy.running(running.url):
            agent_id = await _static(running, proxy)
            script = _printing(copy, pieces, size // pieces, CUTS * (seconds + 1) / pieces)
            run = await running.client.create_run(run_of(job("noisy", script)))
            for cut in range(CUTS):
                part = size * (2 * cut + 1) // (2 * CUTS + 1)
                await eventually_async(lambda part=part: copy.stat().st_size >= part, "printed so far", 300)
                await until_agent(running, agent_id, "online", deadline=120)
                before = session_of(running, agent_id)
                if cut % 2:
                    proxy.silence()
                else:
                    proxy.cut(refuse=True)
                await asyncio.sleep(seconds)
                proxy.cut()
                proxy.restore()
                # The row may still say "online" of the session that was cut.
                await eventually_async(lambda b=before: session_of(running, agent_id) > b, "a new session", 120)
            view = await until_over(running, run.id)
            assert view.state == "succeeded", view
            assert not view.log_incomplete
            printed = await whole_log(running, view.jobs[0])
            assert len(printed) == size
            assert printed == copy.read_bytes()
            await verified(running, view)
            assert session_of(running, agent_id) >= CUTS
            assert view.jobs[0].attempt == 1

    asyncio.run(scenario())


def test_r7_a_half_open_connection_is_dead_on_both_sides_in_agent_dead_after_and_loses_nothing(
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"

    async def scenario() -> None:
        proxy = Proxy()
        timing = {"heartbeat_interval": 0.5, "agent_dead_after": 2}
        async with server(config(max_agents=0, url=proxy.url, **timing)) as running, proxy.running(running.url):
            agent_id = await _static(running, proxy)
            script = f"echo before; while [ ! -e {go} ]; do sleep 0.05; done; echo after"
            run = await running.client.create_run(run_of(job("j", script)))
            await until_state(running, run.id, "j", "running")
            made = proxy.connections
            silent = time.monotonic()
            proxy.silence()
            await until_agent(running, agent_id, "offline", deadline=10)
            assert 1 < time.monotonic() - silent < 4
            # The agent allows the closing handshake two seconds more.
            await eventually_async(lambda: proxy.connections > made, "the agent dials again", 10)
            assert time.monotonic() - silent < 7
            proxy.cut()
            proxy.restore()
            go.touch()
            view = await until_over(running, run.id)
            assert view.state == "succeeded"
            assert await whole_log(running, view.jobs[0]) == b"before\nafter\n"
            assert view.jobs[0].attempt == 1
            assert session_of(running, agent_id) == 2

    asyncio.run(scenario())


def test_r7_a_new_session_replaces_the_half_open_one_at_once(tmp_path: Path) -> None:
    """The server is not told that the old connection is gone; it would believe in it for a minute."""
    go = tmp_path / "go"

    async def scenario() -> None:
        proxy = Proxy()
        async with server(config(max_agents=0, url=proxy.url)) as running, proxy.running(running.url):
            agent_id = await _static(running, proxy)
            run = await running.client.create_run(run_of(job("j", f"while [ ! -e {go} ]; do sleep 0.05; done; echo x")))
            await until_state(running, run.id, "j", "running")
            proxy.cut_agents()
            await eventually_async(lambda: session_of(running, agent_id) == 2, "a second session", 10)
            go.touch()
            view = await until_over(running, run.id)
            assert view.state == "succeeded"
            assert (await until_agent(running, agent_id, "online")).state == "online"
            # 57: the end of the old connection must not tear down the registration that replaced it.
            proxy.cut_agents()
            await eventually_async(lambda: session_of(running, agent_id) == 3, "a third session", 10)
            again = await running.client.create_run(run_of(job("k", "echo y")))
            assert (await until_over(running, again.id)).state == "succeeded"

    asyncio.run(scenario())
