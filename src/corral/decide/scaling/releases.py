# SPDX-License-Identifier: Apache-2.0
"""What is given back, and why."""

from __future__ import annotations

from corral.decide.scaling.terms import ReleaseReason, Supply
from corral.model.pools import Pool
from corral.model.states import ProvisionState

UNDER_WAY = (ProvisionState.REQUESTED, ProvisionState.ACTIVE)
OWN_CORDONS = frozenset({ReleaseReason.IDLE, ReleaseReason.CAP_CUT})
"""Cordons that say no more than that nobody needed the agent."""


def due(item: Supply, pool: Pool | None, now: int) -> ReleaseReason | None:
    """Reasons that need no comparison with demand, in order."""
    if item.static or item.assigned or item.state not in UNDER_WAY:
        return None
    if item.ended:
        return ReleaseReason.INSTANCE_ENDED
    if item.failed:
        return ReleaseReason.CREATE_FAILED
    if item.lost:
        return None
    if item.cordon is not None:
        return _cordon_reason(item.cordon)
    if item.draining:
        return ReleaseReason.DRAIN
    if item.state is ProvisionState.REQUESTED:
        return _never_registered(item, now)
    if pool is None or pool.draining:
        return ReleaseReason.DRAIN
    return None


def _never_registered(item: Supply, now: int) -> ReleaseReason | None:
    if item.bound is not None and not item.bound_live:
        return ReleaseReason.JOB_CANCELLED
    if item.deadline_at is not None and now >= item.deadline_at:
        return ReleaseReason.SPAWN_TIMEOUT
    return None


def _cordon_reason(cordon: str) -> ReleaseReason:
    return ReleaseReason(cordon) if cordon in set(ReleaseReason) else ReleaseReason.OPERATOR


def may_return(item: Supply, pool: Pool | None) -> bool:
    """May the scaler take back its cordon? Only its own, of an agent that is there and never had a job."""
    return (
        item.cordon in OWN_CORDONS
        and item.state is ProvisionState.ACTIVE
        and item.online
        and not (item.assigned or item.ever_assigned or item.held or item.draining)
        and not (item.failed or item.ended or item.lost or item.static)
        and pool is not None
        and not pool.draining
    )


def outlived(item: Supply, pool: Pool | None, now: int) -> bool:
    """Idle for longer than its pool keeps an agent that nobody wants."""
    return pool is not None and item.idle_since is not None and now - item.idle_since >= pool.idle_timeout * 1_000_000


def warm(item: Supply) -> bool:
    """Ready for a job that has not come: an agent that had one is never warm again."""
    return item.state is ProvisionState.ACTIVE and item.online and not item.ever_assigned and not item.static
