# SPDX-License-Identifier: Apache-2.0
"""A repository and git's own HTTP server (`git http-backend`) on loopback, with a password and a switch to redirect."""

from __future__ import annotations

import base64
import contextlib
import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

CLEAN = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.com",
    "GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2024-01-01T00:00:00Z",
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
}


def git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *arguments],
        cwd=directory,
        env=CLEAN,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


class Repository:
    """Two commits on one branch; the first one is what tests fetch."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        directory.mkdir(parents=True)
        git(directory, "init", "-q", "-b", "main")
        self.first = self.commit({"file": "one\n", "run.sh": "#!/bin/sh\necho ran\n"}, executable=("run.sh",))
        self.second = self.commit({"file": "two\n"})

    @property
    def url(self) -> str:
        return f"file://{self.path}"

    def commit(self, files: dict[str, str], executable: tuple[str, ...] = ()) -> str:
        for name, text in files.items():
            (self.path / name).write_text(text)
            (self.path / name).chmod(0o755 if name in executable else 0o644)
        git(self.path, "add", "-A")
        git(self.path, "commit", "-q", "-m", "a commit")
        return git(self.path, "rev-parse", "HEAD")


class GitServer(http.server.ThreadingHTTPServer):
    """Serves every repository below ``root`` as ``/NAME/.git``. ``password``: what ``user`` has to give, if any.
    ``redirect``: where requests are sent instead. ``silent``: requests are not answered until it is released."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.password = ""
        self.redirect = ""
        self.silent: threading.Event | None = None
        self.given: list[str] = []
        """Authorization headers."""
        self.leaks: list[str] = []
        """Processes in whose command line or environment the password stood while one was asked."""
        self.asked = threading.Event()

    def url(self, host: str = "127.0.0.1", name: str = "repository") -> str:
        return f"http://{host}:{self.server_port}/{name}/.git"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: GitServer

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self._body())

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body = b""
        while size := int(self.rfile.readline().strip(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _serve(self, body: bytes) -> None:
        self.server.asked.set()
        if self.server.silent is not None:
            self.server.silent.wait(30)
            return
        given = self.headers.get("Authorization", "")
        if given:
            self.server.given.append(given)
            self.server.leaks += processes_with(self.server.password)
        if self.server.password and not self._allowed(given):
            self._answer(401, {"WWW-Authenticate": 'Basic realm="git"'})
        elif self.server.redirect:
            self._answer(302, {"Location": self.server.redirect + self.path})
        else:
            self._backend(body)

    def _allowed(self, given: str) -> bool:
        kind, _, value = given.partition(" ")
        return kind == "Basic" and base64.b64decode(value).decode().endswith(f":{self.server.password}")

    def _answer(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _backend(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        env = {
            **CLEAN,
            "GIT_PROJECT_ROOT": str(self.server.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.decode().split(": ", 1) for line in head.split(b"\r\n") if b": " in line)
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def processes_with(text: str) -> list[str]:
    """Command lines of the processes that show ``text`` to whoever may look at them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*") if text else ():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            if text.encode() in line + (entry / "environ").read_bytes():
                found.append(line.decode(errors="replace"))
    return found


@contextlib.contextmanager
def serving(root: Path) -> Iterator[GitServer]:
    server = GitServer(root)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        if server.silent is not None:
            server.silent.set()
        server.shutdown()
        thread.join()
        server.server_close()
