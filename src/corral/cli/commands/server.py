# SPDX-License-Identifier: Apache-2.0
"""``corral server``: a coordinator until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from corral.cli.failing import say
from corral.cli.options import StateDir
from corral.runtime.logs import FORMAT_VARIABLE, LogFormat, configure


def command(
    context: typer.Context,
    state_dir: StateDir = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen; default 127.0.0.1:7420.")
    ] = "",
    config: Annotated[
        Path | None, typer.Option("--config", envvar="CORRAL_CONFIG", help="The configuration file (YAML).")
    ] = None,
    allow_root: Annotated[
        bool, typer.Option("--allow-root", help="Let jobs run as root: only where all that runs is trusted.")
    ] = False,
    log_format: Annotated[
        LogFormat | None,
        typer.Option("--log-format", envvar=FORMAT_VARIABLE, help="How to log; default: log_format, else console."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Run a coordinator until SIGTERM or Ctrl-C.

    Its agents go on with their jobs, and find the next coordinator.
    """
    from corral.cli.config import load_config
    from corral.cli.serving import ServerOptions, serve_forever
    from corral.cli.statedir import default_state_dir

    loaded = load_config(config) if config is not None else None
    configured = LogFormat(loaded.log_format) if loaded is not None else LogFormat.CONSOLE
    configure(log_format or configured, verbose=verbose)
    options = ServerOptions(
        state_dir=state_dir or default_state_dir(),
        listen=listen,
        config=config,
        allow_root=allow_root,
        on_ready=lambda url: say(f"corral server ready at {url}"),
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve_forever(options))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one: it halves the cost of a round trip."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
