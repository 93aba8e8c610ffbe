# SPDX-License-Identifier: Apache-2.0
"""Broken: that there is nothing to destroy is an error."""

from __future__ import annotations

from corral.provisioner import Event, Provisioner, Refused, Result
from corral.provisioner.book import Record


class Broken(Provisioner):
    def _down(self, event: Event, record: Record | None) -> Result:
        if record is not None and record.state == "gone":
            raise Refused("no such instance")
        return super()._down(event, record)
