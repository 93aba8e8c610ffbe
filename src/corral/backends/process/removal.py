# SPDX-License-Identifier: Apache-2.0
"""Remove a directory tree that somebody hostile filled. Standard library only: the warden imports it.

No symbolic link is followed. Whatever the depth, two descriptors and short relative names suffice: a directory
that is not empty is moved up to the top and emptied there. What only its mode protects is opened up first.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str, last: tuple[str, ...] = ()) -> None:
    """Remove ``path`` and all below it; an absent one is fine. Entries named in ``last`` go last, in that order:
    they tell what the rest belongs to, should this be cut short.

    :raises OSError: something resists (another owner, a mount, an immutable file); the rest is gone.
    """
    try:
        top = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return
    try:
        _empty_top(top, frozenset(last))
        for name in last:
            with contextlib.suppress(FileNotFoundError):
                _remove_entry(top, name)
    finally:
        os.close(top)
    os.rmdir(path)  # noqa: PTH106


def _empty_top(top: int, keep: frozenset[str]) -> None:
    names = (f".removing-{number}" for number in itertools.count())
    first_error: OSError | None = None
    stuck: set[str] = set()
    while True:
        entries = [name for name in os.listdir(top) if name not in keep and name not in stuck]
        if not entries:
            break
        for name in entries:
            try:
                _remove_entry(top, name)
            except OSError:
                try:
                    _hoist_children(top, name, names)
                    _remove_entry(top, name)
                except OSError as error:
                    first_error = first_error or error
                    stuck.add(name)
    if first_error is not None:
        raise first_error


def _remove_entry(directory: int, name: str) -> None:
    if stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
        os.rmdir(name, dir_fd=directory)
    else:
        os.unlink(name, dir_fd=directory)


def _hoist_children(top: int, name: str, names: Iterator[str]) -> None:
    """Empty the directory ``name``: unlink its files, move its directories up to ``top`` under free names."""
    _open_up(top, name)
    inner = os.open(name, _DIRECTORY, dir_fd=top)
    try:
        for entry in os.listdir(inner):  # noqa: PTH208
            mode = os.lstat(entry, dir_fd=inner).st_mode
            if stat.S_ISDIR(mode):
                _open_up(inner, entry)
                _hoist(inner, entry, top, names)
            else:
                os.unlink(entry, dir_fd=inner)
    finally:
        os.close(inner)


def _open_up(directory: int, name: str) -> None:
    """Give ourselves the right to empty and to move the directory ``name``."""
    mode = os.lstat(name, dir_fd=directory).st_mode
    if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
        # Through a descriptor: chmod by name would follow a link put in its place. O_PATH needs no right to read.
        fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)  # noqa: PTH101
        finally:
            os.close(fd)


def _hoist(source: int, entry: str, top: int, names: Iterator[str]) -> None:
    try:
        os.rmdir(entry, dir_fd=source)
        return
    except OSError:
        pass
    # A rename would replace an empty directory of that name, and fails on any other: take the next name then.
    for name in names:
        try:
            os.lstat(name, dir_fd=top)
        except FileNotFoundError:
            os.rename(entry, name, src_dir_fd=source, dst_dir_fd=top)
            return
