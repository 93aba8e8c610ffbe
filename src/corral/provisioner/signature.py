# SPDX-License-Identifier: Apache-2.0
"""Is this request Corral's, whole, and of now? Standard Webhooks, the receiver's half."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping

TOLERANCE = 300.0
"""Seconds that the sender's clock may be off, or the request on its way."""


class BadSignature(Exception):
    """What does not fit; the sentence never holds a secret."""


def verify(secrets: Iterable[str], headers: Mapping[str, str], body: bytes, *, now: float | None = None) -> None:
    """``headers``: by lower-case name. ``secrets``: ``whsec_…``; two while one replaces the other. ``now``: seconds.

    :raises BadSignature: do nothing that the request asks.
    """
    identity = headers.get("webhook-id", "")
    stamp = headers.get("webhook-timestamp", "")
    given = headers.get("webhook-signature", "")
    if not identity or not given or not (stamp.isascii() and stamp.isdigit() and len(stamp) < 16):
        raise BadSignature("the request is not signed")
    if abs((time.time() if now is None else now) - int(stamp)) > TOLERANCE:
        raise BadSignature(f"its timestamp is more than {TOLERANCE:g} s off this machine's clock")
    signatures = [_decoded(word[3:]) for word in given.split()[:16] if word.startswith("v1,")]
    fits = False
    for secret in secrets:
        expected = hmac.new(_key(secret), f"{identity}.{stamp}.".encode() + body, hashlib.sha256).digest()
        for signature in signatures:
            fits |= hmac.compare_digest(expected, signature)
    if not fits:
        raise BadSignature("the signature does not fit the request")


def _key(secret: str) -> bytes:
    key = _decoded(secret.strip().removeprefix("whsec_"))
    if not secret.strip().startswith("whsec_") or len(key) < 24:
        raise ValueError("a webhook secret is whsec_ and base64 of at least 24 bytes")
    return key


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
