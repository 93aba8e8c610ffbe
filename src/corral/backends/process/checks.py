# SPDX-License-Identifier: Apache-2.0
"""Can the process backend work on this host? Found out by doing, as the user that jobs would run as."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corral.backends.interface import Finding
from corral.backends.process.cgroups import LIMITED, Cgroups
from corral.backends.process.journal import make_root
from corral.backends.process.users import User, named_user
from corral.model.errors import CorralError

PROBE_SECONDS = 5.0
"""Longest a probe may take; the whole check is bounded to 10 s by its caller."""
_PROBE = "import os, sys; [os.stat(path) for path in sys.argv[1:]]"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is checked. ``users``: names that pools use; ``min_free``: bytes."""

    root: Path
    cache_root: Path
    python: str
    uids: range | None
    users: tuple[str, ...]
    min_free: int


def findings(subject: Subject, groups: Cgroups) -> tuple[Finding, ...]:
    """Everything found, failures included; never raises for what it looks for."""
    return (
        *_directory(subject),
        *_space(subject),
        *_run_as(subject),
        *_cgroups(groups),
        _isolation(subject),
    )


def _directory(subject: Subject) -> Iterator[Finding]:
    try:
        make_root(subject.root)
    except OSError as error:
        yield Finding(
            level="failed",
            message=f"{subject.root} cannot be made: {error.strerror}",
            remedy="name another directory, or make it writable for the coordinator",
        )
        return
    if not os.access(subject.root, os.W_OK | os.X_OK):
        yield Finding(
            level="failed",
            message=f"{subject.root} is not writable",
            remedy=f"chown it to the coordinator's user ({_own_name()})",
        )


def _space(subject: Subject) -> Iterator[Finding]:
    try:
        space = os.statvfs(subject.root)
    except OSError:
        return  # said above
    free = space.f_bavail * space.f_frsize
    enough = free >= subject.min_free
    yield Finding(
        level="ok" if enough else "failed",
        message=f"{free // 1024**2} MiB free in {subject.root}",
        remedy="" if enough else f"free some: no instance is made below {subject.min_free // 1024**2} MiB",
    )


def _run_as(subject: Subject) -> Iterator[Finding]:
    if subject.uids is not None and os.geteuid() != 0:
        yield Finding(
            level="failed",
            message="a user per instance needs a coordinator started as root",
            remedy="drop the uid range, or start as root",
        )
    elif subject.uids is not None:
        yield from _probe(subject, User(uid=subject.uids.start, gid=subject.uids.start), f"uid {subject.uids.start}")
    for name in subject.users:
        try:
            user = named_user(name)
        except CorralError as error:
            yield Finding(level="failed", message=str(error), remedy="")
            continue
        yield from _probe(subject, user, f"user {name}")
    if subject.uids is None and not subject.users:
        yield from _probe(subject, None, f"user {_own_name()}")


def _probe(subject: Subject, user: User | None, who: str) -> Iterator[Finding]:
    """Run the interpreter as that user and let it pass through to the instances and to Corral itself."""
    paths = [str(subject.root), str(Path(__file__).resolve().parents[2] / "agent")]
    identity = {} if user is None else {"user": user.uid, "group": user.gid, "extra_groups": list(user.groups)}
    try:
        done = subprocess.run(
            [subject.python, "-I", "-S", "-c", _PROBE, *paths],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
            env={},
            **identity,  # type: ignore[call-overload]
        )
    except (OSError, subprocess.SubprocessError) as error:
        why = error.strerror if isinstance(error, OSError) else "it did not answer"
        yield Finding(
            level="failed",
            message=f"{who} cannot run {subject.python}: {why}",
            remedy="install Corral where that user can read and run it, such as /opt",
        )
        return
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        yield Finding(
            level="failed",
            message=f"{who} cannot reach what an agent needs: {last}",
            remedy="let that user pass through every directory above it (chmod o+x)",
        )
        return
    yield Finding(level="ok", message=f"{who} can run {subject.python} and reach {subject.root}")


def _cgroups(groups: Cgroups) -> Iterator[Finding]:
    enforced = groups.enforceable()
    missing = [name for name in LIMITED if name not in enforced]
    if enforced:
        yield Finding(level="ok", message=f"cgroups limit {', '.join(name for name in LIMITED if name in enforced)}")
    if missing:
        yield Finding(
            level="warning",
            message=f"no writable cgroup limits {', '.join(missing)}: memory falls back to a limit per process, "
            "cpu is not limited, and processes only with a uid per instance",
            remedy="start as root, or delegate a cgroup to the coordinator (systemd: Delegate=yes)",
        )
    if not groups.can_kill:
        yield Finding(level="warning", message="no writable version 2 cgroup: processes are killed one by one")


def _isolation(subject: Subject) -> Finding:
    if subject.uids is not None:
        return Finding(level="ok", message="each instance has a user of its own; kernel and network are the host's")
    return Finding(
        level="warning",
        message=f"jobs run as {' and '.join(subject.users) or _own_name()} on this host, not apart from each other: "
        "for trusted code only",
        remedy="start as root with a uid range, or use the container backend",
    )


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"
