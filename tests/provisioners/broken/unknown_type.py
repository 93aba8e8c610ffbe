# SPDX-License-Identifier: Apache-2.0
"""Broken: whatever is not a scale-down or an inventory is a scale-up."""

from __future__ import annotations

from corral.provisioner import Provisioner
from corral.provisioner.rule import Result


class Broken(Provisioner):
    def handle(self, raw: bytes) -> Result:
        return super().handle(raw.replace(b"scale-sideways.v9", b"scale-up.v1"))
