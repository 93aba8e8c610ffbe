# SPDX-License-Identifier: Apache-2.0
"""How an instance ended, and what a system error means, in words and types that the callers know."""

from __future__ import annotations

import errno
import signal

from corral.backends.interface import Denied, Misconfigured, NoCapacity, Transient
from corral.backends.process.journal import ExitRecord
from corral.model.errors import CorralError

_NO_ROOM = {errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ENOEXEC, errno.ELOOP, errno.ENAMETOOLONG}


def system_error(number: int, doing: str) -> CorralError:
    """The typed error for an errno met while ``doing`` something (a clause for the message)."""
    why = errno.errorcode.get(number, str(number))
    if number in _NO_ROOM:
        return NoCapacity(f"no room on this host to {doing} ({why})", retry_after=5.0)
    if number in _NOT_ALLOWED:
        return Denied(f"this host does not allow us to {doing} ({why}); the user that the jobs run as has to reach it")
    if number in _NOT_THERE:
        return Misconfigured(f"this host cannot {doing} ({why}); the user that the jobs run as has to reach it")
    return Transient(f"could not {doing} ({why})")


def ending(record: ExitRecord | None, last_words: str = "") -> str:
    """One sentence. ``record``: None when the warden left none. ``last_words``: the agent's own last line."""
    if record is None:
        return "the warden was killed from outside (or could not write its record); its agent died with it"
    match record.reason:
        case "not_started":
            return f"the agent could not be started: {record.message}"
        case "claim_ended":
            return "the agent did not register in time and was killed" + _quoted(last_words)
        case "grant_ended":
            return "no coordinator answered the agent until its grant ran out; it was killed"
        case "stopped":
            return f"the instance was told to stop; {_status(record)}"
        case "owner_gone":
            return f"the coordinator it was tied to is gone; {_status(record)}"
        case _ if record.code == 0:
            return _status(record)
        case _:
            return _status(record) + _quoted(last_words)


def _quoted(last_words: str) -> str:
    return f"; its last line: {last_words}" if last_words else ""


def _status(record: ExitRecord) -> str:
    if record.signal is None:
        return f"the agent exited with code {record.code}"
    if record.signal == signal.SIGKILL and record.oom_kills:
        return "the agent was killed for want of memory (out of memory in its cgroup)"
    return f"the agent was killed by {_signal_name(record.signal)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
