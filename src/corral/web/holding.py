# SPDX-License-Identifier: Apache-2.0
"""What operators ask of agents, over HTTP."""

from __future__ import annotations

import re

from litestar.types import ASGIApp

from corral.control.api import Role
from corral.model.errors import NotFound
from corral.model.ids import AgentId
from corral.model.views import AgentView, DrainAgent
from corral.web.operations import Answer, Call, operation
from corral.web.responses import json_answer

_NOW = (Answer(status=200, description="The agent as it is now.", body=AgentView),)


def _agent_id(call: Call) -> AgentId:
    value = call.params["agent_id"]
    if not re.fullmatch(r"[a-z0-9_-]{1,64}", value):
        raise NotFound("no agent has such an id")
    return AgentId(value)


@operation(
    "POST",
    "/api/v1/agents/{agent_id}/cordon",
    role=Role.OPERATOR,
    answers=_NOW,
    errors=(404, 409),
    tag="agents",
)
async def cordon_agent(call: Call) -> ASGIApp:
    """Offer nothing more to an agent; the job it has goes on."""
    return json_answer(await call.api.cordon_agent(_agent_id(call), by=call.by))


@operation(
    "POST",
    "/api/v1/agents/{agent_id}/uncordon",
    role=Role.OPERATOR,
    answers=_NOW,
    errors=(404, 409),
    tag="agents",
)
async def uncordon_agent(call: Call) -> ASGIApp:
    """Let an agent be offered jobs again."""
    return json_answer(await call.api.uncordon_agent(_agent_id(call)))


@operation(
    "POST",
    "/api/v1/agents/{agent_id}/drain",
    role=Role.OPERATOR,
    body=DrainAgent,
    body_required=False,
    answers=_NOW,
    errors=(404, 409),
    tag="agents",
)
async def drain_agent(call: Call) -> ASGIApp:
    """Offer nothing more to an agent, and end it after the job it has."""
    body: DrainAgent = await call.body(DrainAgent)
    return json_answer(await call.api.drain_agent(_agent_id(call), body, by=call.by))
