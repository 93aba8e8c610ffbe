# SPDX-License-Identifier: Apache-2.0
"""A provisioner as a small service: its instances are agents on the machine that it runs on.

``service.py --port 8400 --secret-file FILE --directory DIR``. Needs Corral's Python package; see README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from corral.provisioner import Event, Instance, Provisioner, Refused
from corral.provisioner.web import Application, make_server

STOP_TIMEOUT = 10.0
"""Seconds that an agent has to end by itself."""


class LocalAgents:
    """One directory per instance; its name carries cluster and agent id from the first moment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def create(self, event: Event) -> str:
        place = self._place(event)
        for part in ("work", "cache"):
            (place / part).mkdir(parents=True, exist_ok=True)
        config = place / "agent.json"
        # By a file that nobody else can read, never by an argument.
        with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(
                {
                    "agent_id": event.agent_id,
                    "coordinator_urls": list(event.coordinator_urls),
                    "claim_code": event.claim_code,
                    "work_dir": str(place / "work"),
                    "cache_dir": str(place / "cache"),
                },
                file,
            )
        with (place / "log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "corral.agent", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._children[place.name] = child
        (place / "pid").write_text(f"{child.pid} {start_time(child.pid)}")
        return place.name

    def destroy(self, event: Event) -> None:
        place = self._place(event)
        child = self._children.pop(place.name, None)
        if child is not None:
            end(child)
        elif place.exists():
            # Started by an earlier life of this service.
            end_by_pid(place / "pid")
        shutil.rmtree(place, ignore_errors=True)

    def list(self, cluster_id: str) -> Iterator[Instance]:
        for place in sorted(self.directory.iterdir()):
            cluster, _, agent = place.name.rpartition(".")
            if cluster == cluster_id:
                yield Instance(agent, cluster, place.name)

    def _place(self, event: Event) -> Path:
        if not all(word.replace("_", "").replace("-", "").isalnum() for word in (event.cluster_id, event.agent_id)):
            raise Refused("the ids are no names of directories")
        return self.directory / f"{event.cluster_id}.{event.agent_id}"


def end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def start_time(pid: int) -> str:
    """Of this process: its number alone may come round again. Empty when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def end_by_pid(file: Path) -> None:
    if not file.exists():
        return
    number, _, started = file.read_text().partition(" ")
    waiting = threading.Event()
    for attempt in range(100):
        if start_time(int(number)) != started or not started:
            return
        os.kill(int(number), signal.SIGTERM if attempt < 50 else signal.SIGKILL)
        waiting.wait(STOP_TIMEOUT / 50)
    raise Refused(f"the agent with pid {number} does not end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8400)
    parser.add_argument("--secret-file", type=Path, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    given = parser.parse_args()
    agents = LocalAgents(given.directory.absolute() / "instances")
    provisioner = Provisioner(given.directory / "rule", create=agents.create, destroy=agents.destroy, list=agents.list)
    server = make_server(Application(provisioner, [given.secret_file.read_text().strip()]), given.host, given.port)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"listening on http://{given.host}:{server.server_port}/", flush=True)
    server.serve_forever(0.1)


if __name__ == "__main__":
    main()
