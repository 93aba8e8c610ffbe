# SPDX-License-Identifier: Apache-2.0
"""Sealing of secrets at rest: AES-256-GCM under a key that lives in a file, never in the database."""

from __future__ import annotations

import os
from pathlib import Path

from corral.model.errors import PermanentError
from corral.model.secret import Secret
from corral.runtime.chance import Chance

KEY_BYTES = 32
_NONCE_BYTES = 12


class SecretUnavailable(PermanentError):
    """A sealed value cannot be opened: the key file is missing or another one."""

    code = "secret_unavailable"
    status = 500


class Sealer:
    """Seals and opens under one key; ``context`` binds a sealed value to its place, so that rows cannot be swapped."""

    def __init__(self, key: bytes, chance: Chance) -> None:
        self._key = key
        self._chance = chance

    def seal(self, value: Secret, context: str) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = self._chance.token_bytes(_NONCE_BYTES)
        return nonce + AESGCM(self._key).encrypt(nonce, value.reveal().encode(), context.encode())

    def open(self, sealed: bytes, context: str) -> Secret:
        """:raises SecretUnavailable: sealed under another key, or for another place."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            plain = AESGCM(self._key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], context.encode())
        except (InvalidTag, ValueError) as error:
            raise SecretUnavailable(
                "a stored secret cannot be opened: the key file is not the one it was sealed with"
            ) from error
        return Secret(plain.decode())


def load_key(path: Path, chance: Chance) -> bytes:
    """The key of a file of mode 0600, made at first use; the lock of the database beside it keeps others out.

    :raises PermanentError: the file cannot be read, or does not hold a key.
    """
    if path.exists():
        return _read_key(path)
    key = chance.token_bytes(KEY_BYTES)
    # Whole or not at all: half a key, left by a crash or a full disk, would be refused at every later start.
    new = path.with_name(path.name + ".new")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise PermanentError(f"cannot make the key file {path}: {error.strerror}") from error
    return key


def _read_key(path: Path) -> bytes:
    try:
        key = path.read_bytes()
    except OSError as error:
        raise PermanentError(f"cannot read the key file {path}: {error.strerror}") from error
    if len(key) != KEY_BYTES:
        raise PermanentError(
            f"the key file {path} holds {len(key)} bytes instead of {KEY_BYTES}; restore it from a copy"
        )
    return key
