# SPDX-License-Identifier: Apache-2.0
"""What a call to Firecracker can end in, besides its answer. Split by what the caller does next."""

from __future__ import annotations

from corral.model.errors import CorralError, PermanentError, TemporaryError


class FirecrackerApiError(CorralError):
    """A call failed: no connection, no answer in time, a wrong answer, or one that is not 2xx.

    ``path`` is the request's; ``status_code`` is ``None`` where no whole answer came; ``body`` is the
    answer's text, at most 64 KiB, "" where there is none or where it could repeat a secret. Nothing of the
    request's body is in here.
    """

    code = "firecracker_api"
    status = 502

    def __init__(self, message: str, path: str, status_code: int | None = None, body: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.status_code = status_code
        self.body = body


class FirecrackerUnreachable(FirecrackerApiError, TemporaryError):
    """No connection, or it broke: whether the call took effect is not known. Look, then try again."""

    code = "firecracker_unreachable"
    status = 503


class FirecrackerDeadline(FirecrackerUnreachable):
    """The deadline passed first."""

    code = "firecracker_deadline"
    status = 504


class FirecrackerSocketRefused(FirecrackerApiError, PermanentError):
    """What stands at the socket's path is not to be talked to: somebody has to look."""

    code = "firecracker_socket_refused"


class FirecrackerRefused(FirecrackerApiError, PermanentError):
    """Firecracker (or this client, before it asked) said no: the same call will not succeed."""

    code = "firecracker_refused"
    status = 409


class FirecrackerWrongAnswer(FirecrackerApiError, PermanentError):
    """An answer came that is not one: cut, too long, twice, or not what the API describes."""

    code = "firecracker_wrong_answer"
