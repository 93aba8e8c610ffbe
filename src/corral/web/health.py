# SPDX-License-Identifier: Apache-2.0
"""Readiness: all parts healthy, or the reasons why not."""

from __future__ import annotations

from msgspec import Struct

from corral.control.api import Api, ServiceHealth
from corral.model.errors import Fault, Invalid
from corral.web.stopping import Stopping


class ServiceView(Struct, frozen=True, kw_only=True):
    name: str
    healthy: bool
    detail: str = ""


class ReadyView(Struct, frozen=True, kw_only=True):
    services: tuple[ServiceView, ...]


class NotReady(Invalid):
    """``faults``: one per part that does not work."""

    code = "not_ready"
    status = 503


async def check(api: Api, stopping: Stopping) -> ReadyView:
    """:raises NotReady: naming every part that does not work."""
    services = await api.health()
    if stopping.begun:
        services = (*services, ServiceHealth(name="server", healthy=False, detail="stopping"))
    faults = [Fault(path=each.name, message=each.detail or "not healthy") for each in services if not each.healthy]
    if faults:
        raise NotReady("the server is not ready", faults)
    views = tuple(ServiceView(name=each.name, healthy=each.healthy, detail=each.detail) for each in services)
    return ReadyView(services=views)
