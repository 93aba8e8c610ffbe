# SPDX-License-Identifier: Apache-2.0
"""Whom an instance runs as: a uid of its own from a configured range, a named user, or the coordinator's user."""

from __future__ import annotations

import os
import pwd
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from corral.backends.interface import Denied, Misconfigured, NoCapacity
from corral.backends.process import procfs
from corral.model.ids import AgentId


@dataclass(frozen=True, kw_only=True)
class User:
    """``exclusive``: nothing else on the host has this uid, so every process with it belongs to the instance."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    exclusive: bool = False


def named_user(name: str) -> User | None:
    """The user to change to, None when it is our own.

    :raises Misconfigured: no such user.
    :raises Denied: only root can become another user.
    """
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise Misconfigured(
            f"the pool's user {name!r} does not exist on this host; create it or name another"
        ) from None
    if entry.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise Denied(f"running jobs as {name!r} needs a coordinator started as root; drop `user` from the pool")
    return User(uid=entry.pw_uid, gid=entry.pw_gid, groups=tuple(os.getgrouplist(name, entry.pw_gid)))


class Slots:
    """Uids of the configured range, each lent to one instance at a time. The gid equals the uid."""

    def __init__(self, uids: range) -> None:
        self._uids = uids
        self._lent: dict[AgentId, int] = {}
        self._lock = threading.Lock()
        """Several worker threads lend at once."""

    def lend(self, agent_id: AgentId, taken: Iterable[int]) -> User:
        """The lowest free uid. ``taken``: those of instances on disk. A uid with a living process is somebody
        else's, whatever the configuration says.

        :raises NoCapacity: all are in use.
        """
        busy = {*taken, *living_uids()}
        with self._lock:
            free = next((uid for uid in self._uids if uid not in busy and uid not in self._lent.values()), None)
            if free is not None:
                self._lent[agent_id] = free
                return User(uid=free, gid=free, exclusive=True)
        raise NoCapacity(
            f"all {len(self._uids)} uids {self._uids.start}–{self._uids.stop - 1} are in use; "
            "wait for an instance to end or widen the range",
            retry_after=5.0,
        )

    def give_back(self, agent_id: AgentId) -> None:
        self._lent.pop(agent_id, None)


def living_uids() -> set[int]:
    """Owners of the processes that are alive."""
    owners: set[int] = set()
    for pid in procfs.pids():
        try:
            uid = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
        except OSError:
            continue
        if uid in owners:
            continue
        seen = procfs.stat(pid)
        if seen is not None and not seen.gone:
            owners.add(uid)
    return owners
