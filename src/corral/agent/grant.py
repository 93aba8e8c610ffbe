# SPDX-License-Identifier: Apache-2.0
"""The grant: how long an agent may go on with a job without being answered. Pure arithmetic, seconds.

It counts from the *sending* of the last heartbeat or ``hello`` that was answered: whoever answered heard the agent
at that moment or later, so it gives the job up later than the agent does, and two attempts never run at once.
"""

from __future__ import annotations

from corral.model.spec import OnLost
from corral.wire.messages import Limits

RETRY_MARGIN = 20.0
"""Seconds before ``lost_after`` at which every process of a ``retry`` job is dead: time for the coordinator to start
the next attempt at ``lost_after`` without meeting the old one, killing and clocks' drift included."""

KILL_MARGIN = 2.0
"""Seconds before the deadline at which the agent itself kills, so that the warden finds nothing left to do."""

IDLE_FAR = 10.0 * 365 * 86400
"""Seconds: "no limit" for an idle agent that stays (its next job shortens the deadline before it starts)."""


class Grant:
    """``base`` is the sending time of the last answered message; the process's start before the first."""

    def __init__(self, *, now: float, limits: Limits) -> None:
        self.base = now
        self.limits = limits
        self._sent: dict[int, float] = {}

    def sent(self, number: int, now: float) -> None:
        """A heartbeat is being sent (0: the ``hello``)."""
        if number == 0:
            # A new connection: what the old one did not answer will not be answered.
            self._sent.clear()
        self._sent[number] = now

    def answered(self, number: int) -> None:
        """It was answered. An unknown number changes nothing."""
        at = self._sent.get(number)
        if at is None:
            return
        self.base = max(self.base, at)
        self._sent = {other: sent for other, sent in self._sent.items() if other > number}

    def job_deadline(self, on_lost: OnLost | None) -> float:
        """When every process of a job with this policy is dead, if no answer comes."""
        if on_lost is OnLost.RETRY:
            return self.base + max(0.0, self.limits.lost_after - RETRY_MARGIN)
        return self.base + self.limits.stranded_after

    def idle_deadline(self, *, single_use: bool) -> float:
        """When an agent without a job gives up."""
        return self.base + (self.limits.stranded_after if single_use else IDLE_FAR)
