# SPDX-License-Identifier: Apache-2.0
"""Leave no descendant alive, without ever signalling a process that is not one. Standard library only.

A descendant is signalled through a pidfd that was opened *before* its parent was read, while the parent, itself
verified, is still alive: so a recycled pid is never hit. The caller is a child subreaper: whoever loses its parent
becomes the caller's child and is met in the next pass.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

from . import procfs

FREEZE_PASSES = 16
"""Passes of SIGSTOP before SIGKILL. Each meets at least the children of what the one before has stopped; a fork
storm is frozen in three or four, and what still escapes is met by the caller's next round."""


def freeze_and_kill(root: int, root_fd: int = -1) -> None:
    """One round over all descendants of ``root``: stop until no new one is met, then SIGKILL them all.

    ``root_fd``: a pidfd of it, or -1 when it is the caller itself, whose pid cannot become another's.
    Stopping first keeps a fork storm from replacing what is being killed.
    """
    known: set[int] = set()
    for _ in range(FREEZE_PASSES):
        met = signal_descendants(root, signal.SIGSTOP, root_fd)
        if met <= known:
            break
        known |= met
    signal_descendants(root, signal.SIGKILL, root_fd)


def signal_descendants(root: int, number: int, root_fd: int = -1) -> set[int]:
    """Send ``number`` to every living descendant of ``root`` that can be verified now; their pids."""
    met: set[int] = set()
    # Depth first with an explicit stack: a chain of processes may be deeper than Python's recursion.
    path: list[tuple[int, int, Iterator[int]]] = [
        (root, -1 if root_fd < 0 else os.dup(root_fd), iter(procfs.children(root)))
    ]
    try:
        while path:
            parent, parent_fd, rest = path[-1]
            child = next(rest, None)
            if child is None:
                path.pop()
                _close(parent_fd)
                continue
            fd = _verified(child, parent, parent_fd)
            if fd is None:
                continue
            if _send(fd, number):
                met.add(child)
            path.append((child, fd, iter(procfs.children(child))))
    finally:
        for _, fd, _ in path:
            _close(fd)
    return met


def _verified(child: int, parent: int, parent_fd: int) -> int | None:
    """A pidfd of ``child`` if it lives and its parent is ``parent``, which has to be alive still."""
    fd = procfs.open_pidfd(child)
    if fd is None:
        return None
    seen = procfs.stat(child)
    if seen is None or seen.gone or seen.parent != parent or (parent_fd >= 0 and procfs.ended(parent_fd)):
        os.close(fd)
        return None
    return fd


def _send(pidfd: int, number: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    return True


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
