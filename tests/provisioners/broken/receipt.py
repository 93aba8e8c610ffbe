# SPDX-License-Identifier: Apache-2.0
"""Broken: answers an inventory with something that is no listing."""

from __future__ import annotations

from corral.provisioner import Event, Outcome, Provisioner, Result


class Broken(Provisioner):
    def _inventory(self, event: Event) -> Result:
        return Result(Outcome.DONE, body={"ok": True})
