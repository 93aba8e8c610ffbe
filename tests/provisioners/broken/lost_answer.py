# SPDX-License-Identifier: Apache-2.0
"""Broken: takes the same event again for the news that the first try has failed."""

from __future__ import annotations

import dataclasses

from corral.provisioner import Event, Provisioner, Result
from corral.provisioner.book import Record


class Broken(Provisioner):
    seen: dict[str, int]

    def _up(self, event: Event, record: Record | None) -> Result:
        self.seen = getattr(self, "seen", {})
        self.seen[event.id] = self.seen.get(event.id, 0) + 1
        if event.id.startswith("evt_lost") and self.seen[event.id] > 1:
            self._create(dataclasses.replace(event))
        return super()._up(event, record)
