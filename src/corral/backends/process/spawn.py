# SPDX-License-Identifier: Apache-2.0
"""Lay out an instance directory and start its warden. Blocking: a few milliseconds, meant for a worker thread."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from corral.backends.interface import InstanceSpec
from corral.backends.process import cgroups, launch
from corral.backends.process.environment import agent_environment
from corral.backends.process.journal import Journal, Place, write_atomically
from corral.backends.process.users import User
from corral.model.agentconfig import DEFAULT_INHERIT_ENV, AgentConfig

WARDEN = str(Path(__file__).with_name("warden.py"))
TIED_FD = 3
READY_FD = 4
"""Descriptors of the warden."""
AGENT_UMASK = "022"


@dataclass(frozen=True, kw_only=True)
class Order:
    """All that one instance is made of. ``user``: None keeps the coordinator's. ``tied``: read end of the pipe whose
    end stops the instance, or -1. ``cache``: directory that outlives it. Times in seconds."""

    spec: InstanceSpec
    place: Place
    created: int
    cache: Path
    user: User | None
    groups: tuple[cgroups.Group, ...]
    limits: cgroups.Limits
    python: str
    agent_command: tuple[str, ...]
    environ: Mapping[str, str]
    tied: int
    claim_seconds: float
    kill_grace: float


@dataclass(frozen=True, kw_only=True)
class Started:
    """``ready``: the pipe on which the warden says ``ok`` or ``failed ERRNO WHY`` once."""

    pid: int
    ready: int


def lay_out(order: Order) -> None:
    """Journal first, then everything the agent needs. :raises OSError: something is left, the journal names it."""
    place = order.place
    owner = None if order.user is None else (order.user.uid, order.user.gid)
    place.path.mkdir(mode=0o700, exist_ok=True)
    place.write_journal(_journal(order))
    # Another user has to pass through to its home; what lies beside it stays closed by its own modes.
    place.path.chmod(0o711 if owner else 0o700)
    for directory in (place.home, place.work):
        _own_directory(directory, owner)
    for directory in (order.cache.parent, order.cache):
        directory.mkdir(parents=True, exist_ok=True)
    order.cache.parent.chmod(0o711 if owner else 0o700)
    _own_directory(order.cache, owner)
    write_atomically(place.config, msgspec.json.encode(_config(order)), 0o600, owner)
    for group in order.groups:
        cgroups.make(group)


def start_warden(order: Order) -> Started:
    """:raises OSError: not started."""
    ready_read, ready_write = os.pipe()
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(order.place.path / "warden.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
    ]
    held = [_above(ready_write)]
    if order.tied >= 0:
        held.append(_above(order.tied))
        actions.append((os.POSIX_SPAWN_DUP2, held[1], TIED_FD))
    actions.append((os.POSIX_SPAWN_DUP2, held[0], READY_FD))
    environment = agent_environment(
        order.environ,
        agent_id=order.spec.agent_id,
        home=str(order.place.home),
        inherit=order.spec.inherit_env,
    )
    try:
        pid = os.posix_spawn(
            order.python, _arguments(order), environment, file_actions=actions, setsid=True, setsigmask=()
        )
    except OSError:
        os.close(ready_read)
        raise
    finally:
        for fd in (ready_write, *held):
            os.close(fd)
    os.set_blocking(ready_read, False)
    return Started(pid=pid, ready=ready_read)


def _above(fd: int) -> int:
    """A copy whose number does not collide with the warden's; closed in every other child."""

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16)


def _journal(order: Order) -> Journal:
    exclusive = order.user is not None and order.user.exclusive
    return Journal(
        cluster_id=order.spec.cluster_id,
        pool=order.spec.pool,
        agent_id=order.spec.agent_id,
        created=order.created,
        slot=order.user.uid if exclusive and order.user is not None else -1,
        cgroups=tuple(str(group.path) for group in order.groups),
    )


def _config(order: Order) -> AgentConfig:
    spec = order.spec
    return AgentConfig(
        agent_id=spec.agent_id,
        coordinator_urls=spec.coordinator_urls,
        claim_code=spec.claim_code.reveal(),
        single_use=spec.single_use,
        work_dir=str(order.place.work),
        cache_dir=str(order.cache),
        grant_fd=launch.GRANT_FD,
        inherit_env=DEFAULT_INHERIT_ENV if spec.inherit_env is None else spec.inherit_env,
    )


def _own_directory(path: Path, owner: tuple[int, int] | None) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    path.chmod(0o700)
    if owner is not None:
        os.chown(path, *owner, follow_symlinks=False)


def _arguments(order: Order) -> list[str]:
    arguments = [order.python, "-I", "-S", WARDEN, str(order.place.path)]
    options: list[tuple[str, str]] = [
        ("--home", str(order.place.home)),
        ("--grace", str(order.kill_grace)),
        ("--claim-seconds", str(order.claim_seconds)),
        ("--ready", str(READY_FD)),
        ("--umask", AGENT_UMASK),
    ]
    if order.tied >= 0:
        options.append(("--tied", str(TIED_FD)))
    if order.user is not None:
        user = order.user
        options.append(("--user", ":".join(str(number) for number in (user.uid, user.gid, *user.groups))))
    options.extend(("--cgroup", str(group.path)) for group in order.groups)
    options.extend(("--limit", f"{name}={value}") for name, value in resource_limits(order))
    for option in options:
        arguments.extend(option)
    return [*arguments, "--", *order.agent_command, "--config", str(order.place.config)]


def resource_limits(order: Order) -> list[tuple[str, int]]:
    """What no cgroup enforces, as far as a process limit can stand in. Memory counts per process then. A number of
    processes counts per user: only where the user is the instance's own."""
    enforced = {name for group in order.groups for name in group.values}
    limits: list[tuple[str, int]] = []
    if order.limits.memory is not None and "memory" not in enforced:
        limits.append(("DATA", _capped(resource.RLIMIT_DATA, order.limits.memory)))
    exclusive = order.user is not None and order.user.exclusive
    if order.limits.pids is not None and "pids" not in enforced and exclusive:
        limits.append(("NPROC", _capped(resource.RLIMIT_NPROC, order.limits.pids)))
    return limits


def _capped(kind: int, value: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
