# SPDX-License-Identifier: Apache-2.0
"""Broken: reads whatever it is sent."""

from __future__ import annotations

import json
from typing import Any

from corral.provisioner import Provisioner
from corral.provisioner.rule import Result
from corral.provisioner.signature import BadSignature, verify
from corral.provisioner.web import Application


class Broken(Provisioner):
    def handle(self, raw: bytes) -> Result:
        event = json.loads(raw)
        event["data"].pop("run_id", None)
        return super().handle(json.dumps(event).encode())


class Service(Application):
    def _answer(self, environ: dict[str, Any]) -> tuple[int, dict[str, object]]:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        names = ("webhook-id", "webhook-timestamp", "webhook-signature")
        headers = {name: environ.get("HTTP_" + name.upper().replace("-", "_"), "") for name in names}
        try:
            verify(self._secrets, headers, body)
        except BadSignature:
            return 401, {}
        result = self._provisioner.handle(body)
        return result.outcome.status, result.json()
