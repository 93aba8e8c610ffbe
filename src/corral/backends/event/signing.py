# SPDX-License-Identifier: Apache-2.0
"""Standard Webhooks: an HMAC over id, time and body, so that an event is ours, whole, and of now."""

from __future__ import annotations

import base64
import hashlib
import hmac


def signed_headers(key: bytes, event_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """The three headers. ``seconds``: since the Unix epoch, of this sending."""
    digest = hmac.new(key, f"{event_id}.{seconds}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": "v1," + base64.b64encode(digest).decode(),
    }
