# SPDX-License-Identifier: Apache-2.0
"""Broken: does what it is told, in whatever order it is told."""

from __future__ import annotations

import dataclasses

from corral.provisioner import Event, Provisioner, Result


class Broken(Provisioner):
    def _judged(self, event: Event) -> Result:
        return super()._judged(dataclasses.replace(event, sequence=1))
