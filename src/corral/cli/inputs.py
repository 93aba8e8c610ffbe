# SPDX-License-Identifier: Apache-2.0
"""``-e K=V`` and ``--secret``: values for a run; a secret never stands on the command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from corral.model.errors import Fault, Invalid

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
SECRET_LIMIT = 64 * 1024
"""Bytes of one secret: a key or a certificate, not a file store."""


def variables(words: Sequence[str]) -> dict[str, str]:
    """``K=V`` words. :raises Invalid: with every word that is none."""
    found: dict[str, str] = {}
    faults = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not _NAME.match(name):
            faults.append(Fault(path="--env", message=f"{word!r} is not NAME=VALUE"))
        found[name] = value
    if faults:
        raise Invalid("the options", faults)
    return found


def secrets(words: Sequence[str]) -> dict[str, str]:
    """``NAME`` from the environment, ``NAME=@FILE`` or ``NAME=-`` from standard input.

    :raises Invalid: with every word that gives no secret; no message holds a value.
    """
    found: dict[str, str] = {}
    faults: list[Fault] = []
    if sum(word.endswith("=-") for word in words) > 1:
        faults.append(Fault(path="--secret", message="only one secret can come from standard input"))
    for word in words if not faults else ():
        name, equals, source = word.partition("=")
        value = _value(name, source if equals else None)
        if isinstance(value, Fault):
            faults.append(value)
        else:
            found[name] = value
    if faults:
        raise Invalid("the secrets", faults)
    return found


def _value(name: str, source: str | None) -> str | Fault:
    if not _NAME.match(name):
        return Fault(path="--secret", message=f"{name!r} is no name of a variable")
    if source is None:
        value = os.environ.get(name)
        return value if value is not None else Fault(path=f"--secret {name}", message="is not set in the environment")
    if source == "-":
        return _checked(name, sys.stdin.buffer.read(SECRET_LIMIT + 1))
    if source.startswith("@"):
        return _from_file(name, source[1:])
    remedy = f"--secret {name} takes it from the environment, --secret {name}=@FILE from a file"
    return Fault(path=f"--secret {name}", message="a value on the command line can be seen by others", remedy=remedy)


def _from_file(name: str, path: str) -> str | Fault:
    try:
        with open(Path(path), "rb") as file:
            return _checked(name, file.read(SECRET_LIMIT + 1))
    except OSError as error:
        return Fault(path=f"--secret {name}", message=f"{path}: {error.strerror}")


def _checked(name: str, data: bytes) -> str | Fault:
    if len(data) > SECRET_LIMIT:
        return Fault(path=f"--secret {name}", message=f"is longer than {SECRET_LIMIT} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return Fault(path=f"--secret {name}", message="is not UTF-8 text", remedy="encode it, e.g. with base64")
    # An editor's last newline is not part of a password.
    return text.removesuffix("\n")
