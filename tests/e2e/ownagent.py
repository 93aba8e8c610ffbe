# SPDX-License-Identifier: Apache-2.0
"""A static agent with a configuration of the test's own, at a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from bench.harness import Server, online

from corral.model.agentconfig import AgentConfig
from corral.model.views import NewToken


async def own_agent(running: Server, directory: Path, label: str, **fields: Any) -> subprocess.Popen[bytes]:
    """Online when this returns; ended with the server. Work and cache are made below ``directory``."""
    count = sum(1 for agent in await running.client.agents() if agent.state == "online")
    created = await running.client.create_token(NewToken(name=f"own-{label}", role="agent", labels=(label,)))
    agent_id, _, key = created.token.partition(".")
    for name in ("work", "cache"):
        (directory / name).mkdir(exist_ok=True, parents=True)
    settings: dict[str, Any] = {"min_free": 0, "single_use": False, **fields}
    config = AgentConfig(
        agent_id=agent_id,
        coordinator_urls=(running.url,),
        key=key,
        work_dir=str(directory / "work"),
        cache_dir=str(directory / "cache"),
        **settings,
    )
    file = directory / "agent.json"
    file.write_bytes(msgspec.json.encode(config))
    command = [sys.executable, "-m", "corral.agent", "--config", str(file)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=dict(os.environ))
    running.agents.append(process)
    await online(running, count + 1)
    return process


def peak_memory(pid: int) -> int:
    """Bytes: the most that the process ever had in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
