# SPDX-License-Identifier: Apache-2.0
"""Processes of an instance that its warden does not hold any more: found by marker, own uid and cgroup; killed."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from corral.backends.process import procfs
from corral.backends.process.environment import MARKER, STEP_MARKER
from corral.model.ids import AgentId

_PREFIXES = (f"{MARKER}=".encode(), f"{STEP_MARKER}=".encode())


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What tells a process of the instance. ``slot``: a uid that only this instance has, -1: none."""

    agent_id: AgentId
    slot: int
    cgroups: tuple[str, ...]


def find(traits: Traits) -> tuple[int, ...]:
    """Pids of every living process of the instance that can be recognised."""
    grouped = members(traits.cgroups)
    me = os.getpid()
    return tuple(pid for pid in procfs.pids() if pid != me and _is_alive(pid) and belongs(pid, traits, grouped))


def kill(traits: Traits) -> tuple[int, ...]:
    """SIGKILL each; the pids that were met. None met means that the instance is gone."""
    met = find(traits)
    for pid in met:
        fd = procfs.open_pidfd(pid)
        if fd is None:
            continue
        try:
            # Looked at again behind the handle: the pid may be another process by now.
            if belongs(pid, traits, members(traits.cgroups)):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        finally:
            os.close(fd)
    return met


def belongs(pid: int, traits: Traits, grouped: frozenset[int]) -> bool:
    """True for a process of this instance. Cgroup and own uid are the kernel's word; the marker is what the process
    started with, so it decides only where the kernel has nothing to say."""
    if pid in grouped or (traits.slot >= 0 and _owner(pid) == traits.slot):
        return True
    return traits.agent_id in markers_of(pid)


def markers_of(pid: int) -> frozenset[str]:
    """The instances named in the process's environment: none, or the one it belongs to."""
    entries = (procfs.read(f"/proc/{pid}/environ") or b"").split(b"\0")
    return frozenset(
        entry[len(prefix) :].decode("ascii", "replace")
        for entry in entries
        for prefix in _PREFIXES
        if entry.startswith(prefix)
    )


def members(cgroups: tuple[str, ...]) -> frozenset[int]:
    found: set[int] = set()
    for path in cgroups:
        found.update(int(word) for word in (procfs.read(f"{path}/cgroup.procs") or b"").split())
    return frozenset(found)


def name(pid: int) -> str:
    """``PID (command)`` for messages."""
    return f"{pid} ({(procfs.read(f'/proc/{pid}/comm') or b'?').decode('utf-8', 'replace').strip()})"


def _is_alive(pid: int) -> bool:
    seen = procfs.stat(pid)
    return seen is not None and not seen.gone


def _owner(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except OSError:
        return -1
