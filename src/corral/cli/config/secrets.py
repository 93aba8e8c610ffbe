# SPDX-License-Identifier: Apache-2.0
"""Webhook secrets: a configuration names them, and says where they are kept; it never holds one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from corral.backends.event.secretfile import PREFIX, SecretStore
from corral.cli.statedir import SECRETS

_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, kw_only=True)
class SecretPlaces:
    """Where secrets are looked for. ``required``: one that is not there is a fault, not a warning."""

    state_dir: Path
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    required: bool = True

    def check(self, name: str) -> None:
        """As a delivery reads it, so that what is right here works there.

        :raises SecretAbsent: nothing of that name. :raises SecretUnusable: what is there cannot serve.
        """
        SecretStore(self.state_dir / SECRETS, self.environment).read(name)


def name_fault(name: str) -> str | None:
    """What is wrong with a secret's name, or None."""
    if (_VARIABLE if name.startswith("$") else _FILE).match(name):
        return None
    if name.startswith(PREFIX):
        return "is a secret itself, not the name of one"
    return f"{name!r} names no secret"
