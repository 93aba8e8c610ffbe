# SPDX-License-Identifier: Apache-2.0
"""What provisioners say by themselves, and what operators ask about them."""

from __future__ import annotations

import re

from litestar.types import ASGIApp

from corral.control.api import Role
from corral.model.errors import NotFound
from corral.model.events import Listing, ProvisionReport
from corral.model.ids import AgentId
from corral.model.leaks import EpochView, LedgerView, ReportView
from corral.web.operations import Answer, Call, operation
from corral.web.responses import json_answer

_LEDGER = (Answer(status=200, description="What is known now.", body=LedgerView),)


@operation(
    "POST",
    "/api/v1/provisions/{agent_id}/report",
    role=Role.PROVISIONER,
    body=ProvisionReport,
    answers=(Answer(status=200, description="What it changed.", body=ReportView),),
    errors=(404,),
    tag="provisioner",
)
async def report_provision(call: Call) -> ASGIApp:
    """Say what became of an instance: accepted, failed or gone."""
    value = call.params["agent_id"]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}", value):
        raise NotFound("no provision has such an id")
    said: ProvisionReport = await call.body(ProvisionReport)
    return json_answer(await call.api.report_provision(AgentId(value), said))


@operation(
    "POST",
    "/api/v1/provisioner/listing",
    role=Role.PROVISIONER,
    body=Listing,
    answers=_LEDGER,
    errors=(404,),
    tag="provisioner",
)
async def take_listing(call: Call) -> ASGIApp:
    """Answer an inventory request later than in its response, also in parts."""
    listing: Listing = await call.body(Listing)
    return json_answer(await call.api.take_listing(listing))


@operation("GET", "/api/v1/provisioner/ledger", answers=_LEDGER, tag="provisioner")
async def get_ledger(call: Call) -> ASGIApp:
    """Show leaked instances, what they cost, and how deliveries stand."""
    return json_answer(await call.api.ledger())


@operation(
    "POST",
    "/api/v1/provisioner/inventory",
    role=Role.OPERATOR,
    answers=_LEDGER,
    errors=(409,),
    tag="provisioner",
)
async def inventory_now(call: Call) -> ASGIApp:
    """Ask every provisioner for its instances now."""
    return json_answer(await call.api.inventory_now())


@operation(
    "POST",
    "/api/v1/provisioner/approve-strays",
    role=Role.ADMIN,
    answers=(Answer(status=200, description="The generation it holds for.", body=EpochView),),
    tag="provisioner",
)
async def approve_strays(call: Call) -> ASGIApp:
    """Let unknown instances be destroyed again after a restore."""
    return json_answer(await call.api.approve_strays(by=call.by))


@operation(
    "POST",
    "/api/v1/cluster/raise-epoch",
    role=Role.ADMIN,
    answers=(Answer(status=200, description="The new generation.", body=EpochView),),
    tag="provisioner",
)
async def raise_epoch(call: Call) -> ASGIApp:
    """Make provisioners that saw a higher epoch accept this installation again."""
    return json_answer(await call.api.raise_epoch(by=call.by))
