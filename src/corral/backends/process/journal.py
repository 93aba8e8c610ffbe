# SPDX-License-Identifier: Apache-2.0
"""What an instance directory says about its instance, and where things lie in it.

::

    ROOT/AGENT_ID/          the coordinator's, mode 0711 with a user per slot, else 0700
        instance.json       written before anything is started, removed last
        warden              PID START BOOT_ID, written by the warden before it starts the agent
        exit.json           how it ended, the warden's last act
        output, output.1    the agent's own stdout and stderr, bounded
        home/               the agent's user's, mode 0700
            agent.json      mode 0600; holds the claim code until it is redeemed
            work/

So every point at which a coordinator may die leaves a journal that ``list`` and ``destroy`` find.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from corral.backends.process import guard, procfs
from corral.model.ids import AgentId, ClusterId

JOURNAL = "instance.json"
LAST_WORDS = 400
"""Bytes of the agent's output that may appear in a message: one line."""
T = TypeVar("T", bound=msgspec.Struct)


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """``created``: microseconds since the Unix epoch. ``slot``: the uid that only this instance has, -1: none.
    ``cgroups``: directories made for it, possibly not made yet."""

    version: int = 1
    cluster_id: ClusterId
    pool: str
    agent_id: AgentId
    created: int
    slot: int = -1
    cgroups: tuple[str, ...] = ()


class ExitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``reason``: ended, stopped, grant_ended, claim_ended, owner_gone or not_started."""

    version: int = 1
    reason: str
    code: int | None = None
    signal: int | None = None
    oom_kills: int = 0
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A warden, for as long as the machine is up."""

    pid: int
    start: int
    boot_id: str


@dataclass(frozen=True, kw_only=True)
class Place:
    """The directory of one instance."""

    path: Path

    @property
    def home(self) -> Path:
        return self.path / "home"

    @property
    def config(self) -> Path:
        return self.home / "agent.json"

    @property
    def work(self) -> Path:
        return self.home / "work"

    def exists(self) -> bool:
        return self.path.is_dir()

    def write_journal(self, journal: Journal) -> None:
        """:raises OSError: not written, not even in part."""
        write_atomically(self.path / JOURNAL, msgspec.json.encode(journal), 0o600)

    def journal(self) -> Journal | None:
        """None when there is none, or none that can be read."""
        return _decoded(self.path / JOURNAL, Journal)

    def exit_record(self) -> ExitRecord | None:
        return _decoded(self.path / guard.EXIT, ExitRecord)

    def last_words(self) -> str:
        """The last line that the agent wrote to its own output, printable characters only, or nothing."""
        try:
            with open(self.path / guard.OUTPUT, "rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - LAST_WORDS, 0))
                lines = file.read(LAST_WORDS).decode("utf-8", "replace").split("\n")
        except OSError:
            return ""
        last = next((line for line in reversed(lines) if line.strip()), "")
        return "".join(letter for letter in last if letter.isprintable())[-LAST_WORDS:].strip()

    def identity(self) -> Identity | None:
        """The warden as it named itself, or None when it has not come that far."""
        words = (procfs.read(str(self.path / guard.IDENTITY)) or b"").decode("ascii", "replace").split()
        if len(words) != 3 or not (words[0].isdecimal() and words[1].isdecimal()):
            return None
        return Identity(pid=int(words[0]), start=int(words[1]), boot_id=words[2])

    def open_warden(self, identity: Identity) -> int | None:
        """A pidfd of the warden if it lives: same pid, start time, boot and command line, seen after opening."""
        if identity.boot_id != procfs.boot_id():
            return None
        fd = procfs.open_pidfd(identity.pid)
        if fd is None:
            return None
        seen = procfs.stat(identity.pid)
        command = (procfs.read(f"/proc/{identity.pid}/cmdline") or b"").split(b"\0")
        ours = str(self.path).encode() in command and any(word.endswith(b"/warden.py") for word in command)
        if seen is None or seen.gone or seen.start != identity.start or not ours:
            os.close(fd)
            return None
        return fd


def make_root(root: Path) -> None:
    """The directory of all instances. Root's jobs may run as other users, who pass through it to their homes and see
    nothing of it. :raises OSError: cannot be made."""
    root.mkdir(parents=True, exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)


def write_atomically(path: Path, data: bytes, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Write beside it and rename. ``owner``: uid and gid. :raises OSError: the old content, if any, stands."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        os.fchmod(fd, mode)
        if owner is not None:
            os.fchown(fd, *owner)
        os.write(fd, data)
    finally:
        os.close(fd)
    temporary.replace(path)


def _decoded(path: Path, form: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=form)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
