# SPDX-License-Identifier: Apache-2.0
"""The secret of a webhook: read where the operator keeps it, at each use, and kept nowhere."""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from corral.model.errors import PermanentError
from corral.model.secret import Secret

PREFIX = "whsec_"
SIZE_LIMIT = 4096
"""Bytes of a secret's file."""
SHORTEST, LONGEST = 24, 64
"""Bytes of a key, as Standard Webhooks has it."""


class SecretUnusable(PermanentError):
    """The secret is missing, readable by others, or no secret. The sentence never holds it."""

    code = "webhook_secret"


class SecretAbsent(SecretUnusable):
    """There is nothing of that name here; there may be where the server runs."""


class SecretStore:
    """``directory``: STATE/secrets. ``environ``: where ``$NAME`` is looked up."""

    def __init__(self, directory: Path, environ: Mapping[str, str]) -> None:
        self._directory = directory
        self._environ = environ

    def read(self, name: str) -> Secret:
        """The secret of this name. Blocking: one small file.

        :raises SecretAbsent: there is none. :raises SecretUnusable: with what to do.
        """
        if name.startswith("$"):
            text = self._environ.get(name[1:], "")
            if not text:
                raise SecretAbsent(f"the variable {name} is not set in the server's environment")
            place = f"the variable {name}"
        else:
            text = self._file(name)
            place = f"the secret's file {self._directory / name}"
        key_of(Secret(text.strip()), place)
        return Secret(text.strip())

    def _file(self, name: str) -> str:
        if not name or "/" in name or name.startswith("."):
            raise SecretUnusable(f"{name!r} is no name of a file below {self._directory}")
        path = self._directory / name
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            kind = SecretAbsent if isinstance(error, FileNotFoundError | NotADirectoryError) else SecretUnusable
            raise kind(f"cannot read the secret's file {path}: {error.strerror}") from None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise SecretUnusable(f"{path} is no regular file")
            if found.st_mode & 0o077 or found.st_uid not in (0, os.geteuid()):
                raise SecretUnusable(
                    f"{path} can be read or changed by others; `chmod 600` it and let it be the server's"
                )
            return os.read(fd, SIZE_LIMIT).decode(errors="replace")
        finally:
            os.close(fd)


def key_of(secret: Secret, place: str = "the secret") -> bytes:
    """The HMAC key. :raises SecretUnusable: it is not ``whsec_`` and base64 of 24 to 64 bytes."""
    text = secret.reveal()
    key = b""
    if text.startswith(PREFIX):
        try:
            key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
    if not SHORTEST <= len(key) <= LONGEST:
        raise SecretUnusable(
            f"{place} does not hold whsec_ followed by base64 of {SHORTEST} to {LONGEST} bytes; "
            "make one with: echo whsec_$(head -c 32 /dev/urandom | base64)"
        )
    return key
