# SPDX-License-Identifier: Apache-2.0
"""A job's directories: fresh, private, gone afterwards whatever the job did to them."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path
from typing import NamedTuple


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
    shutil.rmtree(root, ignore_errors=True)
    if os.path.lexists(root):
        _unlock(root)
        shutil.rmtree(root, ignore_errors=True)


def _unlock(root: Path) -> None:
    """Make every directory of the tree ours to read and write, from the top, for a closed one hides those below."""
    waiting = [root]
    while waiting:
        directory = waiting.pop()
        with contextlib.suppress(OSError):
            directory.chmod(stat.S_IRWXU)
            with os.scandir(directory) as entries:
                waiting += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
