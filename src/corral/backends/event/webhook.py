# SPDX-License-Identifier: Apache-2.0
"""Events as signed POST requests. Whatever a server does comes back as a verdict, in bounded time and memory."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import logging
import ssl
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2

from corral import __version__
from corral.backends.event.answering import BODY_LIMIT, Masker, Said, detail, provider_id, read_event, sentence
from corral.backends.event.secretfile import SecretStore, SecretUnusable, key_of
from corral.backends.event.signing import signed_headers
from corral.model.events import CONTENT_TYPE, Answer, Target, Verdict, Webhook
from corral.runtime.clock import SECOND, Clock

if TYPE_CHECKING:
    from corral.model.secret import Secret

CONNECT_TIMEOUT = 10.0
"""Seconds for a connection to come up."""
KEPT = 60.0
"""Seconds that an unused connection is kept: a burst of events to one target needs one handshake."""
RETRY_AFTER_LIMIT = 3600.0
"""Seconds: a server that asks for more is asked again after an hour."""

# The library writes whole URLs and headers into its log; credentials may be in them.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class WebhookDeliverer:
    """A ``Deliverer`` of :class:`Webhook` targets. Serves one event loop; :meth:`close` ends its connections."""

    def __init__(self, secrets: SecretStore, clock: Clock, *, trust: ssl.SSLContext | None = None) -> None:
        """``trust``: what certificates are verified against, default: what the system and ``SSL_CERT_*`` say."""
        self._secrets = secrets
        self._clock = clock
        self._trust = trust
        self._clients: dict[bool, httpx2.AsyncClient] = {}

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    async def deliver(self, target: Target, event: bytes, *, event_id: str, timeout: float) -> Answer:
        assert isinstance(target, Webhook)
        said = read_event(event)
        try:
            secret = await asyncio.to_thread(self._secrets.read, target.secret)
            loopback = _checked(target.url)
            seconds = self._clock.now() // SECOND
            headers = signed_headers(key_of(secret), event_id, seconds, event)
        except SecretUnusable as error:
            return Answer(verdict=Verdict.LATER, detail=detail(f"not sent: {error}"))
        exchange = _Exchange(said, secret)
        try:
            async with asyncio.timeout(timeout):
                request = self._request(self._client(loopback), target.url, headers, event)
                await exchange.run(self._client(loopback), request)
        except TimeoutError:
            return exchange.cut(f"no whole answer within {timeout:g} s")
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, ValueError) as error:
            return exchange.cut(_what(error))
        return exchange.answer(self._clock.now())

    def _request(self, client: httpx2.AsyncClient, url: str, headers: dict[str, str], event: bytes) -> httpx2.Request:
        fixed = {
            "content-type": CONTENT_TYPE,
            "user-agent": f"corral/{__version__}",
            "accept": "application/json",
            # An answer is read as it comes: nothing is unpacked, so nothing can unpack to gigabytes.
            "accept-encoding": "identity",
        }
        return client.build_request("POST", url, headers={**fixed, **headers}, content=event)

    def _client(self, loopback: bool) -> httpx2.AsyncClient:
        """A proxy has no business between us and this very machine."""
        if loopback not in self._clients:
            self._trust = self._trust or httpx2.create_ssl_context()
            self._clients[loopback] = httpx2.AsyncClient(
                verify=self._trust,
                trust_env=not loopback,
                follow_redirects=False,
                timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEPT),
                # A server's cookies would be kept without end, and sent to others of its domain.
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            )
        return self._clients[loopback]


def _checked(url: str) -> bool:
    """Whether it is on this machine. :raises SecretUnusable: it carries a password, or is no URL."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise SecretUnusable("the target's url is no http(s)://HOST/PATH")
    if parts.username or parts.password:
        raise SecretUnusable("the target's url holds a user or password; the signature is what proves who asks")
    return host == "localhost" or host == "::1" or host.startswith("127.")


class _Exchange:
    """One request and as much of its answer as came."""

    def __init__(self, said: Said, secret: Secret) -> None:
        self._said = said
        self._masker = Masker([said.claim_code, secret.reveal(), secret.reveal().removeprefix("whsec_")])
        self._status = 0
        self._retry_after = ""
        self._body = bytearray()
        self._too_long = False

    async def run(self, client: httpx2.AsyncClient, request: httpx2.Request) -> None:
        response = await client.send(request, stream=True)
        try:
            self._status = response.status_code
            self._retry_after = response.headers.get("retry-after", "")
            async for piece in response.aiter_raw():
                self._body += piece[: BODY_LIMIT + 1 - len(self._body)]
                if len(self._body) > BODY_LIMIT:
                    self._too_long = True
                    return
        finally:
            with contextlib.suppress(httpx2.HTTPError, OSError):
                await response.aclose()

    def cut(self, why: str) -> Answer:
        """The answer did not come whole: what it said until then may be half of the truth, but an id is an id."""
        before = f"{why}, after status {self._status}" if self._status else why
        return Answer(
            verdict=Verdict.UNANSWERED,
            detail=detail(self._masker.hide(before)),
            provider_id=provider_id(bytes(self._body), self._masker),
        )

    def answer(self, now: int) -> Answer:
        body = b"" if self._too_long else bytes(self._body)
        what = f"status {self._status}"
        if self._too_long:
            what += f", with more than {BODY_LIMIT // 1024**2} MiB, which were not read"
        if 300 <= self._status < 400:
            what += " (redirects are not followed: name the final url)"
        listing = self._said.listing and 200 <= self._status < 300
        return Answer(
            verdict=verdict_of(self._status),
            detail=detail(what, sentence(bytes(self._body), self._masker)),
            provider_id=provider_id(body, self._masker),
            body=body if listing else b"",
            retry_after=retry_after(self._retry_after, now),
        )


def verdict_of(status: int) -> Verdict:
    """What a status says, as ``Verdict`` documents it."""
    match status:
        case 202:
            return Verdict.ACCEPTED
        case 409:
            return Verdict.ALREADY
        case 404 | 410:
            return Verdict.ABSENT
        case 412:
            return Verdict.STALE
        case 429:
            return Verdict.LATER
    if 200 <= status < 300:
        return Verdict.DONE
    return Verdict.LATER if status >= 500 else Verdict.REFUSED


def retry_after(text: str, now: int) -> float | None:
    """Seconds from ``now`` (microseconds since the epoch) that the header asks for, as seconds or as a date."""
    text = text.strip()[:64]
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), RETRY_AFTER_LIMIT)
    try:
        at = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return min(max(at - now / SECOND, 0.0), RETRY_AFTER_LIMIT)


def _what(error: Exception) -> str:
    """One sentence without the URL."""
    text = str(error)
    if isinstance(error, httpx2.ConnectTimeout):
        return f"no connection within {CONNECT_TIMEOUT:g} s"
    if isinstance(error, httpx2.ConnectError):
        return f"no connection: {text or type(error).__name__}"
    if isinstance(error, httpx2.ReadError | httpx2.WriteError | httpx2.RemoteProtocolError):
        return f"the connection broke: {text or type(error).__name__}"
    return text or type(error).__name__
