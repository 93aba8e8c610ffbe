# SPDX-License-Identifier: Apache-2.0
"""Cgroups of instances, version 1 and 2, below the coordinator's own: limits where a controller can be written,
and version 2's ``cgroup.kill``. What cannot be enforced is said, not pretended.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from corral.model.ids import AgentId

CPU_PERIOD = 100_000
"""Microseconds over which a cpu quota is counted: the kernel's own default."""
LIMITED = ("cpu", "memory", "pids")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """``cpu`` in cores, ``memory`` in bytes, ``pids`` a count; None: unlimited."""

    cpu: float | None = None
    memory: int | None = None
    pids: int | None = None

    def wanted(self) -> dict[str, str]:
        """Per controller the value in version 2's notation."""
        values: dict[str, str] = {}
        if self.cpu is not None:
            values["cpu"] = f"{max(int(self.cpu * CPU_PERIOD), 1000)} {CPU_PERIOD}"
        if self.memory is not None:
            values["memory"] = str(self.memory)
        if self.pids is not None:
            values["pids"] = str(self.pids)
        return values


@dataclass(frozen=True, kw_only=True)
class Hierarchy:
    """One mounted hierarchy in which we may make groups below ``parent``."""

    version: int
    parent: Path
    controllers: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Group:
    """A cgroup to make. ``values``: controller → limit in version 2's notation."""

    path: Path
    version: int
    values: dict[str, str]


class Cgroups:
    """What this host lets us do. ``hierarchies``: see :func:`discover`."""

    def __init__(self, hierarchies: tuple[Hierarchy, ...]) -> None:
        self.hierarchies = hierarchies

    @property
    def can_kill(self) -> bool:
        return any(hierarchy.version == 2 for hierarchy in self.hierarchies)

    def enforceable(self) -> frozenset[str]:
        """Controllers that can limit here."""
        return frozenset(LIMITED) & frozenset().union(*(h.controllers for h in self.hierarchies))

    def plan(self, agent_id: AgentId, limits: Limits) -> tuple[Group, ...]:
        """The groups of one instance: version 2's always, for its kill; of version 1 those that limit something."""
        left = limits.wanted()
        groups: list[Group] = []
        for hierarchy in sorted(self.hierarchies, key=lambda h: -h.version):
            values = {name: left.pop(name) for name in tuple(left) if name in hierarchy.controllers}
            if values or hierarchy.version == 2:
                path = hierarchy.parent / f"corral-{agent_id}"
                groups.append(Group(path=path, version=hierarchy.version, values=values))
        return tuple(groups)


def make(group: Group) -> None:
    """Make it and set its limits. :raises OSError: not allowed, or the value is refused."""
    group.path.mkdir(exist_ok=True)
    for name, value in group.values.items():
        for file, text, required in _settings(group.version, name, value):
            _write(group.path / file, text, required=required)


def _settings(version: int, controller: str, value: str) -> tuple[tuple[str, str, bool], ...]:
    """(file, text, whether it has to be there)."""
    match controller, version:
        case "cpu", 2:
            return (("cpu.max", value, True),)
        case "cpu", _:
            quota, period = value.split()
            return (("cpu.cfs_period_us", period, True), ("cpu.cfs_quota_us", quota, True))
        case "memory", 2:
            return (("memory.max", value, True), ("memory.swap.max", "0", False))
        case "memory", _:
            return (("memory.limit_in_bytes", value, True), ("memory.memsw.limit_in_bytes", value, False))
        case _:
            return (("pids.max", value, True),)


def _write(path: Path, text: str, *, required: bool) -> None:
    if not required and not path.exists():
        return
    with open(path, "wb", buffering=0) as file:
        file.write(text.encode())


def remove(path: str) -> None:
    """Remove a group and those made below it; absent is fine. :raises OSError: still in use."""
    try:
        below = [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
    for inner in below:
        remove(inner)
    os.rmdir(path)  # noqa: PTH106


def discover() -> Cgroups:
    """The hierarchies in which this process may make groups and move its children into them."""
    own = _own_groups(Path("/proc/self/cgroup").read_text())
    found = [
        hierarchy
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if (hierarchy := _hierarchy(line, own)) is not None and _writable(hierarchy.parent)
    ]
    return Cgroups(tuple(h if h.version == 1 else _with_controllers(h) for h in found))


def _own_groups(text: str) -> dict[str, str]:
    """Controller → our path in its hierarchy; the empty name is version 2."""
    groups: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            groups[name] = path
    return groups


def _hierarchy(line: str, own: dict[str, str]) -> Hierarchy | None:
    """One line of mountinfo, if it is a cgroup mount that can limit or kill."""
    before, _, after = line.partition(" - ")
    root, point = before.split()[3:5]
    kind, _, options = after.split()[:3]
    if kind == "cgroup2" and "" in own:
        parent = _below(point, root, own[""])
        return None if parent is None else Hierarchy(version=2, parent=parent, controllers=frozenset())
    controllers = frozenset(options.split(",")) & frozenset(LIMITED)
    if kind != "cgroup" or not controllers:
        return None
    name = next(iter(controllers))
    parent = _below(point, root, own[name]) if name in own else None
    return None if parent is None else Hierarchy(version=1, parent=parent, controllers=controllers)


def _below(point: str, root: str, path: str) -> Path | None:
    """Where our group is in this mount, which may show only a part of the hierarchy."""
    try:
        return Path(point) / Path(path).relative_to(root)
    except ValueError:
        return None


def _writable(parent: Path) -> bool:
    return os.access(parent, os.W_OK | os.X_OK) and os.access(parent / "cgroup.procs", os.W_OK)


def _with_controllers(hierarchy: Hierarchy) -> Hierarchy:
    """Version 2 limits only what its parent hands down. A group that holds processes, as ours does, can hand down
    nothing; but a service manager that put us in a leaf lets us use the group above."""
    for parent in (hierarchy.parent, hierarchy.parent.parent):
        if not _writable(parent):
            break
        handed = _hand_down(parent)
        if handed:
            return Hierarchy(version=2, parent=parent, controllers=handed)
    return hierarchy


def _hand_down(parent: Path) -> frozenset[str]:
    control = parent / "cgroup.subtree_control"
    try:
        available = frozenset((parent / "cgroup.controllers").read_text().split()) & frozenset(LIMITED)
        handed = frozenset(control.read_text().split())
        if missing := available - handed:
            control.write_text(" ".join(f"+{name}" for name in sorted(missing)))
        return frozenset(control.read_text().split()) & frozenset(LIMITED)
    except OSError:
        return frozenset()
