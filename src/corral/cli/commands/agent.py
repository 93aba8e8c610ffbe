# SPDX-License-Identifier: Apache-2.0
"""``corral agent``: one agent, by the file a backend wrote, or a static one by its token."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from corral.model.agentconfig import DEFAULT_INHERIT_ENV, AgentConfig
from corral.model.errors import PermanentError


class BadToken(PermanentError):
    """The file does not hold an agent's token."""

    code = "bad_token"


def command(
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
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more.")] = False,
) -> None:
    """Run one agent until its work is done.

    Exit codes are the agent's own (docs/agent.md).
    """
    from corral.agent.main import main

    flags = ["--verbose"] if verbose else []
    if config is not None:
        raise typer.Exit(main(["--config", str(config), *flags]))
    if not url or token_file is None:
        raise typer.BadParameter("give --config FILE, or --url URL and --token-file FILE for a static agent")
    written = _static_config(tuple(url), token_file, work_dir.absolute())
    try:
        raise typer.Exit(main(["--config", str(written), *flags]))
    finally:
        written.unlink(missing_ok=True)


def _static_config(urls: tuple[str, ...], token_file: Path, work_dir: Path) -> Path:
    """The agent's own configuration file, readable by us alone, for as long as it runs.

    :raises BadToken: the token file cannot be read, or holds something else.
    """
    try:
        agent_id, dot, key = token_file.read_text().strip().partition(".")
    except (OSError, UnicodeDecodeError) as error:
        raise BadToken(f"cannot read the token file {token_file}: {getattr(error, 'strerror', error)}") from None
    if not dot or not agent_id.startswith("agent_") or not key:
        raise BadToken(
            f"{token_file} does not hold an agent's token; make one with `corral token create NAME --labels …`"
        )
    for directory in (work_dir / "work", work_dir / "cache"):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    config = AgentConfig(
        agent_id=agent_id,
        coordinator_urls=urls,
        key=key,
        single_use=False,
        work_dir=str(work_dir / "work"),
        cache_dir=str(work_dir / "cache"),
        inherit_env=DEFAULT_INHERIT_ENV,
    )
    fd, name = tempfile.mkstemp(prefix="agent-", suffix=".json", dir=work_dir)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(config))
    return Path(name)
