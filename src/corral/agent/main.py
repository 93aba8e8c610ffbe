# SPDX-License-Identifier: Apache-2.0
"""``python -m corral.agent --config FILE``: one agent process. Exit codes: ``ending.py``, ``docs/agent.md``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from corral.agent import kernel
from corral.agent.configfile import ConfigFault, WorkLock, load
from corral.agent.ending import Ending, ExitCode
from corral.agent.facts import host_facts
from corral.agent.runner import HostRunner
from corral.agent.worker import KEY_PREFIX, Worker
from corral.model.agentconfig import AgentConfig
from corral.runtime.chance import SystemChance, secret_token
from corral.runtime.clock import SystemClock

USAGE = "usage: python -m corral.agent --config FILE [--verbose]"

log = logging.getLogger("corral.agent")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an agent to its end; the exit code."""
    options = list(sys.argv[1:] if arguments is None else arguments)
    verbose = "--verbose" in options
    options = [option for option in options if option != "--verbose"]
    if options in (["--help"], ["-h"]):
        _say(USAGE, to=1)
        return ExitCode.DONE
    if len(options) != 2 or options[0] != "--config":
        _say(USAGE)
        return ExitCode.CONFIG
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        config = load(Path(options[1]))
        with WorkLock(Path(config.work_dir)):
            ending = asyncio.run(_run(config, Path(options[1])))
    except ConfigFault as fault:
        _say(f"corral agent: {fault}")
        return ExitCode.CONFIG
    if ending.code is not ExitCode.DONE:
        _say(f"corral agent: {ending.message}")
    return ending.code


async def _run(config: AgentConfig, file: Path) -> Ending:
    # The WebSocket library is the largest import; nothing before this needs it.
    from corral.agent.websocket import WebSocketDial

    kernel.own_orphans()
    chance, clock = SystemChance(), SystemClock()
    key = config.key or secret_token(chance, KEY_PREFIX)
    runner = HostRunner(
        config, coordinators=lambda: worker.coordinators, key=key, nice=kernel.raise_priority(), alone=True
    )
    worker = Worker(
        config=config,
        dial=WebSocketDial(),
        runner=runner,
        clock=clock,
        chance=chance,
        facts=host_facts(),
        key=key,
        tell_warden=_warden(config.grant_fd),
        on_bound=lambda: _wipe(config, file),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop, f"the host sent {number.name}")
    return await worker.run()


def _warden(fd: int) -> Callable[[float], None]:
    if fd < 0:
        return lambda deadline: None
    os.set_blocking(fd, False)
    os.set_inheritable(fd, False)

    def tell(deadline: float) -> None:
        # A full pipe means a warden that does not read; it then acts on an earlier deadline, which is safe.
        with contextlib.suppress(OSError):
            os.write(fd, f"{deadline:.3f}\n".encode())

    return tell


def _wipe(config: AgentConfig, file: Path) -> None:
    """The claim is spent: what carried it goes. A static agent's file holds its key and stays."""
    if config.claim_code:
        with contextlib.suppress(OSError):
            file.unlink()


def _say(sentence: str, to: int = 2) -> None:
    os.write(to, (sentence + "\n").encode(errors="replace"))
