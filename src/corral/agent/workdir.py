# SPDX-License-Identifier: Apache-2.0
"""A job's directories: fresh, private, gone afterwards whatever the job did to them."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple


class JobDirectories(NamedTuple):
    """``work``: the tree, where steps run. ``home``, ``tmp``: HOME and TMPDIR. ``run``: scripts, outputs, context."""

    root: Path
    work: Path
    home: Path
    tmp: Path
    run: Path


def create(parent: Path, name: str) -> JobDirectories:
    """:raises OSError: the disk does not take them."""
    root = parent / name
    remove(root)
    made = JobDirectories(root, root / "work", root / "home", root / "tmp", root / "run")
    for directory in made:
        directory.mkdir(mode=0o700, parents=True)
    return made


def remove(root: Path) -> None:
    """Delete a tree; directories that the job made unreadable are opened first. Never follows a link."""
    if not os.path.lexists(root):
        return
    shutil.rmtree(root, onerror=_open_up)
    with contextlib.suppress(FileNotFoundError):
        if os.path.lexists(root):
            shutil.rmtree(root, ignore_errors=True)


def _open_up(
    function: Callable[..., Any], path: str, error: tuple[type[BaseException], BaseException, TracebackType]
) -> None:
    with contextlib.suppress(OSError):
        for place in (Path(path).parent, Path(path)):
            if stat.S_ISDIR(place.lstat().st_mode):
                place.chmod(stat.S_IRWXU)
        if function in (os.scandir, os.open, os.lstat):
            shutil.rmtree(path, ignore_errors=True)
        else:
            function(path)
