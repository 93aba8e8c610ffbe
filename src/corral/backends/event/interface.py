# SPDX-License-Identifier: Apache-2.0
"""How one event reaches a user's provisioner, whatever the kind of target."""

from __future__ import annotations

from typing import Protocol

from corral.model.events import Answer, Target


class Deliverer(Protocol):
    """Delivers events to targets; one object may serve every kind of target.

    It never raises for what a provisioner (or the way to it) does: that is what the answer's verdict says. It never
    sends an event twice in one call, and keeps nothing between calls. Cancelling the call gives the delivery up: a
    connection is closed, a program killed; what it did until then is unknown.
    """

    async def deliver(self, target: Target, event: bytes, *, event_id: str, timeout: float) -> Answer:
        """Deliver ``event`` (a CloudEvent in structured mode, JSON) and wait at most ``timeout`` seconds for what it
        comes to. ``event_id``: the CloudEvent's ``id``, the same at every repetition. Nothing of the event, which may
        hold a claim code, is logged or put into the answer's ``detail``."""
        ...
