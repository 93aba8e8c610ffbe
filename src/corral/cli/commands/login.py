# SPDX-License-Identifier: Apache-2.0
"""``corral login``: save a token for a server."""

from __future__ import annotations

import asyncio
import getpass
import sys
from typing import Annotated

import typer

from corral.cli import credentials
from corral.cli.failing import say
from corral.cli.options import AsJson, Url
from corral.cli.output import write_json
from corral.model.errors import PermanentError


def command(
    server: Annotated[
        str | None, typer.Argument(metavar="URL", help="The server, for example http://127.0.0.1:7420; or --url.")
    ] = None,
    url: Url = None,
    forget: Annotated[bool, typer.Option("--forget", help="Remove the saved token of this server.")] = False,
    as_json: AsJson = False,
) -> None:
    """Save a token for a server.

    It is asked for, or read from standard input, and tried before it is saved. Commands use it with --url URL
    or CORRAL_URL.
    """
    url = server or url
    if not url:
        raise PermanentError("name the server: corral login URL")
    if forget:
        credentials.save(url, None)
        say(f"the token of {url} is forgotten")
        return
    token = _ask()
    version = asyncio.run(_try(url, token))
    credentials.save(url, token)
    if as_json:
        write_json({"url": url, "version": version, "file": str(credentials.credentials_file())})
    else:
        say(f"logged in to {url} (corral {version}); use it with --url {url} or CORRAL_URL={url}")


def _ask() -> str:
    text = getpass.getpass("token: ", stream=sys.stderr) if sys.stdin.isatty() else sys.stdin.readline()
    token = text.strip()
    if not token:
        raise PermanentError("no token was given; type it, or pipe it in: corral login URL < FILE")
    return token


async def _try(url: str, token: str) -> str:
    from corral.client import Client

    async with Client(url, token) as client:
        return (await client.server()).version
