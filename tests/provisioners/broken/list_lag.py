# SPDX-License-Identifier: Apache-2.0
"""Broken: what was made shows in its listing only after a while."""

from __future__ import annotations

import time
from collections.abc import Iterator

from corral.provisioner import Instance
from tests.provisioner.cloud import Cloud

RENEWED = 0.4
"""Seconds; the adversary allows 0.25."""


class SlowList(Cloud):
    def list(self, cluster_id: str) -> Iterator[Instance]:
        for each in super().list(cluster_id):
            path = self.instances / each.provider_id
            if path.exists() and time.time() - path.stat().st_mtime > RENEWED:
                yield each

    def destroy(self, event: object) -> None:
        for each in super().list(getattr(event, "cluster_id", "")):
            if each.agent_id == getattr(event, "agent_id", ""):
                (self.instances / each.provider_id).unlink()
