# SPDX-License-Identifier: Apache-2.0
"""Whether the kernel killed for want of memory: counters before and after a step."""

from __future__ import annotations

import contextlib
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


class OomCounter:
    """The out-of-memory kills that could have hit a step: of the agent's cgroup (v1 or v2), else of the machine."""

    def __init__(self, files: tuple[Path, ...] | None = None) -> None:
        self._files = _files() if files is None else files

    def kills(self) -> int | None:
        """Kills so far; None where the kernel does not tell."""
        counts = [count for file in self._files if (count := _count(file)) is not None]
        return sum(counts) if counts else None


def _files() -> tuple[Path, ...]:
    found = [Path("/proc/vmstat")]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                found.append(_CGROUP / "memory" / path.lstrip("/") / "memory.oom_control")
            elif number == "0" and not controllers:
                found.append(_CGROUP / path.lstrip("/") / "memory.events")
    return tuple(file for file in found if file.exists())


def _count(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None
