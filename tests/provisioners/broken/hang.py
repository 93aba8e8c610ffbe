# SPDX-License-Identifier: Apache-2.0
"""Broken: marks an agent as busy, and whoever gives up waiting leaves the mark behind."""

from __future__ import annotations

import socket
import time
from typing import Any

from corral.provisioner import Event
from corral.provisioner.web import Application
from tests.provisioner.cloud import Cloud


class Slow(Cloud):
    def create(self, event: Event) -> str:
        time.sleep(0.2)
        return super().create(event)


class Service(Application):
    busy: set[str]

    def _answer(self, environ: dict[str, Any]) -> tuple[int, dict[str, object]]:
        self.busy = getattr(self, "busy", set())
        identity = str(environ.get("HTTP_WEBHOOK_ID"))
        if identity in self.busy:
            return 503, {"message": "busy"}
        self.busy.add(identity)
        answer = super()._answer(environ)
        if not gone(environ["test.connection"]):
            self.busy.discard(identity)
        return answer


def gone(connection: socket.socket) -> bool:
    """Whether the client has hung up."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.setblocking(True)
