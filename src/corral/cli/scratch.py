# SPDX-License-Identifier: Apache-2.0
"""Temporary directories that carry the pid of their maker: what a killed command left is removed by the next one."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def scratch(purpose: str) -> Iterator[Path]:
    """A private directory (0700) below the system's temporary one, removed at the end, whatever happened inside."""
    prefix = f"corral-{purpose}-"
    _sweep(Path(tempfile.gettempdir()), prefix)
    path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _sweep(directory: Path, prefix: str) -> None:
    """Remove our own leftovers of processes that are gone."""
    for path in directory.glob(f"{prefix}*-*"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.name.removeprefix(prefix).partition("-")[0])
            if path.lstat().st_uid == os.geteuid() and not path.is_symlink() and not _alive(pid):
                shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
