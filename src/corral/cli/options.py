# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and the connection they describe."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from corral.cli.credentials import saved_token
from corral.cli.wired import wiring_of

if TYPE_CHECKING:
    from corral.client import Client

T = TypeVar("T")


def _directory(text: str) -> Path:
    """An empty text is an unset variable of a script, never the current directory."""
    if not text.strip():
        raise typer.BadParameter("is empty; name a directory, or leave the option out")
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise typer.BadParameter(f"{text} is not a directory")
    return path


StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="CORRAL_STATE_DIR",
        help="Where runs and logs are kept; default $XDG_STATE_HOME/corral.",
        parser=_directory,
        metavar="DIRECTORY",
    ),
]
Url = Annotated[
    str | None,
    typer.Option("--url", envvar="CORRAL_URL", help="The server; without it, whatever holds the state directory."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunRef = Annotated[
    str, typer.Argument(metavar="RUN", help="Id of the run, the beginning of one, or 'latest'.", show_default=False)
]
JobRef = Annotated[
    str | None, typer.Argument(metavar="JOB", help="Name of the job in the run, or its id.", show_default=False)
]
MaxAgents = Annotated[
    int | None, typer.Option("--max-agents", min=1, max=1000, help="Agents at the same time; default: one per core.")
]


def token_for(url: str | None) -> str | None:
    """The token for ``url``: ``CORRAL_TOKEN``, else the one that ``corral login`` saved for it."""
    return os.environ.get("CORRAL_TOKEN") or (saved_token(url) if url else None)


def with_client(
    context: typer.Context, state_dir: Path | None, url: str | None, work: Callable[[Client], Awaitable[T]]
) -> T:
    """Do ``work`` with a client of the server that the options name."""

    async def run() -> T:
        async with wiring_of(context).open_client(state_dir, url, token_for(url)) as client:
            return await work(client)

    return asyncio.run(run())
