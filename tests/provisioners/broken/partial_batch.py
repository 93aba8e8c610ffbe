# SPDX-License-Identifier: Apache-2.0
"""Broken: keeps one index of all instances, read and written back without a lock."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from corral.provisioner import Event, Instance, Provisioner
from tests.provisioner.cloud import Cloud


class Indexed(Cloud):
    def create(self, event: Event) -> str:
        known = self._index()
        time.sleep(0.1)
        made = super().create(event)
        self._path().write_text(json.dumps([*known, made]))
        return made

    def list(self, cluster_id: str) -> Iterator[Instance]:
        known = self._index()
        yield from (each for each in super().list(cluster_id) if each.provider_id in known)

    def _index(self) -> list[str]:
        return list(json.loads(self._path().read_text())) if self._path().exists() else []

    def _path(self):  # type: ignore[no-untyped-def]
        return self.calls.with_name("index")


class Broken(Provisioner):
    """Its records are right; the index is not."""
