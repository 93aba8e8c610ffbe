# SPDX-License-Identifier: Apache-2.0
"""The server itself, agents, pools, tokens, health."""

from __future__ import annotations

import re
from typing import Annotated

from litestar.types import ASGIApp
from msgspec import Meta, Struct

from corral.control.api import Role
from corral.model.errors import NotFound
from corral.model.ids import TokenId
from corral.model.views import (
    AgentView,
    CreatedToken,
    DiagnoseView,
    NewToken,
    PoolView,
    ReloadView,
    RotateToken,
    ServerView,
    TokenView,
)
from corral.web.health import ReadyView, check
from corral.web.operations import Answer, Call, operation
from corral.web.responses import json_answer


class AliveView(Struct, frozen=True, kw_only=True):
    alive: bool


@operation(
    "GET",
    "/healthz",
    role=None,
    answers=(Answer(status=200, description="The process answers.", body=AliveView),),
    tag="health",
)
async def healthz(call: Call) -> ASGIApp:
    """Say that the process lives; asks nothing of the database."""
    return json_answer(AliveView(alive=True))


@operation(
    "GET",
    "/readyz",
    role=None,
    answers=(Answer(status=200, description="Every part works.", body=ReadyView),),
    errors=(503,),
    tag="health",
)
async def readyz(call: Call) -> ASGIApp:
    """Say whether the server can do its work; 503 names what does not."""
    return json_answer(await check(call.api, call.stopping))


@operation(
    "GET",
    "/api/v1/server",
    answers=(Answer(status=200, description="Who answers.", body=ServerView),),
    tag="server",
)
async def get_server(call: Call) -> ASGIApp:
    """Show version and identity of the server."""
    return json_answer(await call.api.server())


class DiagnoseQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``only``: a check, the beginning of its name, or a group."""

    only: Annotated[str, Meta(max_length=100)] = ""


@operation(
    "GET",
    "/api/v1/diagnose",
    role=Role.OPERATOR,
    query=DiagnoseQuery,
    answers=(Answer(status=200, description="What each check found.", body=DiagnoseView),),
    errors=(404,),
    tag="server",
)
async def diagnose(call: Call) -> ASGIApp:
    """Look at everything an operator would look at; takes up to 10 seconds."""
    query: DiagnoseQuery = call.query(DiagnoseQuery)
    return json_answer(await call.api.diagnose(query.only))


@operation(
    "GET",
    "/api/v1/agents",
    answers=(Answer(status=200, description="Newest first.", body=tuple[AgentView, ...]),),
    tag="agents",
)
async def list_agents(call: Call) -> ASGIApp:
    """List the agents whose instance is not gone."""
    return json_answer(await call.api.agents())


@operation(
    "GET",
    "/api/v1/pools",
    answers=(Answer(status=200, description="In order of the configuration.", body=tuple[PoolView, ...]),),
    tag="pools",
)
async def list_pools(call: Call) -> ASGIApp:
    """List the pools with what they hold and what stops them."""
    return json_answer(await call.api.pools())


@operation(
    "POST",
    "/api/v1/config/reload",
    role=Role.ADMIN,
    answers=(Answer(status=200, description="What changed.", body=ReloadView),),
    errors=(409, 422),
    tag="server",
)
async def reload_config(call: Call) -> ASGIApp:
    """Read the configuration again: all of it, or every fault and nothing changed."""
    return json_answer(await call.api.reload_config())


@operation(
    "GET",
    "/api/v1/tokens",
    role=Role.ADMIN,
    answers=(Answer(status=200, description="Without the tokens themselves.", body=tuple[TokenView, ...]),),
    tag="tokens",
)
async def list_tokens(call: Call) -> ASGIApp:
    """List the API tokens."""
    return json_answer(await call.api.tokens())


@operation(
    "POST",
    "/api/v1/tokens",
    role=Role.ADMIN,
    body=NewToken,
    answers=(Answer(status=201, description="The only time that the token is shown.", body=CreatedToken),),
    errors=(409,),
    tag="tokens",
)
async def create_token(call: Call) -> ASGIApp:
    """Make an API token."""
    return json_answer(await call.api.create_token(await call.body(NewToken), by=call.by), 201)


@operation(
    "DELETE",
    "/api/v1/tokens/{token_id}",
    role=Role.ADMIN,
    answers=(Answer(status=200, description="The token as it is now.", body=TokenView),),
    errors=(404, 409),
    tag="tokens",
)
async def revoke_token(call: Call) -> ASGIApp:
    """Revoke an API token, for good."""
    return json_answer(await call.api.revoke_token(_token_id(call)))


@operation(
    "POST",
    "/api/v1/tokens/{token_id}/rotate",
    role=Role.ADMIN,
    body=RotateToken,
    body_required=False,
    answers=(Answer(status=201, description="The only time that the new token is shown.", body=CreatedToken),),
    errors=(404, 409),
    tag="tokens",
)
async def rotate_token(call: Call) -> ASGIApp:
    """Make a new token in the place of one, which goes on working for a grace."""
    body: RotateToken = await call.body(RotateToken)
    return json_answer(await call.api.rotate_token(_token_id(call), body, by=call.by), 201)


def _token_id(call: Call) -> TokenId:
    value = call.params["token_id"]
    if not re.fullmatch(r"[a-z0-9_-]{1,64}", value):
        raise NotFound("no token has such an id")
    return TokenId(value)
