# SPDX-License-Identifier: Apache-2.0
"""Broken: does not note the scale-down of what it does not know."""

from __future__ import annotations

from corral.provisioner import Event, Outcome, Provisioner, Result
from corral.provisioner.book import Record


class Broken(Provisioner):
    def _down(self, event: Event, record: Record | None) -> Result:
        return Result(Outcome.DONE, "unknown") if record is None else super()._down(event, record)
