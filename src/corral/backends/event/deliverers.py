# SPDX-License-Identifier: Apache-2.0
"""One deliverer for every kind of target."""

from __future__ import annotations

from typing import assert_never

from corral.backends.event.execute import ExecDeliverer
from corral.backends.event.interface import Deliverer
from corral.backends.event.webhook import WebhookDeliverer
from corral.model.events import Answer, Exec, Target, Verdict, Webhook, WorkflowTarget


class Deliverers:
    """``workflows``: what starts runs of registered workflows; None: this coordinator has none of that."""

    def __init__(
        self, *, webhooks: WebhookDeliverer, programs: ExecDeliverer, workflows: Deliverer | None = None
    ) -> None:
        self._webhooks = webhooks
        self._programs = programs
        self.workflows = workflows

    async def close(self) -> None:
        """End connections and tell programs that still run to stop."""
        await self._webhooks.close()
        await self._programs.close()

    async def deliver(self, target: Target, event: bytes, *, event_id: str, timeout: float) -> Answer:
        """As :class:`Deliverer` has it."""
        within = min(timeout, target.timeout)
        match target:
            case Webhook():
                return await self._webhooks.deliver(target, event, event_id=event_id, timeout=within)
            case Exec():
                return await self._programs.deliver(target, event, event_id=event_id, timeout=within)
            case WorkflowTarget():
                if self.workflows is None:
                    return Answer(
                        verdict=Verdict.LATER,
                        detail=f"not sent: nothing here runs workflow {target.workflow!r}; only a server does",
                    )
                return await self.workflows.deliver(target, event, event_id=event_id, timeout=within)
            case _:
                assert_never(target)
