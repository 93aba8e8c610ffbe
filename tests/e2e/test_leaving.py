# SPDX-License-Identifier: Apache-2.0
"""Agents that are told to leave, and a server that stops in the middle of everything."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

from bench.harness import Server, agent_config, launch_agent, restart, server

from corral.model.ids import AgentId
from corral.model.spec import OnLost
from corral.model.views import DrainAgent
from tests.e2e.support import alive, config, job, run_of, until_agent, until_over, until_state, whole_log
from tests.waiting import eventually_async


async def _static(running: Server) -> str:
    path = await agent_config(running, "local")
    running.agents.append(launch_agent(path))
    agent_id: str = json.loads(path.read_text())["agent_id"]
    await until_agent(running, agent_id, "online")
    return agent_id


def test_r8_and_r9_a_drained_agent_ends_its_job_takes_no_other_and_ends(tmp_path: Path) -> None:
    go = tmp_path / "go"

    async def scenario() -> None:
        async with server(config(max_agents=0)) as running:
            agent_id = await _static(running)
            process = running.agents[0]
            run = await running.client.create_run(run_of(job("j", f"while [ ! -e {go} ]; do sleep 0.05; done; echo x")))
            await until_state(running, run.id, "j", "running")
            waits = await running.client.create_run(run_of(job("waits", "echo y")))
            view = await running.client.drain_agent(AgentId(agent_id))
            assert view.hold == "drain"
            go.touch()
            assert (await until_over(running, run.id)).state == "succeeded"
            assert await asyncio.to_thread(process.wait, 20) == 0
            assert (await running.client.run(waits.id)).state == "queued"
            why = await running.client.why(waits.jobs[0].id)
            assert "fits; it is not connected" in " ".join(why.sentences)
            await _static(running)
            assert (await until_over(running, waits.id)).state == "succeeded"

    asyncio.run(scenario())


def test_r9_a_job_is_handed_back_at_once_and_runs_elsewhere(tmp_path: Path) -> None:
    flag = tmp_path / "flag"

    async def scenario() -> None:
        async with server(config(max_agents=0)) as running:
            agent_id = await _static(running)
            run = await running.client.create_run(
                run_of(job("j", f"if mkdir {flag}; then sleep 600; fi; echo again", on_lost=OnLost.RETRY))
            )
            await until_state(running, run.id, "j", "running")
            await eventually_async(flag.exists, "the first try", 20)
            other = await _static(running)
            began = time.monotonic()
            await running.client.drain_agent(AgentId(agent_id), DrainAgent(hand_back_after=0))
            view = await until_over(running, run.id)
            assert view.state == "succeeded"
            assert time.monotonic() - began < 15
            assert view.jobs[0].agent_id == other
            assert (await whole_log(running, view.jobs[0])).endswith(b"again\n")
            assert await asyncio.to_thread(running.agents[0].wait, 20) == 0

    asyncio.run(scenario())


def test_s1_a_server_stopped_while_instances_come_up_leaves_none_behind() -> None:
    """It stops in time, whatever is under way; the next one goes on, and gives everything back."""

    async def scenario() -> None:
        async with server(config(max_agents=3)) as running:
            run = await running.client.create_run(run_of(*(job(f"j{n}", "sleep 600") for n in range(3))))
            await eventually_async(lambda: (running.state_dir / "work").exists(), "creating begins", 20)
            began = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(40) == 0
            assert time.monotonic() - began < 20
            restart(running)
            for name in ("j0", "j1", "j2"):
                await until_state(running, run.id, name, "running", deadline=60)
            assert len({each.agent_id for each in (await running.client.run(run.id)).jobs}) == 3
            await running.client.cancel_run(run.id, force=True)
            await until_over(running, run.id)

            async def nobody() -> bool:
                return not await running.client.agents()

            await eventually_async(nobody, "every instance given back", 30)
            assert not alive(str(running.state_dir / "work"))

    asyncio.run(scenario())
