# SPDX-License-Identifier: Apache-2.0
"""Living wardens as the event loop sees them: one pidfd each, readable when the warden is dead."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from corral.model.ids import AgentId


@dataclass(frozen=True, kw_only=True)
class Warden:
    """``ended`` is set once it is dead and, if it was our child, reaped."""

    agent_id: AgentId
    pid: int
    pidfd: int
    ended: asyncio.Event


class Wardens:
    """Everything here runs in the event loop."""

    def __init__(self, on_end: Callable[[AgentId], None]) -> None:
        self._on_end = on_end
        self._known: dict[AgentId, Warden] = {}

    def get(self, agent_id: AgentId) -> Warden | None:
        return self._known.get(agent_id)

    def adopt(self, agent_id: AgentId, pid: int, pidfd: int) -> Warden:
        """Watch it; takes the descriptor over. One that is watched already stays as it is."""
        known = self._known.get(agent_id)
        if known is not None:
            os.close(pidfd)
            return known
        warden = Warden(agent_id=agent_id, pid=pid, pidfd=pidfd, ended=asyncio.Event())
        self._known[agent_id] = warden
        asyncio.get_running_loop().add_reader(pidfd, self._readable, warden)
        return warden

    def close(self) -> None:
        """Let go of all without touching them."""
        for warden in tuple(self._known.values()):
            self._forget(warden)

    def _readable(self, warden: Warden) -> None:
        self._forget(warden)
        reap(warden.pid)
        warden.ended.set()
        self._on_end(warden.agent_id)

    def _forget(self, warden: Warden) -> None:
        if self._known.pop(warden.agent_id, None) is not None:
            asyncio.get_running_loop().remove_reader(warden.pidfd)
            os.close(warden.pidfd)


def send(warden: Warden, number: signal.Signals) -> None:
    """Through the handle, so that it can only reach this warden."""
    if warden.ended.is_set():
        return
    try:
        signal.pidfd_send_signal(warden.pidfd, number)
    except (ProcessLookupError, PermissionError):
        pass


def reap(pid: int) -> None:
    """Collect it if it is a dead child of ours; a re-adopted one belongs to PID 1."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
