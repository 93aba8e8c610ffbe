# SPDX-License-Identifier: Apache-2.0
"""Who asks, and whether they may."""

from __future__ import annotations

import ipaddress

from litestar.types import Scope

from corral.control.api import Api, Principal, Role
from corral.model.errors import Forbidden, Unauthenticated

_TOKEN_LIMIT = 512
"""Characters of a token worth looking up; ours have fewer than 100."""


def bearer(header: str) -> str:
    """The token of an ``Authorization`` header, empty where it is of another form."""
    scheme, _, token = header.partition(" ")
    token = token.strip()
    fits = scheme.lower() == "bearer" and len(token) <= _TOKEN_LIMIT and token.isascii() and token.isprintable()
    return token if fits else ""


async def authorize(api: Api, header: str, role: Role, local: Principal | None) -> Principal:
    """Who the caller is. ``local``: who callers of this very process are when they send no token.

    :raises Unauthenticated: no token, or an unknown one.
    :raises Forbidden: its role does not include ``role``.
    """
    principal = local if local is not None and not header else await _by_token(api, header)
    if not principal.role.opens(role):
        raise Forbidden(f"token {principal.name!r} is a {principal.role}; this needs {role}")
    return principal


async def _by_token(api: Api, header: str) -> Principal:
    token = bearer(header)
    if not token:
        raise Unauthenticated("send a token: 'Authorization: Bearer TOKEN' (corral login saves one)")
    return await api.authenticate(token)


_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})


def from_here(scope: Scope) -> bool:
    """The connection comes from this host and from nobody behind a proxy on it."""
    client = scope.get("client")
    if client is None or any(name.lower() in _FORWARDED for name, _ in scope["headers"]):
        return False
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False
