# SPDX-License-Identifier: Apache-2.0
"""The records of instances, over HTTP."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from litestar.types import ASGIApp
from msgspec import Meta, Struct

from corral.control.api import Role
from corral.model.errors import NotFound
from corral.model.ids import AgentId
from corral.model.views import ProvisionView
from corral.web.operations import Answer, Call, operation
from corral.web.responses import json_answer

_NOW = (Answer(status=200, description="The provision as it is now.", body=ProvisionView),)


class ProvisionsQuery(Struct, frozen=True, kw_only=True):
    state: Literal["", "requested", "active", "releasing", "gone", "abandoned"] = ""
    pool: Annotated[str, Meta(max_length=128, pattern="^[a-zA-Z0-9._-]*$")] = ""


@operation(
    "GET",
    "/api/v1/provisions",
    query=ProvisionsQuery,
    answers=(Answer(status=200, description="Newest first.", body=tuple[ProvisionView, ...]),),
    tag="provisions",
)
async def list_provisions(call: Call) -> ASGIApp:
    """List the records of instances that were asked for; without a state those that are not gone."""
    query: ProvisionsQuery = call.query(ProvisionsQuery)
    return json_answer(await call.api.provisions(state=query.state, pool=query.pool))


@operation("GET", "/api/v1/provisions/{agent_id}", answers=_NOW, errors=(404,), tag="provisions")
async def get_provision(call: Call) -> ASGIApp:
    """Show one provision with its story and its events."""
    return json_answer(await call.api.provision(_agent_id(call)))


@operation(
    "POST",
    "/api/v1/provisions/{agent_id}/retry",
    role=Role.OPERATOR,
    answers=_NOW,
    errors=(404, 409),
    tag="provisions",
)
async def retry_provision(call: Call) -> ASGIApp:
    """Try again to end an abandoned instance."""
    return json_answer(await call.api.retry_provision(_agent_id(call), by=call.by))


@operation(
    "POST",
    "/api/v1/provisions/{agent_id}/forget",
    role=Role.OPERATOR,
    answers=_NOW,
    errors=(404, 409),
    tag="provisions",
)
async def forget_provision(call: Call) -> ASGIApp:
    """Say that an abandoned instance does not exist; nothing more is asked of its provisioner."""
    return json_answer(await call.api.forget_provision(_agent_id(call), by=call.by))


def _agent_id(call: Call) -> AgentId:
    value = call.params["agent_id"]
    if not re.fullmatch(r"[a-z0-9_-]{1,64}", value):
        raise NotFound("no provision has such an id")
    return AgentId(value)
