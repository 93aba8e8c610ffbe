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
from corral.agent.configfile import ConfigFault, WorkLock, check, load
from corral.agent.ending import Ending, ExitCode
from corral.agent.facts import host_facts
from corral.agent.runner import HostRunner
from corral.agent.worker import KEY_PREFIX, Worker
from corral.model.agentconfig import AgentConfig
from corral.runtime.chance import SystemChance, secret_token
from corral.runtime.clock import SystemClock
from corral.runtime.logs import FORMAT_VARIABLE, LogFormat, bind, configure

USAGE = """\
usage: python -m corral.agent --config FILE [--verbose] [--log-format console|json]
       python -m corral.agent --url URL [--url URL ...] --token-file FILE [--work-dir DIR] [--verbose]
                              [--log-format console|json]"""

log = logging.getLogger("corral.agent")


class _Usage(Exception):
    """The arguments say nothing that can be done."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an agent to its end; the exit code."""
    options = list(sys.argv[1:] if arguments is None else arguments)
    if options in (["--help"], ["-h"]):
        _say(USAGE, to=1)
        return ExitCode.DONE
    verbose = "--verbose" in options
    try:
        return _configured(_values([option for option in options if option != "--verbose"]), verbose)
    except _Usage:
        _say(USAGE)
    except ConfigFault as fault:
        _say(f"corral agent: {fault}")
    return ExitCode.CONFIG


def _values(options: list[str]) -> dict[str, list[str]]:
    """``--name value`` pairs, by name."""
    if len(options) % 2:
        raise _Usage
    values: dict[str, list[str]] = {}
    for name, value in zip(options[::2], options[1::2], strict=True):
        values.setdefault(name, []).append(value)
    return values


def _configured(values: dict[str, list[str]], verbose: bool) -> int:
    log_format = values.pop("--log-format", [""])[-1]
    if values.keys() == {"--config"} and len(values["--config"]) == 1:
        file = Path(values["--config"][0])
        return run(load(file), file=file, verbose=verbose, log_format=log_format)
    if {"--url", "--token-file"} <= values.keys() <= {"--url", "--token-file", "--work-dir"}:
        from corral.agent.static import static_config

        work_dir = Path(values.get("--work-dir", ["corral-agent"])[-1])
        config = static_config(values["--url"], Path(values["--token-file"][-1]), work_dir)
        return run(config, verbose=verbose, log_format=log_format)
    raise _Usage


def run(config: AgentConfig, *, file: Path | None = None, verbose: bool = False, log_format: str = "") -> int:
    """Run this agent to its end; the exit code. ``file``: what carried a claim, removed once that is spent.

    ``log_format``: console or json; empty: what the environment says.

    :raises ConfigFault: the configuration cannot be used.
    """
    check(config)
    configure(_log_format(log_format or os.environ.get(FORMAT_VARIABLE, "")), verbose=verbose)
    bind(agent=config.agent_id)
    with WorkLock(Path(config.work_dir)):
        ending = asyncio.run(_run(config, file))
    if ending.code is not ExitCode.DONE:
        _say(f"corral agent: {ending.message}")
    return ending.code


def _log_format(text: str) -> LogFormat:
    if text and text not in set(LogFormat):
        raise ConfigFault(f"{text!r} is no log format; there are {', '.join(LogFormat)}")
    return LogFormat(text or LogFormat.CONSOLE)


async def _run(config: AgentConfig, file: Path | None) -> Ending:
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


def _wipe(config: AgentConfig, file: Path | None) -> None:
    """The claim is spent: what carried it goes. A static agent's file holds its key and stays."""
    if config.claim_code and file is not None:
        with contextlib.suppress(OSError):
            file.unlink()


def _say(sentence: str, to: int = 2) -> None:
    os.write(to, (sentence + "\n").encode(errors="replace"))
