# SPDX-License-Identifier: Apache-2.0
"""How long a pool's creations wait after a failure: doubling with each in a row, one success resets.

Several instances that were under way together and fail are one failure: only what was asked for after the last pause
began makes it longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from corral.decide.scaling.terms import Supply
from corral.model.pools import Backoff
from corral.model.records import PoolHealth

SPAWN_TIMEOUT_ERROR = "no agent registered before the spawn deadline"


def backoff(failures_before: int, pace: Backoff) -> int:
    """Microseconds to wait after one more failure in a row."""
    return int(min(pace.base * 2 ** min(failures_before, 20), pace.most) * 1_000_000)


def doubles(known: PoolHealth | None, requested_at: int) -> bool:
    """Does the failure of an instance that was asked for at this moment count as one more?"""
    return known is None or known.backoff_began_at is None or requested_at > known.backoff_began_at


def after_failure(
    health: Mapping[str, PoolHealth], failed: Iterable[Supply], pace: Backoff, now: int
) -> Mapping[str, PoolHealth]:
    """As it will be when this plan is committed: a pool that just failed is not asked again at once."""
    after = dict(health)
    for item in failed:
        known = after.get(item.pool)
        if item.requested_at is None or doubles(known, item.requested_at):
            after[item.pool] = _failing(known, item.pool, pace, now)
    return after


def _failing(known: PoolHealth | None, pool: str, pace: Backoff, now: int) -> PoolHealth:
    if known is not None and known.backoff_until is not None and now < known.backoff_until:
        return known
    before = known.failures if known is not None else 0
    return PoolHealth(
        pool=pool,
        failures=before + 1,
        backoff_began_at=now,
        backoff_until=now + backoff(before, pace),
        last_error=SPAWN_TIMEOUT_ERROR,
    )
