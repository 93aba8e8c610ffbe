# SPDX-License-Identifier: Apache-2.0
"""Webhook secrets: a configuration names them, and says where they are kept; it never holds one."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SECRETS = "secrets"
"""Below the state directory."""
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*\Z")
_PREFIX = "whsec_"
_SHORTEST, _LONGEST = 24, 64
"""Bytes of a Standard Webhooks secret."""
_READ_LIMIT = 4096


class Absent(ValueError):
    """There is no such secret here; there may be one where the server runs."""


@dataclass(frozen=True, kw_only=True)
class SecretPlaces:
    """Where secrets are looked for. ``required``: one that is not there is a fault, not a warning."""

    state_dir: Path
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    required: bool = True

    def check(self, name: str) -> None:
        """:raises Absent: nothing of that name. :raises ValueError: what is there is no secret of the right form."""
        text = self._variable(name[1:]) if name.startswith("$") else self._file(self.state_dir / SECRETS / name)
        problem = form_fault(text.strip())
        if problem is not None:
            raise ValueError(f"the secret {name} {problem}")

    def _variable(self, name: str) -> str:
        value = self.environment.get(name)
        if value is None:
            raise Absent(f"the environment has no variable {name}")
        return value

    def _file(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                return file.read(_READ_LIMIT).decode("ascii")
        except (FileNotFoundError, NotADirectoryError):
            raise Absent(f"there is no file {path}") from None
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{path} holds no text") from None


def name_fault(name: str) -> str | None:
    """What is wrong with a secret's name, or None."""
    if (_VARIABLE if name.startswith("$") else _FILE).match(name):
        return None
    if name.startswith(_PREFIX):
        return "is a secret itself, not the name of one"
    return f"{name!r} names no secret"


def form_fault(text: str) -> str | None:
    """What is wrong with a secret's text, without repeating any of it, or None."""
    if not text.startswith(_PREFIX):
        return f"does not begin with {_PREFIX}"
    try:
        key = base64.b64decode(text[len(_PREFIX) :], validate=True)
    except (binascii.Error, ValueError):
        return f"is not {_PREFIX} and base64"
    if not _SHORTEST <= len(key) <= _LONGEST:
        return f"has {len(key)} bytes; it takes {_SHORTEST} to {_LONGEST}"
    return None
