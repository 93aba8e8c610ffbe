# SPDX-License-Identifier: Apache-2.0
"""``corral agent``: one agent, as ``python -m corral.agent`` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    config: Annotated[Path, typer.Option("--config", help="The file that tells the agent who it is (0600).")],
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more.")] = False,
) -> None:
    """Run one agent until its work is done; exit codes are the agent's own (docs/agent.md)."""
    from corral.agent.main import main

    raise typer.Exit(main(["--config", str(config), *(["--verbose"] if verbose else [])]))
