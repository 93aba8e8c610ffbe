# SPDX-License-Identifier: Apache-2.0
"""The service: real requests to the small server, signed and not."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.backends.event.secretfile import SecretStore
from corral.backends.event.signing import signed_headers
from corral.backends.event.webhook import WebhookDeliverer
from corral.model.events import Verdict, Webhook
from corral.provisioner.signature import BadSignature, verify
from corral.provisioner.web import Application, Server, make_server
from corral.runtime.clock import SystemClock
from tests.provisioner.test_rule import World, message

KEY = bytes(range(24))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
OLD = "whsec_" + base64.b64encode(bytes(32)).decode()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def server(world: World) -> Iterator[Server]:
    made = make_server(Application(world.provisioner, [SECRET, OLD]))
    thread = threading.Thread(target=made.serve_forever, args=(0.02,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def post(server: Server, body: bytes, headers: dict[str, str], method: str = "POST") -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        connection.request(method, "/any", body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_what_corral_sends_is_understood(server: Server, world: World) -> None:
    async def work() -> None:
        for secret in (SECRET, OLD):
            deliverer = WebhookDeliverer(SecretStore(Path("/absent"), {"S": secret}), SystemClock())
            target = Webhook(url=f"http://127.0.0.1:{server.server_port}/", secret="$S")

            async def say(
                kind: str, deliverer: WebhookDeliverer = deliverer, target: Webhook = target, **data: object
            ) -> Verdict:
                event = message(kind, **data)  # type: ignore[arg-type]
                return (await deliverer.deliver(target, event, event_id="e", timeout=10)).verdict

            agent = secret[6:12]
            assert await say("scale-up", agent=agent) is Verdict.DONE
            assert await say("scale-up", agent=agent) is Verdict.ALREADY
            assert await say("scale-down", agent=agent, sequence=2) is Verdict.DONE
            assert await say("scale-up", agent=agent) is Verdict.ABSENT
            assert await say("scale-up", agent=agent, epoch="0.1") is Verdict.STALE
            await deliverer.close()

    asyncio.run(work())
    assert world.agents() == []


def test_what_is_not_signed_does_nothing(server: Server, world: World) -> None:
    import time

    now = int(time.time())
    body = message("scale-up")
    good = signed_headers(KEY, "e", now, body)
    for headers in (
        {},
        signed_headers(bytes(range(1, 25)), "e", now, body),
        signed_headers(KEY, "e", now, body + b" "),
        signed_headers(KEY, "e", now - 400, body),
        signed_headers(KEY, "e", now + 400, body),
        good | {"webhook-id": "f"},
        good | {"webhook-timestamp": str(now + 1)},
        good | {"webhook-timestamp": "soon"},
        good | {"webhook-signature": good["webhook-signature"].replace("v1,", "v2,")},
        good | {"webhook-signature": ""},
    ):
        status, answer = post(server, body, headers)
        assert status == 401, headers
        assert SECRET not in str(answer)
    assert world.agents() == []
    assert post(server, body, good | {"webhook-signature": "v1,AAAA " + good["webhook-signature"]})[0] == 200


def test_what_is_no_post_of_an_event(server: Server) -> None:
    assert post(server, b"", {}, "GET")[0] == 405
    body = message("scale-sideways")
    import time

    assert post(server, body, signed_headers(KEY, "e", int(time.time()), body))[0] == 400
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest("POST", "/")
    connection.putheader("content-length", "999999999999")
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_without_a_secret_there_is_no_service(world: World) -> None:
    with pytest.raises(ValueError, match="anybody could"):
        Application(world.provisioner, [])
    with pytest.raises(ValueError, match="at least 24 bytes"):
        verify(["whsec_AAAA"], signed_headers(b"", "e", 0, b""), b"", now=0)


def test_the_tolerance_is_exact() -> None:
    headers = signed_headers(KEY, "e", 1000, b"x")
    for now in (700.0, 1300.0):
        verify([SECRET], headers, b"x", now=now)
    for now in (699.0, 1301.0):
        with pytest.raises(BadSignature, match="timestamp"):
            verify([SECRET], headers, b"x", now=now)
