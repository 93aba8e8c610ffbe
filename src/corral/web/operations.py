# SPDX-License-Identifier: Apache-2.0
"""The table of what the API offers: routes, roles, limits and the OpenAPI document all come from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from litestar import Request
from litestar.types import ASGIApp
from msgspec import Struct

from corral.control.api import Api, Principal, Role
from corral.web.bodies import read_body, read_query
from corral.web.stopping import Stopping

Params = dict[str, str]
"""Path parameters as they stand in the URL."""


class NoQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """An operation without query parameters."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request on its way to the coordinator. ``principal`` is None on public operations."""

    api: Api
    request: Request[Any, Any, Any]
    params: Params
    principal: Principal | None
    stopping: Stopping

    @property
    def by(self) -> str:
        """Id of the token with which it is asked."""
        return self.principal.token_id if self.principal is not None else ""

    def header(self, name: str) -> str:
        """The value of a request header, empty where it is not sent."""
        return str(self.request.headers.get(name, ""))

    async def body(self, kind: type[Any]) -> Any:
        """The JSON body as ``kind``. :raises Invalid: with every fault. :raises TooLarge: above 8 MiB."""
        return await read_body(self.request, kind)

    def query(self, kind: type[Any]) -> Any:
        """The query as ``kind``. :raises Invalid: with every fault."""
        return read_query(self.request.scope["query_string"], kind)


Handler = Callable[[Call], Awaitable[ASGIApp]]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One successful answer as the OpenAPI document shows it. ``body``: a struct type, or None for raw bytes."""

    status: int
    description: str
    body: Any = None
    media: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Operation:
    """``role`` None: public. ``errors``: statuses it answers with beside the common ones.
    ``headers``: name, description, pattern (empty: any text)."""

    id: str
    method: str
    path: str
    summary: str
    handler: Handler
    answers: tuple[Answer, ...]
    role: Role | None = Role.VIEWER
    query: Any = NoQuery
    headers: tuple[tuple[str, str, str], ...] = ()
    body: Any = None
    body_required: bool = True
    body_media: str = "application/json"
    errors: tuple[int, ...] = ()
    tag: str = ""
    local: bool = False
    """Callers on this very host need no token."""


OPERATIONS: list[Operation] = []


def operation(method: str, path: str, **about: Any) -> Callable[[Handler], Handler]:
    """Enter the handler into the table; its docstring's first line is the summary."""

    def enter(handler: Handler) -> Handler:
        summary = (handler.__doc__ or "").strip().splitlines()[0]
        name = str(getattr(handler, "__name__", ""))
        OPERATIONS.append(Operation(id=name, method=method, path=path, summary=summary, handler=handler, **about))
        return handler

    return enter
