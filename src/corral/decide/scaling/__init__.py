# SPDX-License-Identifier: Apache-2.0
"""From demand to instances and back: what to create, what to release, and a reason for everything else.

Pure and level-triggered: the whole state goes in, the difference to what should be comes out; planning again after
committing yields the empty plan.
"""

from __future__ import annotations

from corral.decide.scaling.backoff import SPAWN_TIMEOUT_ERROR, backoff, doubles
from corral.decide.scaling.planning import no_pool, plan
from corral.decide.scaling.room import Holding, Refusal, Room, held
from corral.decide.scaling.terms import (
    Creation,
    Demand,
    NotDone,
    Release,
    ReleaseReason,
    ScalingPlan,
    Shortfall,
    Supply,
    Unplaced,
)
from corral.decide.scaling.warm import warm_target

__all__ = [
    "SPAWN_TIMEOUT_ERROR",
    "Creation",
    "Demand",
    "Holding",
    "NotDone",
    "Refusal",
    "Release",
    "ReleaseReason",
    "Room",
    "ScalingPlan",
    "Shortfall",
    "Supply",
    "Unplaced",
    "backoff",
    "doubles",
    "held",
    "no_pool",
    "plan",
    "warm_target",
]
