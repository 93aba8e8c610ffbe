# SPDX-License-Identifier: Apache-2.0
"""The error tree: split by what the caller does, each with a stable code and a public message.

``TemporaryError``: the same call may succeed later (``retry_after`` says when to try).
``PermanentError``: the same call never succeeds; something has to be changed first.
Adapters translate their library's exceptions into these; a library's exception never crosses an adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class CorralError(Exception):
    """Base of all. ``str(error)`` is public: it may be shown to any caller and holds no secret.

    :param message: one public sentence: cause, object, and what to do.
    :param internal: detail for the log only.
    """

    code = "internal"
    status = 500

    def __init__(self, message: str, *, internal: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.internal = internal


class TemporaryError(CorralError):
    """Try again. ``retry_after`` is in seconds."""

    code = "temporary"
    status = 503

    def __init__(self, message: str, *, retry_after: float = 1.0, internal: str = "") -> None:
        super().__init__(message, internal=internal)
        self.retry_after = retry_after


class PermanentError(CorralError):
    """Trying the same again does not help."""

    code = "permanent"
    status = 400


class NotFound(PermanentError):
    """No such object, or none that the caller may see."""

    code = "not_found"
    status = 404


class Unauthenticated(PermanentError):
    """No credential, or one that does not verify."""

    code = "unauthenticated"
    status = 401


class Forbidden(PermanentError):
    """The credential verifies but does not allow this."""

    code = "forbidden"
    status = 403


class TooLarge(PermanentError):
    """A body, frame or file is above its limit; the message names both."""

    code = "too_large"
    status = 413


class Conflict(TemporaryError):
    """A compare-and-set lost: somebody else wrote first. Read again, decide again."""

    code = "conflict"
    status = 409


class Refused(PermanentError):
    """Understood, and not possible in the object's present state; the message says which state."""

    code = "refused"
    status = 409


class StoreUnavailable(TemporaryError):
    """The database, log store or source store cannot take it now (locked, full, read-only, away)."""

    code = "store_unavailable"


class StoreMisconfigured(PermanentError):
    """The database cannot be used at all: wrong version, held by another process, not writable."""

    code = "store_misconfigured"
    status = 500


@dataclass(frozen=True, kw_only=True, order=True)
class Fault:
    """One thing wrong in something a person wrote.

    ``file`` is as the person named it; ``line`` and ``column`` start at 1, 0 means unknown.
    ``path`` is the dotted place inside the file (``jobs.test.needs[0]``), ``remedy`` what to do.
    """

    file: str = ""
    line: int = 0
    column: int = 0
    path: str = ""
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        where = self.file
        if self.line:
            where += f":{self.line}" + (f":{self.column}" if self.column else "")
        parts = [p for p in (where, self.path, self.message) if p]
        return ": ".join(parts) + (f" ({self.remedy})" if self.remedy else "")


class Invalid(PermanentError):
    """Something a person wrote is wrong. ``faults`` holds every fault found, in order of place; never empty."""

    code = "invalid"
    status = 422

    def __init__(self, what: str, faults: Sequence[Fault]) -> None:
        self.what = what
        self.faults = tuple(faults)
        count = len(self.faults)
        super().__init__(f"{what}: {count} fault{'s' if count != 1 else ''}")

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  {fault}" for fault in self.faults)])
