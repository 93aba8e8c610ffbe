# SPDX-License-Identifier: Apache-2.0
"""The adversary finds in each broken provisioner what is broken, and nothing in a right one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import importlib
import threading
from collections.abc import Callable, Iterator
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
from corral.provisioner import Event, Provisioner
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
            accepted_quiet=0.2,
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


class Asynchronous(Cloud):
    """Begins what it is asked for and ends it a little later, in the order in which it was asked."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._queues: dict[str, list[threading.Thread]] = {}
        self.begun = threading.local()

    def create(self, event: Event) -> str:
        self._later(event, super().create)
        return ""

    def destroy(self, event: Event) -> None:
        there = any(each.agent_id == event.agent_id for each in self.list(event.cluster_id))
        if there or self._queues.get(event.agent_id):
            self._later(event, super().destroy)

    def _later(self, event: Event, work: Callable[[Event], object]) -> None:
        queue = self._queues.setdefault(event.agent_id, [])
        before = queue[-1] if queue else None

        def run() -> None:
            if before is not None:
                before.join()
            threading.Event().wait(0.05)
            work(event)
            queue.remove(threading.current_thread())

        thread = threading.Thread(target=run)
        queue.append(thread)
        thread.start()
        self.begun.now = True


class Accepting(Application):
    """202 for what was begun."""

    cloud: Asynchronous

    def _answer(self, environ: dict[str, Any]) -> tuple[int, dict[str, object]]:
        self.cloud.begun.now = False
        status, answer = super()._answer(environ)
        return (202 if status == 200 and self.cloud.begun.now else status), answer


def test_L16_an_asynchronous_provisioner_passes(tmp_path: Path) -> None:
    """L16: that a delete was taken is not that the instance is gone; the listing says when it is."""
    cloud = Asynchronous(tmp_path)
    provisioner = Provisioner(tmp_path / "state", create=cloud.create, destroy=cloud.destroy, list=cloud.list)
    application = Accepting(provisioner, [SECRET])
    application.cloud = cloud
    done = verification(application, 3.0)
    assert {row.name: row.happened for row in done.rows if row.status is not Status.PASSED} == {}
    assert done.passed
    assert list(cloud.instances.iterdir()) == []


def test_L17_instances_without_tags_are_found_out(tmp_path: Path) -> None:
    """L17: what is not tagged in the call that makes it is nobody's."""

    class Untagged(Cloud):
        def create(self, event: Event) -> str:
            return super().create(dataclasses.replace(event, agent_id=""))

    cloud = Untagged(tmp_path)
    provisioner = Provisioner(tmp_path / "state", create=cloud.create, destroy=cloud.destroy, list=cloud.list)
    done = verification(Application(provisioner, [SECRET]), 0.2)
    row = next(row for row in done.rows if row.name == "list lag")
    assert row.status is Status.FAILED
    assert "1 others are listed" in row.happened
    assert "tag instances" in row.remedy
    assert any("still listed" in sentence for sentence in done.left)


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
