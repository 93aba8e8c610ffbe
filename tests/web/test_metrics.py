# SPDX-License-Identifier: Apache-2.0
"""Who may read ``/metrics``."""

from __future__ import annotations

import pytest

from corral.runtime.metrics import MEDIA_TYPE
from corral.web.auth import from_here
from tests.web.fake_api import TOKENS, FakeApi
from tests.web.test_app import Role, create_app


def scope(host: str | None, *headers: bytes) -> dict[str, object]:
    return {"client": (host, 5) if host else None, "headers": [(name, b"x") for name in headers]}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1"])
def test_this_host_needs_no_token_for_the_metrics(host: str) -> None:
    assert from_here(scope(host))  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["10.0.0.1", "::ffff:10.0.0.1", "unix", None])
def test_another_host_does(host: str | None) -> None:
    assert not from_here(scope(host))  # type: ignore[arg-type]


@pytest.mark.parametrize("header", [b"x-forwarded-for", b"X-Forwarded-For", b"forwarded", b"via", b"x-real-ip"])
def test_whoever_comes_through_a_proxy_on_this_host_is_not_from_here(header: bytes) -> None:
    assert not from_here(scope("127.0.0.1", header))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "headers", "public", "status"),
    [
        ("127.0.0.1", {}, False, 200),
        ("127.0.0.1", {"via": "1.1 proxy"}, False, 401),
        ("10.0.0.1", {}, False, 401),
        ("10.0.0.1", {"authorization": f"Bearer {TOKENS[Role.VIEWER]}"}, False, 200),
        ("10.0.0.1", {"authorization": "Bearer wrong"}, False, 401),
        ("10.0.0.1", {}, True, 200),
    ],
)
def test_metrics_are_for_viewers_and_for_this_host(
    address: str, headers: dict[str, str], public: bool, status: int
) -> None:
    import asyncio

    import httpx2

    async def ask(path: str) -> httpx2.Response:
        app = create_app(FakeApi(), metrics_public=public)
        transport = httpx2.ASGITransport(app=app, client=(address, 5))
        async with httpx2.AsyncClient(transport=transport, base_url="http://corral") as client:
            return await client.get(path, headers=headers)

    answer = asyncio.run(ask("/metrics"))
    assert answer.status_code == status
    if status == 200:
        assert answer.headers["content-type"] == f"{MEDIA_TYPE}; charset=utf-8"
        assert "corral_sessions 3.0" in answer.text
    # What opens the metrics opens nothing else.
    if "authorization" not in headers:
        assert asyncio.run(ask("/api/v1/pools")).status_code == 401
