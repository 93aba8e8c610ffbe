# SPDX-License-Identifier: Apache-2.0
"""Answers of one piece."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

_encoder = msgspec.json.Encoder()


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> ASGIApp:
    """``value`` as JSON, never cached."""
    return ASGIResponse(
        body=_encoder.encode(value),
        status_code=status,
        media_type="application/json",
        headers={"cache-control": "no-store"} | (headers or {}),
    )


def empty_answer(status: int, headers: dict[str, str] | None = None) -> ASGIApp:
    return ASGIResponse(body=b"", status_code=status, headers=headers or {})
