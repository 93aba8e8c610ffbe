# SPDX-License-Identifier: Apache-2.0
"""Stands for a cloud on one machine: an instance is an agent process. ``python cloud.py DIRECTORY [PORT]``.

PUT /instances/NAME {"tags": {...}, "agent": {...}} makes one, or answers with the one of that name; a name that was
deleted is never used again (410). DELETE /instances/NAME ends it. GET /instances?cluster_id=ID lists.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PATIENCE = 10.0
"""Seconds between asking an instance to end and killing it."""


class Cloud:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lock = threading.Lock()
        self.instances: dict[str, dict] = {}
        self.processes: dict[str, subprocess.Popen] = {}
        self.deleted: set[str] = set()

    def create(self, name: str, tags: dict, agent: dict) -> dict | None:
        """The instance of this name; None: it was deleted."""
        with self.lock:
            if name in self.deleted:
                return None
            if name not in self.instances:
                self.processes[name] = self._boot(name, agent)
                self.instances[name] = {
                    "name": name,
                    "id": f"i-{len(self.instances) + len(self.deleted)}",
                    "tags": tags,
                }
            return self.instances[name]

    def _boot(self, name: str, agent: dict) -> subprocess.Popen:
        home = self.directory / name
        for part in ("work", "cache"):
            (home / part).mkdir(parents=True)
        config = home / "agent.json"
        config.touch(mode=0o600)
        config.write_text(json.dumps({**agent, "work_dir": str(home / "work"), "cache_dir": str(home / "cache")}))
        command = [sys.executable, "-m", "corral.agent", "--config", str(config)]
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def delete(self, name: str) -> bool:
        with self.lock:
            self.deleted.add(name)
            process = self.processes.pop(name, None)
            known = self.instances.pop(name, None) is not None
        if process is not None:
            end(process)
        shutil.rmtree(self.directory / name, ignore_errors=True)
        return known

    def listed(self, cluster_id: str) -> list[dict]:
        with self.lock:
            return [each for each in self.instances.values() if each["tags"].get("cluster_id") == cluster_id]


def end(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def handler(cloud: Cloud) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            made = cloud.create(self.name(), body["tags"], body["agent"])
            self.answer(410, {"error": "this name was deleted"}) if made is None else self.answer(200, made)

        def do_DELETE(self) -> None:
            self.answer(200 if cloud.delete(self.name()) else 404, {})

        def do_GET(self) -> None:
            wanted = parse_qs(urlsplit(self.path).query).get("cluster_id", [""])[0]
            self.answer(200, cloud.listed(wanted))

        def name(self) -> str:
            return Path(urlsplit(self.path).path).name

        def answer(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *parts: object) -> None:
            """Requests hold nothing that has to be seen."""

    return Handler


def main(directory: str, port: str = "8093") -> None:
    cloud = Cloud(Path(directory).resolve())
    cloud.directory.mkdir(parents=True, exist_ok=True)
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), handler(cloud))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    finally:
        for name in list(cloud.processes):
            cloud.delete(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
