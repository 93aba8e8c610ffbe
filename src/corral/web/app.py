# SPDX-License-Identifier: Apache-2.0
"""The ASGI application: the table of operations as routes, and nothing that decides."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, Request
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler, asgi
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import ASGIApp, Receive, Scope, Send

import corral.web.admin
import corral.web.holding
import corral.web.logs
import corral.web.metrics
import corral.web.provisioner
import corral.web.provisions
import corral.web.runs
import corral.web.sources
import corral.web.workflows  # noqa: F401  (each enters its operations into the table)
from corral.control.api import Api, Principal
from corral.model.errors import CorralError
from corral.web.agents import agent_endpoint
from corral.web.auth import authorize, from_here
from corral.web.openapi import document
from corral.web.operations import OPERATIONS, Answer, Call, operation
from corral.web.problems import on_corral_error, on_http_error, on_unexpected
from corral.web.responses import json_answer
from corral.web.stopping import Stopping


@operation(
    "GET",
    "/api/v1/openapi.json",
    role=None,
    answers=(Answer(status=200, description="OpenAPI 3.1.", body=dict[str, Any]),),
    tag="server",
)
async def openapi(call: Call) -> ASGIApp:
    """Show this document."""
    return json_answer(document(OPERATIONS))


AGENT_PATH = "/agent/v1"


class _Litestar(Litestar):
    @staticmethod
    def _get_default_plugins(plugins: list[Any]) -> list[Any]:
        """Only what handlers here need: the others import pydantic, which costs 70 ms and 8 MiB of each process."""
        return [*plugins, MsgspecDIPlugin()]


class WebApp:
    """The application with what its server has to reach. ``stopping``: ends open streams."""

    def __init__(self, litestar: Litestar, stopping: Stopping, api: Api) -> None:
        self.litestar = litestar
        self.api = api
        self.stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if str(scope["type"]) == "websocket" and scope["path"] == AGENT_PATH:
            # Past the router: what it holds on to for each of thousands of connections is memory for nothing.
            await agent_endpoint(self.api, scope, receive, send)
            return
        await self.litestar(scope, receive, send)


def create_app(api: Api, *, local: Principal | None = None, metrics_public: bool = False) -> WebApp:
    """The ASGI application over ``api``.

    :param local: who a caller without a token is; only for an application that no socket reaches.
    :param metrics_public: ``/metrics`` asks nobody for a token.
    """
    stopping = Stopping()
    paths = dict.fromkeys(each.path for each in OPERATIONS)
    handlers = [_route(path, api, local, stopping, metrics_public) for path in paths]
    app = _Litestar(
        route_handlers=[*handlers, _agent_route(api)],
        exception_handlers={
            CorralError: on_corral_error,
            HTTPException: on_http_error,
            Exception: on_unexpected,
        },
        openapi_config=None,
        logging_config=None,
        # Each operation bounds its own body, and a source's bound is another.
        request_max_body_size=None,
    )
    return WebApp(app, stopping, api)


def _route(path: str, api: Api, local: Principal | None, stopping: Stopping, metrics_public: bool) -> HTTPRouteHandler:
    """One handler for all methods of a path: the router's answer to OPTIONS is right only then."""
    by_method = {each.method: each for each in OPERATIONS if each.path == path}

    async def handle(request: Request[Any, Any, Any]) -> ASGIApp:
        each = by_method[request.method]
        principal = None
        if each.role is not None and not (each.local and (metrics_public or from_here(request.scope))):
            principal = await authorize(api, request.headers.get("authorization", ""), each.role, local)
        params = {name: str(value) for name, value in request.path_params.items()}
        call = Call(api=api, request=request, params=params, principal=principal, stopping=stopping)
        call.query(each.query)
        return await each.handler(call)

    methods: Any = list(by_method)
    return HTTPRouteHandler(path.replace("}", ":str}"), http_method=methods, name=path, status_code=200)(handle)


def _agent_route(api: Api) -> Any:
    @asgi(AGENT_PATH, copy_scope=False)
    async def agent_v1(scope: Scope, receive: Receive, send: Send) -> None:
        await agent_endpoint(api, scope, receive, send)

    return agent_v1
