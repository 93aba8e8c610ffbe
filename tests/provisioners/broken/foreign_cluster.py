# SPDX-License-Identifier: Apache-2.0
"""Broken: an agent id is enough for it."""

from __future__ import annotations

import json

from corral.provisioner import Event
from tests.provisioner.cloud import Cloud


class Shared(Cloud):
    def destroy(self, event: Event) -> None:
        for path in self.instances.iterdir():
            if json.loads(path.read_text())["agent"] == event.agent_id:
                path.unlink()
