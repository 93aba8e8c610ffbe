# SPDX-License-Identifier: Apache-2.0
"""Registered workflows over HTTP."""

from __future__ import annotations

import re
from typing import Annotated

from litestar.types import ASGIApp
from msgspec import Meta, Struct

from corral.control.api import Role
from corral.model.errors import NotFound
from corral.model.views import RegisterWorkflows, WorkflowView
from corral.web.operations import Answer, Call, operation
from corral.web.responses import json_answer


class WorkflowsQuery(Struct, frozen=True, kw_only=True):
    project: Annotated[str, Meta(max_length=128, pattern="^[a-zA-Z0-9._-]+$")] = "local"


def _name(call: Call) -> str:
    value = call.params["name"]
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}", value):
        raise NotFound("no workflow has such a name")
    return value


@operation(
    "GET",
    "/api/v1/workflows",
    query=WorkflowsQuery,
    answers=(Answer(status=200, description="By name.", body=tuple[WorkflowView, ...]),),
    tag="workflows",
)
async def list_workflows(call: Call) -> ASGIApp:
    """List the registered workflows: what events start."""
    query: WorkflowsQuery = call.query(WorkflowsQuery)
    return json_answer(await call.api.workflows(project=query.project))


@operation(
    "POST",
    "/api/v1/workflows",
    role=Role.ADMIN,
    body=RegisterWorkflows,
    answers=(Answer(status=200, description="Those registered.", body=tuple[WorkflowView, ...]),),
    errors=(409,),
    tag="workflows",
)
async def register_workflows(call: Call) -> ASGIApp:
    """Register workflows of a lock file, all or none, in the place of those with the same names."""
    return json_answer(await call.api.register_workflows(await call.body(RegisterWorkflows), by=call.by))


@operation(
    "GET",
    "/api/v1/workflows/{name}",
    answers=(Answer(status=200, description="What is registered.", body=WorkflowView),),
    errors=(404,),
    tag="workflows",
)
async def get_workflow(call: Call) -> ASGIApp:
    """Show one registered workflow."""
    return json_answer(await call.api.workflow(_name(call)))


@operation(
    "DELETE",
    "/api/v1/workflows/{name}",
    role=Role.ADMIN,
    answers=(Answer(status=200, description="What it was.", body=WorkflowView),),
    errors=(404, 409),
    tag="workflows",
)
async def remove_workflow(call: Call) -> ASGIApp:
    """Remove a registered workflow, unless a pool or an instance needs it."""
    return json_answer(await call.api.remove_workflow(_name(call)))
