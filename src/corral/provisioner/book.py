# SPDX-License-Identifier: Apache-2.0
"""What a provisioner remembers: the highest epoch per cluster, and one record per agent. Files in one directory.

A file is replaced as a whole (written aside, synced, renamed, the directory synced), so a crash at any point leaves the
old or the new one. Locks are kernel locks on files: they end with whoever held them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEEP_GONE = 30 * 86400
"""Seconds that the record of what is gone is kept: a late create has to find it; Corral asks for a day at most."""
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")


class Damaged(Exception):
    """A file of the state directory cannot be read: better nothing is done than the wrong thing."""


@dataclass(frozen=True)
class Record:
    """``state``: ``creating``, ``present``, ``destroying`` or ``gone``. A claim code is never in it."""

    cluster_id: str
    agent_id: str
    sequence: int
    state: str
    provider_id: str = ""
    pool: str = ""


class Book:
    """Safe for any number of processes and threads on one directory of one machine."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory).absolute()
        for part in ("epochs", "agents", "locks"):
            (self.directory / part).mkdir(mode=0o700, parents=True, exist_ok=True)

    def raise_epoch(self, cluster_id: str, epoch: tuple[int, int]) -> tuple[int, int]:
        """Note the epoch, if it is the highest, and return the highest: durable before anything is done under it."""
        path = self.directory / "epochs" / f"{name_of(cluster_id)}.json"
        with self._locked("epochs"):
            stored = _read(path)
            highest = (0, 0) if stored is None else (int(str(stored["generation"])), int(str(stored["counter"])))
            if epoch > highest:
                _write(path, {"cluster_id": cluster_id, "generation": epoch[0], "counter": epoch[1]})
            return max(epoch, highest)

    @contextlib.contextmanager
    def agent(self, cluster_id: str, agent_id: str) -> Iterator[None]:
        """One event at a time about one agent."""
        with self._locked("agent-" + name_of(cluster_id + "\0" + agent_id)[:16]):
            yield

    def read(self, cluster_id: str, agent_id: str) -> Record | None:
        """:raises Damaged: there is one that cannot be read."""
        stored = _read(self._path(cluster_id, agent_id))
        if stored is None:
            return None
        return _record(stored, self._path(cluster_id, agent_id))

    def write(self, record: Record) -> None:
        _write(self._path(record.cluster_id, record.agent_id), dataclasses.asdict(record))

    def present(self, cluster_id: str) -> list[Record]:
        """Every record of the cluster that may stand for an instance."""
        found = []
        for path in sorted((self.directory / "agents").glob("*.json")):
            stored = _read(path)
            if stored is not None and stored.get("cluster_id") == cluster_id and stored.get("state") != "gone":
                found.append(_record(stored, path))
        return found

    def purge(self) -> None:
        """Forget what has been gone for long, and what a crash left half written."""
        before = time.time() - KEEP_GONE
        for path in (self.directory / "agents").iterdir():
            with contextlib.suppress(OSError, Damaged):
                over = path.suffix != ".json" or (_read(path) or {}).get("state") == "gone"
                if over and path.stat().st_mtime < before:
                    path.unlink()
        for path in (self.directory / "locks").glob("agent-*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before:
                    _forget_lock(path)

    def _path(self, cluster_id: str, agent_id: str) -> Path:
        return self.directory / "agents" / f"{name_of(cluster_id)}.{name_of(agent_id)}.json"

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        path = self.directory / "locks" / name
        fd = _lock(path)
        while not _names(path, fd):
            # Removed by a purge after we had opened it: whoever comes next locks another file.
            os.close(fd)
            fd = _lock(path)
        try:
            os.utime(fd)
            yield
        finally:
            os.close(fd)


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def _names(path: Path, fd: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False


def _forget_lock(path: Path) -> None:
    """Unless somebody holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(fd)


def name_of(text: str) -> str:
    """A file's name: the text itself where it is plain, else its digest."""
    return text if _PLAIN.match(text) else hashlib.sha256(text.encode()).hexdigest()


def _record(stored: dict[str, Any], path: Path) -> Record:
    try:
        return Record(**stored)
    except TypeError:
        raise Damaged(f"{path} is no record of this release") from None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise Damaged(f"{path} holds no record")
    return value


def _write(path: Path, value: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
