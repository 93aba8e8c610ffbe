# SPDX-License-Identifier: Apache-2.0
"""What the checks of workflows share: where they are, what they found, and two questions about graphs and paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from corral.model.errors import Fault
from corral.workflow.words import printable


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a check is: the author's file and line, and the path of names down to it."""

    file: str
    line: int
    path: str

    def at(self, field: str) -> Place:
        """A field of the same object."""
        return Place(file=self.file, line=self.line, path=f"{self.path}.{field}")

    def inside(self, name: str, file: str, line: int) -> Place:
        """An object below; without a line of its own it stands where this one does."""
        return Place(file=file or self.file, line=line or self.line, path=f"{self.path}.{name}")


FAULT_LIMIT = 200
"""Faults looked for at once; beyond it they are one mistake repeated, or somebody's attempt to keep us busy."""


class Enough(Exception):
    """``FAULT_LIMIT`` is reached."""


@dataclass(frozen=True)
class Checks:
    """Collects faults; each once, in the order found."""

    faults: dict[Fault, None] = field(default_factory=dict)
    incomplete: frozenset[str] = frozenset()

    def add(self, place: Place, message: str, remedy: str) -> None:
        """:raises Enough: there are ``FAULT_LIMIT`` of them."""
        fault = Fault(
            file=printable(place.file),
            line=place.line,
            path=printable(place.path),
            message=printable(message),
            remedy=printable(remedy),
        )
        self.faults.setdefault(fault)
        if len(self.faults) >= FAULT_LIMIT:
            raise Enough

    def missing(self, place: Place, message: str, remedy: str) -> None:
        """A fault that something is not there; only where all that the author wrote was read."""
        if place.file not in self.incomplete:
            self.add(place, message, remedy)


def relative_path_fault(path: str) -> str:
    """What keeps ``path`` from naming something inside a tree, or nothing. Looks at the text only."""
    if not path:
        return "it is empty"
    if path.startswith(("/", "~")):
        return "it is not relative"
    if ".." in PurePosixPath(path).parts:
        return "it leaves the tree"
    if len(path) > 1024 or any(ord(character) < 32 for character in path):
        return "it is too long or holds a control character"
    return ""


def find_cycles(edges: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """One shortest cycle through each group of nodes that reach one another, each started at its first node.

    ``edges`` lists every node; self-edges are not looked for.
    """
    return [_shortest(edges, group) for group in _groups(edges) if len(group) > 1]


def _groups(edges: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Nodes that reach one another (Kosaraju's two passes, without recursion), in the order of ``edges``."""
    backward: dict[str, list[str]] = {node: [] for node in edges}
    for node, targets in edges.items():
        for target in targets:
            backward[target].append(node)
    placed: dict[str, int] = {}
    for number, root in enumerate(reversed(_finished(edges))):
        stack = [root]
        while stack:
            node = stack.pop()
            if node not in placed:
                placed[node] = number
                stack += backward[node]
    groups: dict[int, list[str]] = {}
    for node in edges:
        groups.setdefault(placed[node], []).append(node)
    return list(groups.values())


def _finished(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """Nodes in the order in which a depth-first search leaves them."""
    seen: set[str] = set()
    left: list[str] = []
    for root in edges:
        stack = [(root, False)]
        while stack:
            node, leaving = stack.pop()
            if leaving:
                left.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack += [(target, False) for target in edges[node]]
    return left


def _shortest(edges: Mapping[str, Sequence[str]], group: Sequence[str]) -> tuple[str, ...]:
    """Breadth first from the group's first node back to it."""
    first, members = group[0], set(group)
    reached: dict[str, tuple[str, ...]] = {first: (first,)}
    queue = [first]
    for node in queue:
        for target in edges[node]:
            if target == first:
                return reached[node]
            if target in members and target not in reached:
                reached[target] = (*reached[node], target)
                queue.append(target)
    return (first,)
