# SPDX-License-Identifier: Apache-2.0
"""What /proc says about processes. Standard library only: the warden imports it.

A process is *gone* when it has no entry or is a zombie: a host whose PID 1 does not reap keeps zombies for ever,
and they can neither run nor hold anything.
"""

from __future__ import annotations

import os
import select

_STATE, _PARENT, _START = 0, 1, 19
"""Positions in /proc/PID/stat behind the command's closing parenthesis."""


class Stat:
    """``start``: clock ticks since boot; with the pid it names a process for as long as the machine is up."""

    __slots__ = ("parent", "start", "state")

    def __init__(self, state: str, parent: int, start: int) -> None:
        self.state = state
        self.parent = parent
        self.start = start

    @property
    def gone(self) -> bool:
        return self.state in "ZX"


def read(path: str) -> bytes | None:
    """A small file of /proc or a cgroup, or None when it cannot be read (any more)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(fd)


def stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    text = read(f"/proc/{pid}/stat")
    if not text:
        return None
    # The command may itself hold spaces and parentheses.
    fields = text[text.rindex(b")") + 2 :].split()
    return Stat(fields[_STATE].decode(), int(fields[_PARENT]), int(fields[_START]))


def boot_id() -> str:
    """Random per boot: start times of different boots are not comparable."""
    return (read("/proc/sys/kernel/random/boot_id") or b"").decode().strip()


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def children(pid: int) -> list[int]:
    """Direct children of all threads of ``pid``; may miss one that is just being born: ask again."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return found
    for thread in threads:
        text = read(f"/proc/{pid}/task/{thread}/children")
        if text is None:
            return children_by_scan(pid)
        found.extend(int(word) for word in text.split())
    return found


def children_by_scan(pid: int) -> list[int]:
    """The same for kernels without the ``children`` file: looks at every process."""
    return [other for other in pids() if (seen := stat(other)) is not None and seen.parent == pid]


def open_pidfd(pid: int) -> int | None:
    """A handle that never means another process, or None when there is none (or no descriptor is left)."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def ended(pidfd: int) -> bool:
    """True once the process is dead, reaped or not."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
