# SPDX-License-Identifier: Apache-2.0
"""One deliverer for every kind of target: runs of registered workflows here, all else by the adapters."""

from __future__ import annotations

from corral.backends.event.interface import Deliverer
from corral.model.events import Answer, Target, WorkflowTarget


class ByKind:
    """A :class:`~corral.backends.event.interface.Deliverer`."""

    def __init__(self, *, workflows: Deliverer, others: Deliverer) -> None:
        self._workflows = workflows
        self._others = others

    async def deliver(self, target: Target, event: bytes, *, event_id: str, timeout: float) -> Answer:
        way = self._workflows if isinstance(target, WorkflowTarget) else self._others
        return await way.deliver(target, event, event_id=event_id, timeout=timeout)
