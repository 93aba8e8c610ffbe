# SPDX-License-Identifier: Apache-2.0
"""A cloud of files: one per instance. As a program it is a provisioner on the kit: ``cloud.py DIRECTORY [CRASH]``.

``CRASH``: where the process kills itself: ``before-create``, ``after-create``, ``before-destroy``, ``after-destroy``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from corral.provisioner import Event, Instance, run


class Cloud:
    def __init__(self, directory: Path, crash: str = "") -> None:
        self.instances = directory / "instances"
        self.instances.mkdir(parents=True, exist_ok=True)
        self.calls = directory / "calls"
        self._crash = crash

    def create(self, event: Event) -> str:
        self._at("before-create")
        identity = f"i-{uuid.uuid4().hex[:8]}"
        tagged = self.instances.with_name(identity)
        tagged.write_text(json.dumps({"agent": event.agent_id, "cluster": event.cluster_id}))
        tagged.rename(self.instances / identity)
        self._at("after-create")
        return identity

    def destroy(self, event: Event) -> None:
        self._at("before-destroy")
        for instance in self.list(event.cluster_id):
            if instance.agent_id == event.agent_id:
                (self.instances / instance.provider_id).unlink(missing_ok=True)
        self._at("after-destroy")

    def list(self, cluster_id: str) -> Iterator[Instance]:
        for path in sorted(self.instances.iterdir()):
            try:
                tags = json.loads(path.read_text())
            except FileNotFoundError:
                continue
            if tags["cluster"] == cluster_id:
                yield Instance(tags["agent"], tags["cluster"], path.name)

    def _at(self, point: str) -> None:
        with self.calls.open("a") as file:
            file.write(point + "\n")
        if point == self._crash:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    cloud = Cloud(place, *sys.argv[2:])
    run(state=place / "state", create=cloud.create, destroy=cloud.destroy, list=cloud.list)
