# SPDX-License-Identifier: Apache-2.0
"""Tokens that ``corral login`` saved, each tied to the URL it is for; the file is private (0600)."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from corral.model.errors import Fault, Invalid, PermanentError


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """``tokens``: URL → token."""

    version: int = 1
    tokens: dict[str, str] = {}


def config_dir() -> Path:
    """``$XDG_CONFIG_HOME/corral``, or its usual place below the home directory."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".config") / "corral"


def credentials_file() -> Path:
    return config_dir() / "credentials.json"


def read() -> Credentials:
    """:raises Invalid: the file is damaged, naming it and the way out."""
    path = credentials_file()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Credentials)
    except FileNotFoundError:
        return Credentials()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        fault = Fault(file=str(path), message=f"cannot be read: {error}", remedy="remove it, then corral login again")
        raise Invalid("saved tokens", [fault]) from None


def saved_token(url: str) -> str | None:
    return read().tokens.get(_key(url))


def save(url: str, token: str | None) -> None:
    """Save the token of ``url``; None removes it.

    :raises PermanentError: the file cannot be written.
    """
    tokens = {**read().tokens}
    tokens.pop(_key(url), None)
    if token:
        tokens[_key(url)] = token
    path = credentials_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(Credentials(tokens=tokens))))
        temporary.replace(path)
    except OSError as error:
        raise PermanentError(f"cannot save the token in {path}: {error.strerror}") from None


def _key(url: str) -> str:
    return url.rstrip("/").lower()
