# SPDX-License-Identifier: Apache-2.0
"""What Linux offers a process that has to leave nothing behind: subreaping, parent-death signals, priorities."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
AGENT_NICE = -5
"""The agent above its steps, so that heartbeats go on while they eat all cpu. Where it is not allowed, the kernel's
fairness has to do: the agent needs little."""
STRAYS_DEADLINE = 10.0
"""Seconds to kill what a job left behind; more means processes that the kernel cannot kill now (disk sleep)."""


@functools.cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def own_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that a daemon cannot get away."""
    libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def raise_priority() -> int:
    """Raise the agent's priority where allowed; the priority that steps get (what the agent had before)."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, min(before, AGENT_NICE))
    return max(0, before)


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def reap() -> None:
    """Take the exit of every child that ended. Only where nobody else waits for a child."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def kill_descendants() -> int:
    """Kill every descendant of this process until none is left; how many could not be killed in time.

    For a subreaper without children of its own any more: whatever descends from it is a stray. Blocks; call it in a
    thread, or where :func:`has_children` said that there is something to do.
    """
    give_up = time.monotonic() + STRAYS_DEADLINE
    pause = 0.001
    while True:
        reap()
        if not has_children():
            return 0
        strays = descendants(os.getpid())
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > give_up:
            return len(strays)
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def descendants(root: int) -> list[int]:
    """Living ones, zombies left out; a pid among them cannot be reused before we reap its topmost ancestor's line."""
    parents = dict(_parents())
    found: list[int] = []
    for pid in parents:
        at, hops = pid, 0
        while at in parents and at != root and hops < 4096:
            at, hops = parents[at], hops + 1
        if at == root and pid != root:
            found.append(pid)
    return found


def _parents() -> list[tuple[int, int]]:
    pairs = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, ppid = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                pairs.append((int(entry.name), int(ppid)))
    return pairs
