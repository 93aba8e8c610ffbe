# SPDX-License-Identifier: Apache-2.0
"""The adversary finds in each broken provisioner what is broken, and nothing in a right one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import make_server as make_wsgi_server

import pytest

from corral.backends.event.secretfile import SecretStore
from corral.backends.event.webhook import WebhookDeliverer
from corral.cli.verifying.asking import Adversary
from corral.cli.verifying.report import Verification, verify
from corral.cli.verifying.rows import CHECKS, Status
from corral.model.events import Webhook
from corral.provisioner import Provisioner
from corral.provisioner.web import Application, Server, _Handler
from corral.runtime.chance import SystemChance
from corral.runtime.clock import SystemClock
from tests.provisioner.cloud import Cloud

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
FORGED = "whsec_" + base64.b64encode(bytes(32)).decode()


class Handler(_Handler):
    def get_environ(self) -> dict[str, Any]:
        return {**super().get_environ(), "test.connection": self.connection}


@contextlib.contextmanager
def serving(application: Application) -> Iterator[str]:
    server = make_wsgi_server("127.0.0.1", 0, application, server_class=Server, handler_class=Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def service(place: Path, module: str = "") -> Application:
    """The right provisioner, with what the module breaks: its ``Broken``, ``Service``, or cloud."""
    found = importlib.import_module(f"tests.provisioners.broken.{module}") if module else None
    own = [value for value in vars(found).values() if isinstance(value, type)] if found else []
    clouds = [value for value in own if issubclass(value, Cloud) and value is not Cloud]
    cloud = (clouds or [Cloud])[0](place)
    kind = getattr(found, "Broken", Provisioner)
    provisioner = kind(place / "state", create=cloud.create, destroy=cloud.destroy, list=cloud.list)
    made: Application = getattr(found, "Service", Application)(provisioner, [SECRET])
    return made


def verification(application: Application, patience: float = 0.5) -> Verification:
    async def work(url: str) -> Verification:
        clock = SystemClock()
        honest, impostor = (
            WebhookDeliverer(SecretStore(Path("/absent"), {"S": secret}), clock) for secret in (SECRET, FORGED)
        )
        adversary = Adversary(
            Webhook(url=url, secret="$S"),
            honest,
            impostor=impostor,
            clock=clock,
            chance=SystemChance(),
            timeout=10.0,
            patience=patience,
        )
        try:
            return await verify(adversary)
        finally:
            await honest.close()
            await impostor.close()

    with serving(application) as url:
        return asyncio.run(work(url))


def test_a_right_provisioner_passes_every_row_and_nothing_is_left(tmp_path: Path) -> None:
    done = verification(service(tmp_path))
    assert {row.name: row.happened for row in done.rows if row.status is not Status.PASSED} == {}
    assert done.passed
    assert list((tmp_path / "instances").iterdir()) == []


@pytest.mark.parametrize("name", [check.name for check in CHECKS])
def test_a_broken_one_fails_in_its_row_alone(tmp_path: Path, name: str) -> None:
    patience = 0.25 if name == "list lag" else 0.5
    done = verification(service(tmp_path, name.replace(" ", "_")), patience)
    failed = {row.name: row.happened for row in done.rows if row.status is Status.FAILED}
    assert list(failed) == [name], failed
    row = next(row for row in done.rows if row.name == name)
    assert row.remedy
    assert not done.passed


def test_nobody_there_is_said_once(tmp_path: Path) -> None:
    async def work() -> Verification:
        clock = SystemClock()
        deliverer = WebhookDeliverer(SecretStore(Path("/absent"), {"S": SECRET}), clock)
        adversary = Adversary(
            Webhook(url="http://127.0.0.1:9/", secret="$S"),
            deliverer,
            impostor=None,
            clock=clock,
            chance=SystemChance(),
            timeout=2.0,
            patience=0.5,
        )
        return await verify(adversary)

    done = asyncio.run(work())
    assert (done.reached, len(done.rows), done.rows[0].status) == (False, 1, Status.FAILED)
    assert "no connection" in done.rows[0].happened
