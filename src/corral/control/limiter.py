# SPDX-License-Identifier: Apache-2.0
"""Failed credentials per address. Only attempts that did not verify are counted: one that does is never refused."""

from __future__ import annotations

from collections import OrderedDict

from corral.runtime.clock import Clock

ADDRESSES = 10_000
"""Addresses remembered; the longest quiet are forgotten first."""


class AddressLimiter:
    """A token bucket per address: ``burst`` failures at once, then one every ``retry_after`` seconds."""

    def __init__(self, clock: Clock, *, burst: int = 20, retry_after: float = 3.0) -> None:
        self._clock = clock
        self._burst = burst
        self.retry_after = retry_after
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def failed(self, address: str) -> bool:
        """Count one failure; False: too many, say so instead of what was wrong."""
        host = address.rsplit(":", 1)[0]
        now = self._clock.monotonic()
        tokens, at = self._buckets.pop(host, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + (now - at) / self.retry_after)
        allowed = tokens >= 1.0
        self._buckets[host] = (tokens - 1.0 if allowed else tokens, now)
        while len(self._buckets) > ADDRESSES:
            self._buckets.popitem(last=False)
        return allowed
