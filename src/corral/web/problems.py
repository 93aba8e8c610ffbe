# SPDX-License-Identifier: Apache-2.0
"""Errors as ``application/problem+json`` (RFC 9457): every refusal names cause, object and fix."""

from __future__ import annotations

import logging
import math
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from corral.model.errors import CorralError, Invalid, PermanentError, TemporaryError, Unauthenticated
from corral.model.views import Problem

log = logging.getLogger(__name__)

MEDIA = "application/problem+json"


class Malformed(PermanentError):
    """A body that is not even JSON."""

    code = "malformed"


class MethodNotAllowed(PermanentError):
    code = "method_not_allowed"
    status = 405


class RangeNotSatisfiable(PermanentError):
    """``size``: bytes there are."""

    code = "range_not_satisfiable"
    status = 416

    def __init__(self, message: str, *, size: int) -> None:
        super().__init__(message)
        self.size = size


def problem_of(error: CorralError) -> Problem:
    """The public side of ``error``."""
    return Problem(
        type=f"urn:corral:problem:{error.code}",
        title=HTTPStatus(error.status).phrase,
        status=error.status,
        code=error.code,
        detail=error.message,
        retry_after=error.retry_after if isinstance(error, TemporaryError) else None,
        faults=tuple(str(fault) for fault in error.faults) if isinstance(error, Invalid) else (),
    )


def _headers(error: CorralError) -> dict[str, str]:
    # An answer to HEAD has no body: the code is all it can say.
    headers = {"cache-control": "no-store", "corral-problem": error.code}
    if isinstance(error, TemporaryError):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = 'Bearer realm="corral"'
    if isinstance(error, RangeNotSatisfiable):
        headers["content-range"] = f"bytes */{error.size}"
    return headers


def problem_response(error: CorralError, extra: dict[str, str] | None = None) -> Response[bytes]:
    """The whole answer, with the headers that belong to the error."""
    if error.status >= 500 and error.internal:
        log.error("%s: %s", error.code, error.internal)
    return Response(
        msgspec.json.encode(problem_of(error)),
        status_code=error.status,
        media_type=MEDIA,
        headers=_headers(error) | (extra or {}),
    )


def on_corral_error(request: Request[Any, Any, Any], error: CorralError) -> Response[bytes]:
    return problem_response(error)


def on_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """What the router itself refuses: no such route, wrong method."""
    status = error.status_code
    extra = {key: value for key, value in (error.headers or {}).items() if key.lower() == "allow"}
    where = f"{request.scope['method']} {request.scope['path']}"
    if status == 405:
        allowed = extra.get("allow", "")
        return problem_response(MethodNotAllowed(f"{where}: this path takes {allowed}"), extra)
    if status == 404:
        return problem_response(_NoRoute(f"{where}: no such route; /api/v1/openapi.json lists all"))
    if status >= 500:
        log.error("%s: %s", where, error)
        return problem_response(_Internal(f"{where}: the server failed inside; its log says how"))
    return problem_response(PermanentError(f"{where}: {error.detail}"))


def on_unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Our own bug: the caller learns that it is ours, the log has the traceback."""
    where = f"{request.scope['method']} {request.scope['path']}"
    log.error("%s: unexpected %s", where, type(error).__name__, exc_info=error)
    return problem_response(_Internal(f"{where}: the server failed inside; its log says how"))


class _NoRoute(PermanentError):
    code = "no_route"
    status = 404


class _Internal(PermanentError):
    code = "internal"
    status = 500
