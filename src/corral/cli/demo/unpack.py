# SPDX-License-Identifier: Apache-2.0
"""Unpacks a source distribution: files and directories inside the target, nothing else."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from corral.cli.demo.fetch import NoPackage

UNPACKED_LIMIT = 1024**3
"""Bytes of all files; a source distribution has a few MiB."""
MEMBERS_LIMIT = 200_000
_SKIPPED = (".git", ".hg", ".svn", ".venv", "venv", ".tox", ".nox", "node_modules", "__pycache__", ".mypy_cache")


def unpack(archive: Path, target: Path) -> Path:
    """Unpack into ``target``; the directory that holds the project. Links and devices are left out.

    :raises NoPackage: it is no archive, is too large, or wants out of the target.
    """
    try:
        with tarfile.open(archive, "r:*") as tar:
            _extract(tar, target)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise NoPackage(f"{archive.name} cannot be unpacked: {error}") from None
    inside = [path for path in target.iterdir() if path.is_dir()]
    return inside[0] if len(inside) == 1 else target


def _extract(tar: tarfile.TarFile, target: Path) -> None:
    size = 0
    for count, member in enumerate(tar):
        size += max(0, member.size)
        if count >= MEMBERS_LIMIT or size > UNPACKED_LIMIT:
            raise NoPackage(f"the archive is too large: more than {UNPACKED_LIMIT} bytes or {MEMBERS_LIMIT} files")
        path = _place(member.name, target)
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
        elif member.isreg() and (source := tar.extractfile(member)) is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                shutil.copyfileobj(source, file)
            path.chmod(0o755 if member.mode & 0o100 else 0o644)


def _place(name: str, target: Path) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise NoPackage(f"the archive wants to write {name!r}, outside of its directory")
    return target / path


def copy_tree(source: Path, target: Path) -> Path:
    """A copy of a local tree, without version control and caches.

    :raises NoPackage: there is no such directory, or it cannot be read.
    """
    if not source.is_dir():
        raise NoPackage(f"--path {source}: no such directory")
    place = target / (source.resolve().name or "tree")
    try:
        shutil.copytree(source, place, symlinks=True, ignore=shutil.ignore_patterns(*_SKIPPED))
    except (OSError, shutil.Error) as error:
        raise NoPackage(f"--path {source}: {error}") from None
    return place
