# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document: valid, complete, and true of what the server does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from jsonschema import Draft202012Validator
from schemathesis.specs.openapi.checks import positive_data_acceptance

from corral.control.api import Role
from corral.web.app import create_app
from corral.web.listen import bind
from corral.web.openapi import document
from corral.web.operations import OPERATIONS
from corral.web.serve import WebServer
from tests.web.fake_api import TOKENS, FakeApi, new_run


def test_every_route_is_in_the_document_and_the_other_way_round() -> None:
    app = create_app(FakeApi())
    routes = {
        (method, str(path))
        for path, methods in (
            (route.path_format, route.methods) for route in app.litestar.routes if hasattr(route, "methods")
        )
        for method in methods
        if method != "OPTIONS"
    }
    shown = {
        (method.upper(), path) for path, operations in document(OPERATIONS)["paths"].items() for method in operations
    }
    assert shown == routes
    assert len(shown) == len(OPERATIONS) == len({each.id for each in OPERATIONS})


def test_every_schema_in_it_is_a_schema_and_every_reference_leads_somewhere() -> None:
    shown = document(OPERATIONS)
    for schema in shown["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    known = {f"#/components/schemas/{name}" for name in shown["components"]["schemas"]}
    assert set(_references(shown)) <= known


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def test_every_operation_says_what_it_needs_and_how_it_refuses() -> None:
    for path, operations in document(OPERATIONS)["paths"].items():
        for method, each in operations.items():
            assert each["summary"].endswith("."), path
            public = path in ("/healthz", "/readyz", "/api/v1/openapi.json") or path.startswith("/agent/")
            assert ("security" not in each) == public, path
            if method != "head":
                refusals = [each["responses"][status]["content"] for status in each["responses"] if status >= "400"]
                assert all(list(content) == ["application/problem+json"] for content in refusals), path


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A server in a thread with a loop of its own."""
    started = threading.Event()
    state: dict[str, Any] = {}

    async def run() -> None:
        api = FakeApi()
        view = await api.create_run(new_run("build", "test"))
        await api.print(view.jobs[0].id, 0, b"hello\n", final=True)
        await api.finish(view.id)
        web = WebServer(create_app(api), [bind("127.0.0.1", 0)], grace=1)
        await web.start()
        state.update(url=web.url, loop=asyncio.get_running_loop(), stop=asyncio.Event())
        started.set()
        await state["stop"].wait()
        await web.stop()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert started.wait(10)
    try:
        yield str(state["url"])
    finally:
        state["loop"].call_soon_threadsafe(state["stop"].set)
        thread.join(10)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server() as found:
        yield found


schema = schemathesis.openapi.from_dict(document(OPERATIONS))


@schemathesis.serializer("application/gzip")
def archive(context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@schema.parametrize()
@hypothesis.settings(
    max_examples=6, deadline=None, derandomize=True, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)
def test_the_server_does_what_the_document_says(case: Any, url: str) -> None:
    # Revoking the token in use would make every later answer a 401.
    if case.path == "/api/v1/tokens/{token_id}" and case.path_parameters.get("token_id") == "tok_admin":
        return
    headers = {} if case.path.startswith("/agent/") else {"Authorization": f"Bearer {TOKENS[Role.ADMIN]}"}
    # A schema cannot say that a body names things that exist, and headers are made without their pattern.
    free = case.method in ("POST", "PUT") or case.path.endswith("/log/events")
    excluded = [positive_data_acceptance] if free else []
    case.call_and_validate(base_url=url, headers=headers, excluded_checks=excluded)
