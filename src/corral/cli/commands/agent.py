# SPDX-License-Identifier: Apache-2.0
"""``corral agent``: one agent, by the file a backend wrote or a static one by its token; and how it is installed."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from corral.cli.failing import say
from corral.cli.output import write
from corral.model.errors import PermanentError, Refused
from corral.runtime.logs import FORMAT_VARIABLE, LogFormat

app = typer.Typer(
    help="Run one agent until its work is done.", rich_markup_mode=None, add_completion=False, no_args_is_help=False
)


class CannotStart(PermanentError):
    """What the agent was given cannot be used."""

    code = "agent_cannot_start"


class SpoolFull(StrEnum):
    PAUSE = "pause"
    DROP = "drop"


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="The file that tells the agent who it is (0600).")
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option("--url", envvar="CORRAL_URL", help="Static agent: a coordinator to dial; may be repeated."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="Static agent: the file with the token of `corral token create --labels`."),
    ] = None,
    work_dir: Annotated[Path, typer.Option("--work-dir", help="Static agent: where jobs run and caches stay.")] = Path(
        "corral-agent"
    ),
    spool_full: Annotated[
        SpoolFull,
        typer.Option(
            "--spool-full",
            help="Static agent: where the coordinator takes no log for long, let steps wait, or drop and count bytes.",
        ),
    ] = SpoolFull.PAUSE,
    log_format: Annotated[
        LogFormat | None, typer.Option("--log-format", envvar=FORMAT_VARIABLE, help="How to log; default: console.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more.")] = False,
) -> None:
    """Run one agent until its work is done.

    Exit codes are the agent's own (docs/agent.md).
    """
    if context.invoked_subcommand is not None:
        return
    from corral.agent.main import main

    if config is not None:
        raise typer.Exit(main(["--config", str(config), *_logging(log_format, verbose)]))
    if not url or token_file is None:
        raise typer.BadParameter("give --config FILE, or --url URL and --token-file FILE for a static agent")
    raise typer.Exit(_static(url, token_file, work_dir, spool_full, verbose, log_format))


def _logging(log_format: LogFormat | None, verbose: bool) -> list[str]:
    """The options of the agent's own command line."""
    return [*(["--log-format", log_format] if log_format else []), *(["--verbose"] if verbose else [])]


def _static(
    urls: list[str],
    token_file: Path,
    work_dir: Path,
    spool_full: SpoolFull,
    verbose: bool,
    log_format: LogFormat | None,
) -> int:
    from corral.agent.configfile import ConfigFault
    from corral.agent.main import run as run_agent
    from corral.agent.static import static_config

    try:
        config = static_config(urls, token_file, work_dir, spool_full=spool_full.value)
        return run_agent(config, verbose=verbose, log_format=log_format or "")
    except ConfigFault as fault:
        raise CannotStart(str(fault)) from None


@app.command()
def bundle(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it; must not exist, or be empty.")],
    python: Annotated[
        str, typer.Option("--python", metavar="X.Y", help="The Python that will run it; default: this one's version.")
    ] = "",
    arch: Annotated[
        str, typer.Option("--arch", help="The machine that will run it, as `uname -m` says; default: this one's.")
    ] = "",
) -> None:
    """Write an agent as one folder that needs nothing but a Python of that version.

    It may be moved, mounted into containers, or copied into images; DIR/corral-agent starts it. For another Python
    or machine than this one the compiled parts are fetched with pip.
    """
    from corral.cli.bundle import Target, build

    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    made = build(directory.absolute(), Target.parse(python or here, arch or os.uname().machine))
    say(f"{made.size / 1e6:.1f} MB for Python {made.target.python} on {made.target.arch}; start it with:")
    write(f"{directory / 'corral-agent'} --config FILE")


@app.command("systemd-unit")
def systemd_unit(
    url: Annotated[
        list[str] | None,
        typer.Option("--url", envvar="CORRAL_URL", help="A coordinator to dial; may be repeated."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="The file with the agent's token; default: /etc/corral/agent.token (only root has to be able to read "
            "it), with --user ~/.config/corral/agent.token.",
        ),
    ] = None,
    account: Annotated[str, typer.Option("--account", help="The system user that jobs run as.")] = "corral-agent",
    user: Annotated[bool, typer.Option("--user", help="A unit for `systemctl --user`, without root.")] = False,
) -> None:
    """Print a unit that keeps a static agent running.

    Write it to /etc/systemd/system/corral-agent.service, or with --user to
    ~/.config/systemd/user/corral-agent.service; then `systemctl [--user] enable --now corral-agent`.
    """
    from corral.cli.systemd import unit

    if not url:
        raise Refused("name the coordinator that the agent shall dial: --url URL")
    write(unit(tuple(url), token_file, account=account, user=user))
