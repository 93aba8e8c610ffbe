# SPDX-License-Identifier: Apache-2.0
"""Which paths of a work tree go along: tracked and untracked, without ignored ones, submodules included."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from corral.cli.source.git import Git


@dataclass(frozen=True, kw_only=True, order=True)
class Entry:
    """``path``: relative to the tree. ``link``: where a symbolic link leads, else empty. ``mode``: permission bits."""

    path: str
    link: str = ""
    mode: int = 0o644
    size: int = 0


def entries(git: Git, tell: Callable[[str], None]) -> list[Entry]:
    """Sorted. What cannot go along is left out, after saying so."""
    found: dict[str, Entry] = {}
    for path in _paths(git, "", tell):
        entry = _entry(git.directory, path, tell)
        if entry is not None:
            found[path] = entry
    return sorted(found.values())


def _paths(git: Git, prefix: str, tell: Callable[[str], None]) -> Iterator[str]:
    listed = git.run("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for raw in sorted(set(listed.split(b"\0")) - {b""}):
        name = os.fsdecode(raw)
        path = git.directory / name
        if name.endswith("/") or (path.is_dir() and not path.is_symlink()):
            yield from _nested(path, f"{prefix}{name.rstrip('/')}", tracked=not name.endswith("/"), tell=tell)
        else:
            yield prefix + name


def _nested(path: Path, name: str, *, tracked: bool, tell: Callable[[str], None]) -> Iterator[str]:
    """A submodule goes along when it is checked out; another repository inside the tree does not."""
    if not tracked:
        tell(f"left out: {name}/ is a git repository of its own, and no submodule")
        return
    if (path / ".git").exists():
        yield from _paths(Git(path, tell), f"{name}/", tell)


def _entry(tree: Path, name: str, tell: Callable[[str], None]) -> Entry | None:
    path = tree / name
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        # Deleted, and the deletion not committed: it does not go along.
        return None
    if stat.S_ISLNK(status.st_mode):
        return _link(tree, name, tell)
    if stat.S_ISREG(status.st_mode):
        return Entry(path=name, mode=stat.S_IMODE(status.st_mode) & 0o777, size=status.st_size)
    tell(f"left out: {name} is no file, directory or link")
    return None


def _link(tree: Path, name: str, tell: Callable[[str], None]) -> Entry | None:
    to = (tree / name).readlink()
    root = tree.resolve()
    beside = root / Path(name).parent / to
    # Where it says it leads, and where it really leads through other links.
    stays = _inside(root, _flattened(beside)) and _inside(root, _real(beside))
    if to.is_absolute() or not stays:
        tell(f"left out: the link {name} leaves the tree (it leads to {to})")
        return None
    return Entry(path=name, link=str(to), mode=0o777)


def _flattened(path: Path) -> Path:
    parts: list[str] = []
    for part in path.parts[1:]:
        if part == "..":
            del parts[-1:]
        else:
            parts.append(part)
    return Path("/", *parts)


def _real(path: Path) -> Path:
    """A loop of links leads nowhere: it counts as leaving."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return Path("/")


def _inside(root: Path, place: Path) -> bool:
    return place.is_relative_to(root) and place.relative_to(root).parts[:1] != (".git",)
