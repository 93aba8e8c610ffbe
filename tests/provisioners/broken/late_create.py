# SPDX-License-Identifier: Apache-2.0
"""Broken: forgets an agent as soon as its instance is destroyed."""

from __future__ import annotations

from corral.provisioner import Event, Provisioner, Result
from corral.provisioner.book import Record


class Broken(Provisioner):
    def _down(self, event: Event, record: Record | None) -> Result:
        result = super()._down(event, record)
        if record is not None:
            self.book._path(event.cluster_id, event.agent_id).unlink(missing_ok=True)
        return result
