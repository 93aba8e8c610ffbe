# SPDX-License-Identifier: Apache-2.0
"""Webhooks over real sockets: what is sent, and that nothing a server does raises, hangs or grows."""

from __future__ import annotations

import asyncio
import base64
import logging
import random
import resource
import socket
import ssl
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.backends.event.answering import BODY_LIMIT
from corral.backends.event.secretfile import SecretStore
from corral.backends.event.webhook import WebhookDeliverer, retry_after, verdict_of
from corral.model.events import Answer, Verdict, Webhook
from corral.provisioner.signature import verify
from corral.runtime.clock import SECOND, SystemClock
from tests.backends.event.raw import CODE, Behave, answer, event, serving

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


TRUST = ssl.create_default_context()


class Frozen(SystemClock):
    """Stands at one moment."""

    def __init__(self, seconds: int) -> None:
        super().__init__()
        self._at = seconds

    def now(self) -> int:
        return self._at * SECOND


async def post(url: str, *, timeout: float = 10.0, kind: str = "corral.scaler.scale-up.v1", times: int = 1) -> Answer:
    deliverer = WebhookDeliverer(SecretStore(Path("/absent"), {"S": SECRET}), Frozen(1_700_000_000), trust=TRUST)
    try:
        for _ in range(times):
            last = await deliverer.deliver(
                Webhook(url=url, secret="$S"), event(kind), event_id="evt_1", timeout=timeout
            )
        return last
    finally:
        await deliverer.close()


def to(behave: Behave | bytes, **options: object) -> Answer:
    async def work() -> Answer:
        async with serving(behave) as raw:
            return await post(raw.url, **options)  # type: ignore[arg-type]

    return asyncio.run(work())


def test_what_is_sent_is_a_signed_cloud_event() -> None:
    async def work() -> None:
        async with serving(answer("200 OK", b'{"provider_id": "i-1"}')) as raw:
            got = await post(raw.url)
            assert (got.verdict, got.provider_id, got.body) == (Verdict.DONE, "i-1", b"")
            ((headers, body),) = raw.requests
            assert body == event()
            assert headers["content-type"] == "application/cloudevents+json"
            assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("evt_1", "1700000000")
            verify([SECRET], headers, body, now=1_700_000_100)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, Verdict.DONE),
        (204, Verdict.DONE),
        (202, Verdict.ACCEPTED),
        (301, Verdict.REFUSED),
        (400, Verdict.REFUSED),
        (401, Verdict.REFUSED),
        (404, Verdict.ABSENT),
        (409, Verdict.ALREADY),
        (410, Verdict.ABSENT),
        (412, Verdict.STALE),
        (422, Verdict.REFUSED),
        (429, Verdict.LATER),
        (500, Verdict.LATER),
        (503, Verdict.LATER),
    ],
)
def test_L7_what_is_gone_is_told_by_the_status_and_never_by_words(status: int, verdict: Verdict) -> None:
    """L7: a typed answer, whatever its text says."""
    assert verdict_of(status) is verdict
    got = to(answer(f"{status} not found", b"gone, ok, not found" if status != 204 else b""))
    assert got.verdict is verdict


def test_L15_an_id_in_an_error_body_is_kept() -> None:
    """L15: the create call failed, and made an instance all the same."""
    for body in (
        b'{"provider_id": "i-7"}',
        b'{"error": {"code": 1, "provider_id": 7}}',
        b'{"detail":{"data":{"provider_id":"i-7"}}}',
    ):
        got = to(answer("500 no", body))
        assert (got.verdict, got.provider_id.removeprefix("i-")) == (Verdict.LATER, "7")


def test_an_id_in_an_answer_that_was_cut_is_kept() -> None:
    got = to(b'HTTP/1.1 500 no\r\ncontent-length: 1000\r\n\r\n{"provider_id": "i-7"}')
    assert (got.verdict, got.provider_id) == (Verdict.UNANSWERED, "i-7")
    assert "status 500" in got.detail


def test_T2_what_a_server_echoes_is_masked(caplog: pytest.LogCaptureFixture) -> None:
    """T1, T2, T6, reference 11.1 number 16: neither the code nor the secret is in a detail, an id or a log."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    encoded = base64.b64encode(b"x" + CODE.encode()).decode()
    for echo in (CODE, CODE[:30], CODE.upper(), CODE.removeprefix("claim_"), encoded, SECRET, SECRET[6:], "é" + CODE):
        got = to(answer("422 no", f'{{"provider_id": "{echo}", "event": "{echo}"}}'.encode()))
        shown = got.detail + got.provider_id + repr(got.body) + caplog.text
        for hidden in (CODE[6:26], encoded[4:24], SECRET[8:28]):
            assert hidden.lower() not in shown.lower()
        assert got.verdict is Verdict.REFUSED
        assert "422" in got.detail


def test_a_detail_is_one_clean_bounded_line() -> None:
    got = to(answer("500 no", b"\n  \n\x1b[31mquota\x07 exceeded\x1b[0m\r\nsecond"))
    assert got.detail == "status 500: quota exceeded"
    assert len(to(answer("500 no", "ü".encode() * 5000)).detail.encode()) <= 1024


def test_a_listing_comes_whole_and_only_for_an_inventory() -> None:
    listing = b'{"instances": []}'
    assert to(answer("200 OK", listing)).body == b""
    assert to(answer("200 OK", listing), kind="corral.scaler.inventory.v1").body == listing
    big = to(answer("200 OK", b"x" * (BODY_LIMIT + 1)), kind="corral.scaler.inventory.v1")
    assert (big.verdict, big.body) == (Verdict.DONE, b"")
    assert "more than 4 MiB" in big.detail


def test_retry_after_is_seconds_or_a_date() -> None:
    now = 1_700_000_000 * SECOND
    assert retry_after("17", now) == 17.0
    assert retry_after("Tue, 14 Nov 2023 22:13:50 GMT", now) == 30.0
    assert retry_after("Tue, 14 Nov 2000 22:13:50 GMT", now) == 0.0
    assert retry_after("99999999999999999999999", now) == 3600.0
    for strange in ("", "soon", "-4", "1e9", "²", "Tue, 99 Nov 2023"):
        assert retry_after(strange, now) is None
    assert to(answer("503 no", b"", "retry-after: 12")).retry_after == 12.0


def test_redirects_are_refused() -> None:
    async def work() -> None:
        async with serving(answer("200 OK")) as other, serving(answer("307 x", b"", f"location: {other.url}")) as raw:
            got = await post(raw.url)
            assert (got.verdict, other.requests) == (Verdict.REFUSED, [])
            assert "redirects are not followed" in got.detail

    asyncio.run(work())


def test_a_connection_is_kept_and_cookies_are_not() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("200 OK", b"", "set-cookie: a=b"))
        await writer.drain()

    async def work() -> None:
        async with serving(behave) as raw:
            assert (await post(raw.url, times=3)).verdict is Verdict.DONE
            assert raw.connections == 1
            assert all("cookie" not in headers for headers, _ in raw.requests)

    asyncio.run(work())


# --- hostile servers ---------------------------------------------------------------------------------------------


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def _loris(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"a")
        await asyncio.sleep(0.01)


async def _slow_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        writer.write(b"a")
        await asyncio.sleep(0.01)


async def _informational(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 103 Early\r\n\r\n" * 100)
        await writer.drain()


async def _headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-a: b\r\n" * 1000)
        await writer.drain()


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("behave", [_silent, _loris, _slow_body, _informational])
def test_S5_whatever_hangs_is_given_up_at_the_deadline(behave: Behave) -> None:
    """S5: every outside call is bounded."""
    began = time.monotonic()
    got = to(behave, timeout=0.5)
    assert got.verdict is Verdict.UNANSWERED
    assert "within 0.5 s" in got.detail
    assert 0.5 <= time.monotonic() - began < 5


@pytest.mark.parametrize(
    "behave", [_headers, _reset, b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n12"]
)
def test_whatever_breaks_is_unanswered(behave: Behave | bytes) -> None:
    assert to(behave, timeout=10).verdict is Verdict.UNANSWERED


def test_an_endless_body_takes_no_memory() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-encoding: gzip\r\n\r\n")
        piece = b"100000\r\n" + bytes(0x100000) + b"\r\n"
        while True:
            writer.write(piece)
            await writer.drain()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    got = to(behave)
    assert (got.verdict, got.body) == (Verdict.DONE, b"")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    got = asyncio.run(post(f"http://127.0.0.1:{port}/hook"))
    assert got.verdict is Verdict.UNANSWERED
    assert "no connection" in got.detail


def test_a_certificate_that_nobody_signed_is_not_trusted(tmp_path: Path) -> None:
    context = certificate(tmp_path)

    async def work() -> Answer:
        async with serving(answer("200 OK"), tls=context) as raw:
            got = await post(raw.url)
            assert raw.requests == []
            return got

    got = asyncio.run(work())
    assert got.verdict is Verdict.UNANSWERED
    assert "certificate" in got.detail.lower()


def certificate(place: Path) -> ssl.SSLContext:
    """Self-signed for 127.0.0.1."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (place / "cert").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (place / "key").write_bytes(private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place / "cert", place / "key")
    return context


def test_random_bytes_never_raise_or_hang() -> None:
    """Mutations of a good answer, and noise."""
    chance = random.Random(16)
    good = answer("200 OK", b'{"provider_id": "i-1", "instances": []}', "retry-after: 3", "set-cookie: a=b")

    def mutate() -> bytes:
        data = bytearray(good)
        for _ in range(chance.randrange(1, 12)):
            at = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    del data[at : at + chance.randrange(20)]
                case 2:
                    data[at:at] = chance.randbytes(chance.randrange(20))
                case _:
                    data[at:at] = data[: chance.randrange(40)]
            if not data:
                data += b"x"
        return bytes(data)

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(mutate())
        await writer.drain()
        writer.close()

    async def work() -> None:
        async with serving(behave) as raw:
            for _ in range(400):
                got = await post(raw.url, timeout=5)
                assert isinstance(got.verdict, Verdict)
                assert len(got.detail.encode()) <= 1024

    asyncio.run(work())


# --- the secret --------------------------------------------------------------------------------------------------


def _good(path: Path) -> None:
    path.write_text(SECRET + "\n")
    path.chmod(0o600)


def _open(path: Path) -> None:
    path.write_text(SECRET)
    path.chmod(0o644)


def _other(path: Path) -> None:
    path.write_text("hunter2hunter2hunter2")
    path.chmod(0o600)


def _link(path: Path) -> None:
    _good(path.with_name("real"))
    path.symlink_to("real")


@pytest.mark.parametrize(
    ("make", "name", "says"),
    [
        (_open, "cloud", "chmod 600"),
        (_other, "cloud", "does not hold whsec_"),
        (_link, "cloud", "cannot read"),
        (lambda path: None, "cloud", "No such file"),
        (_good, "../cloud", "no name of a file"),
        (lambda path: path.mkdir(), "cloud", "no regular file"),
        (_good, "$ABSENT", "$ABSENT is not set"),
    ],
)
def test_a_secret_that_cannot_be_used_sends_nothing_and_says_why(
    tmp_path: Path, make: Callable[[Path], None], name: str, says: str
) -> None:
    make(tmp_path / "cloud")

    async def work() -> None:
        async with serving(answer("200 OK")) as raw:
            deliverer = WebhookDeliverer(SecretStore(tmp_path, {}), SystemClock())
            got = await deliverer.deliver(Webhook(url=raw.url, secret=name), event(), event_id="e", timeout=5)
            assert (got.verdict, raw.connections) == (Verdict.LATER, 0)
            assert says in got.detail
            assert "hunter2" not in got.detail

    asyncio.run(work())


def test_a_secret_is_read_at_each_use(tmp_path: Path) -> None:
    """So that replacing it needs no restart."""

    async def work() -> None:
        async with serving(answer("200 OK")) as raw:
            deliverer = WebhookDeliverer(SecretStore(tmp_path, {}), SystemClock())
            other = "whsec_" + base64.b64encode(bytes(24)).decode()
            for secret in (SECRET, other):
                (tmp_path / "cloud").write_text(secret)
                (tmp_path / "cloud").chmod(0o600)
                await deliverer.deliver(Webhook(url=raw.url, secret="cloud"), event(), event_id="e", timeout=5)
                verify([secret], *raw.requests[-1])
            await deliverer.close()

    asyncio.run(work())


@pytest.mark.parametrize("url", ["http://user:pa55word@127.0.0.1/", "ftp://127.0.0.1/", "http://", "http://[x/", ""])
def test_a_url_that_cannot_be_used_says_why(url: str) -> None:
    got = asyncio.run(post(url))
    assert got.verdict is Verdict.LATER
    assert "the target's url" in got.detail
    assert "pa55word" not in got.detail
