# SPDX-License-Identifier: Apache-2.0
"""Answers that are refusals, back as the errors they were."""

from __future__ import annotations

import msgspec

from corral.model.errors import (
    Conflict,
    CorralError,
    Fault,
    Forbidden,
    Invalid,
    NotFound,
    PermanentError,
    Refused,
    StoreMisconfigured,
    StoreUnavailable,
    TemporaryError,
    TooLarge,
    Unauthenticated,
)
from corral.model.views import Problem


class Unreachable(TemporaryError):
    """No answer from the server: not running, not there, or the network is away."""

    code = "unreachable"


class NotCorral(PermanentError):
    """Something answered, but not as a Corral server does."""

    code = "not_corral"


_PERMANENT = {
    each.code: each
    for each in (NotFound, Unauthenticated, Forbidden, TooLarge, Refused, StoreMisconfigured, PermanentError)
}
_TEMPORARY = {each.code: each for each in (Conflict, StoreUnavailable, TemporaryError)}


def error_of(status: int, body: bytes, url: str) -> CorralError:
    """The error that an answer with ``status`` (400 or above) stands for."""
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _foreign(status, url)
    return error_from(problem)


def error_from(problem: Problem) -> CorralError:
    """The error that a problem stands for; an unknown code keeps its code, status and kind."""
    if problem.faults:
        return _coded(_Faulty(problem), problem)
    if known := _PERMANENT.get(problem.code):
        return known(problem.detail)
    if problem.retry_after is None and problem.code not in _TEMPORARY:
        return _coded(PermanentError(problem.detail or problem.title), problem)
    kind = _TEMPORARY.get(problem.code, TemporaryError)
    return _coded(kind(problem.detail, retry_after=problem.retry_after or 1.0), problem)


class _Faulty(Invalid):
    """Faults that came as sentences; the message is the server's own."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail, [Fault(message=text) for text in problem.faults])
        self.message = problem.detail


def _coded(error: CorralError, problem: Problem) -> CorralError:
    # On the object, not the class: one class stands for every code that this version does not know.
    error.code = problem.code
    error.status = problem.status
    return error


def _foreign(status: int, url: str) -> CorralError:
    message = f"{url} answered with status {status} and not as a Corral server; check the URL"
    return TemporaryError(message) if status in (502, 503, 504) else NotCorral(message)
