# SPDX-License-Identifier: Apache-2.0
"""``/metrics`` for Prometheus."""

from __future__ import annotations

from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from corral.runtime.metrics import MEDIA_TYPE
from corral.web.operations import Answer, Call, operation


@operation(
    "GET",
    "/metrics",
    local=True,
    answers=(Answer(status=200, description="Text for Prometheus.", media="text/plain"),),
    tag="health",
)
async def metrics(call: Call) -> ASGIApp:
    """Show the metrics; from this very host without a token."""
    return ASGIResponse(body=await call.api.metrics(), media_type=MEDIA_TYPE, headers={"cache-control": "no-store"})
