# SPDX-License-Identifier: Apache-2.0
"""Broken: takes the word of whoever asks."""

from __future__ import annotations

from typing import Any

from corral.provisioner.web import Application


class Service(Application):
    def _answer(self, environ: dict[str, Any]) -> tuple[int, dict[str, object]]:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        result = self._provisioner.handle(body)
        return result.outcome.status, result.json()
