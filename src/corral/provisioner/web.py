# SPDX-License-Identifier: Apache-2.0
"""A provisioner as a service: a WSGI application for any server, and a small server for those who need no other."""

from __future__ import annotations

import json
import socketserver
import sys
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from corral.provisioner.events import EVENT_LIMIT
from corral.provisioner.rule import Outcome, Provisioner, Result
from corral.provisioner.signature import BadSignature, verify

REQUEST_TIMEOUT = 30.0
"""Seconds that a client of the small server may be silent."""
StartResponse = Callable[..., Any]


class Application:
    """``POST`` of a signed event, on any path. ``secrets``: ``whsec_…``, two while one replaces the other."""

    def __init__(self, provisioner: Provisioner, secrets: Sequence[str]) -> None:
        if not secrets:
            raise ValueError("without a secret anybody could make and destroy instances")
        self._provisioner = provisioner
        self._secrets = tuple(secrets)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        status, answer = self._answer(environ)
        body = json.dumps(answer).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [body]

    def _answer(self, environ: dict[str, Any]) -> tuple[int, dict[str, object]]:
        if environ.get("REQUEST_METHOD") != "POST":
            return 405, {"message": "events are posted"}
        length = str(environ.get("CONTENT_LENGTH") or "")
        if not length.isdigit():
            return 411, {"message": "the request names no length"}
        if int(length[:12]) > EVENT_LIMIT:
            return 413, {"message": f"the event has {length[:12]} bytes; the limit is {EVENT_LIMIT}"}
        body = environ["wsgi.input"].read(int(length))
        headers = {
            name: str(environ.get("HTTP_" + name.upper().replace("-", "_"), ""))
            for name in ("webhook-id", "webhook-timestamp", "webhook-signature")
        }
        try:
            verify(self._secrets, headers, body)
        except BadSignature as error:
            return 401, {"message": str(error)}
        result: Result = self._provisioner.handle(body)
        if result.outcome not in (Outcome.DONE, Outcome.ALREADY):
            sys.stderr.write(f"{result.outcome.name.lower()}: {result.message}\n")
        return result.outcome.status, result.json()


class Server(socketserver.ThreadingMixIn, WSGIServer):
    """One thread per request. For a public address put a server with TLS in front, or use a WSGI server that has it."""

    daemon_threads = True
    allow_reuse_address = True


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT

    def log_message(self, format: str, *arguments: Any) -> None:
        """Only what was not done is said, by the application."""


def make_server(application: Application, host: str = "127.0.0.1", port: int = 0) -> Server:
    """Bound and listening; ``serve_forever()`` runs it. ``port`` 0: a free one, see ``server_port``."""
    server = Server((host, port), _Handler)
    server.set_app(application)
    return server
