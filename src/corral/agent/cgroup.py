# SPDX-License-Identifier: Apache-2.0
"""A cgroup for each job where the host lets us make one: below the agent's own, in every hierarchy that helps.

Version 1: memory (a limit, and a counter of out-of-memory kills that is this job's alone) and cpu (the job as a whole
competes with the agent as one, whatever priorities its processes give themselves). Version 2: a counter where the
parent hands memory down, and a kill that nothing escapes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PREFIX = "corral-job-"
_WANTED = ("memory", "cpu")


class Parent(NamedTuple):
    """A group below which jobs' groups are made. ``kind``: ``memory`` or ``cpu`` of version 1, ``2``."""

    kind: str
    path: Path


class JobGroup:
    """One job's groups; there may be none."""

    def __init__(self, parents: Iterable[Parent], name: str, *, memory: int | None) -> None:
        """:param memory: bytes that the job's processes may use together, None: no limit of its own."""
        self._made: list[Parent] = []
        for parent in parents:
            path = parent.path / f"{PREFIX}{name}"
            with contextlib.suppress(OSError):
                path.mkdir(exist_ok=True)
                self._made.append(Parent(parent.kind, path))
                if memory is not None and parent.kind == "memory":
                    _limit(path, memory)

    def doors(self) -> tuple[str, ...]:
        """Files into which a process writes ``0`` to enter."""
        return tuple(str(group.path / "cgroup.procs") for group in self._made)

    def counters(self) -> tuple[Path, ...]:
        """Files that count the kills for want of memory in this job alone; empty: nothing here does."""
        names = {"memory": "memory.oom_control", "2": "memory.events"}
        files = [group.path / names[group.kind] for group in self._made if group.kind in names]
        return tuple(file for file in files if file.exists())

    def kill(self) -> None:
        """Kill all of it at once, where the kernel can (version 2)."""
        for group in self._made:
            with contextlib.suppress(OSError):
                _write(group.path / "cgroup.kill", "1")

    def remove(self) -> None:
        """After everything in it is dead and reaped."""
        for group in self._made:
            with contextlib.suppress(OSError):
                group.path.rmdir()


def parents() -> tuple[Parent, ...]:
    """Where this process may make groups and move its children into them."""
    with contextlib.suppress(OSError):
        own = _own(Path("/proc/self/cgroup").read_text())
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        found = [parent for line in mounts for parent in _of_mount(line, own)]
        return tuple(parent for parent in found if _writable(parent.path))
    return ()


def clear(places: Iterable[Parent]) -> None:
    """Remove the groups of jobs whose agent was killed; those that hold a process stay."""
    for place in places:
        for left in place.path.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                left.rmdir()


def _own(text: str) -> dict[str, str]:
    """Controller → our path in its hierarchy; ``2``: in version 2's."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(",") if controllers else ("2",):
            found[name] = path
    return found


def _of_mount(line: str, own: dict[str, str]) -> Iterable[Parent]:
    before, _, after = line.partition(" - ")
    root, point = before.split()[3:5]
    kind, _, options = after.split()[:3]
    names = ("2",) if kind == "cgroup2" else options.split(",") if kind == "cgroup" else ()
    for name in names:
        if name in own and (name == "2" or name in _WANTED):
            with contextlib.suppress(ValueError):
                yield Parent(name, Path(point) / Path(own[name]).relative_to(root))


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK | os.X_OK) and os.access(path / "cgroup.procs", os.W_OK)


def _limit(path: Path, memory: int) -> None:
    _write(path / "memory.limit_in_bytes", str(memory))
    with contextlib.suppress(OSError):
        # With swap on top it would be a limit of speed, not of memory. Not every kernel counts swap.
        _write(path / "memory.memsw.limit_in_bytes", str(memory))


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
