# SPDX-License-Identifier: Apache-2.0
"""``corral firecracker``: speak to a microVM by hand."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Speak to a Firecracker microVM by hand.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
)

# Exit codes, as everywhere on the command line.
ANSWERED_NO = 1
USAGE = 2
UNREACHABLE = 3


@app.callback()
def firecracker() -> None:
    """Speak to a Firecracker microVM by hand."""


@app.command("api")
def api(
    socket: Annotated[Path, typer.Argument(help="The API socket, as given to Firecracker's --api-sock.")],
    method: Annotated[str, typer.Argument(help="GET, PUT or PATCH.")] = "GET",
    path: Annotated[str, typer.Argument(help="The request's path, like /vm/config.")] = "/",
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", help="The body: JSON, @FILE, or - for standard input (keeps secrets out of ps)."),
    ] = None,
    deadline: Annotated[float, typer.Option(min=0.001, help="Seconds for the whole call.")] = 5.0,
    long_path: Annotated[
        bool,
        typer.Option("--long-path", help="Connect even where the socket's path is longer than 107 bytes."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON, null where there is no body.")] = False,
) -> None:
    """Send one request and print the answer's JSON; nothing where the answer has no body."""
    from corral.backends.firecracker.errors import FirecrackerApiError
    from corral.model.errors import TemporaryError

    body = _body(data)
    try:
        answer = asyncio.run(_request(socket, method.upper(), path, body, deadline, long_path))
    except FirecrackerApiError as error:
        _say(f"error: {error}")
        temporary = isinstance(error, TemporaryError)
        raise typer.Exit(UNREACHABLE if temporary else ANSWERED_NO if error.status_code else USAGE) from None
    if as_json:
        typer.echo(json.dumps(answer, ensure_ascii=False, separators=(",", ":")))
    elif answer is not None:
        typer.echo(json.dumps(answer, ensure_ascii=False, indent=2))


async def _request(socket: Path, method: str, path: str, body: object, deadline: float, long_path: bool) -> object:
    from corral.backends.firecracker.api import FirecrackerApi

    async with FirecrackerApi(socket, long_path=long_path) as client:
        return await client.request(method, path, body, deadline=deadline)


def _body(data: str | None) -> object:
    if data is None:
        return None
    try:
        return json.loads(_text(data))
    except OSError as error:
        _say(f"error: {data[1:]} cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        _say("error: the body is no UTF-8")
    except json.JSONDecodeError as error:
        # The place only: the body may hold a secret.
        _say(f"error: the body is no JSON (line {error.lineno}, column {error.colno}: {error.msg})")
    except RecursionError:
        _say("error: the body is nested too deeply")
    raise typer.Exit(USAGE)


def _text(data: str) -> str:
    if data == "-":
        return sys.stdin.read()
    if data.startswith("@"):
        return Path(data[1:]).read_text(encoding="utf-8")
    return data


def _say(message: str) -> None:
    typer.echo(message, err=True)
