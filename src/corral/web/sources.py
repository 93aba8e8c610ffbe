# SPDX-License-Identifier: Apache-2.0
"""Source archives over HTTP: streamed both ways, never held in memory."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator

from litestar.types import ASGIApp

from corral.control.api import Role
from corral.model.errors import Fault, Invalid, NotFound, Unauthenticated
from corral.model.ids import AgentId, SourceHash
from corral.model.spec import SourceRef
from corral.web.auth import bearer
from corral.web.bodies import limited
from corral.web.operations import Answer, Call, operation
from corral.web.responses import empty_answer, json_answer
from corral.web.streaming import Streamed

SOURCE_LIMIT = 1024**3
"""Bytes of one source archive."""
_HASH = re.compile(r"[0-9a-f]{64}\Z")


def _hash(call: Call) -> SourceHash:
    value = call.params["hash"]
    if not _HASH.match(value):
        raise NotFound("a source is named by its SHA-256: 64 lower-case hex digits")
    return SourceHash(value)


@operation(
    "HEAD",
    "/api/v1/sources/{hash}",
    role=Role.OPERATOR,
    answers=(
        Answer(
            status=200,
            description="The server holds it.",
            media="",
            headers=(("Corral-Source-Size", "bytes of the archive"),),
        ),
    ),
    errors=(404,),
    tag="sources",
)
async def head_source(call: Call) -> ASGIApp:
    """Ask whether the server holds a source archive."""
    size = await call.api.source_size(_hash(call))
    if size is None:
        raise NotFound("the server does not hold this source")
    return empty_answer(200, {"corral-source-size": str(size)})


@operation(
    "PUT",
    "/api/v1/sources/{hash}",
    role=Role.OPERATOR,
    body=bytes,
    body_media="application/gzip",
    answers=(Answer(status=201, description="Stored.", body=SourceRef),),
    errors=(409,),
    tag="sources",
)
async def put_source(call: Call) -> ASGIApp:
    """Store a source archive (tar.gz) under the SHA-256 of its bytes; at most 1 GiB."""
    value = call.params["hash"]
    if not _HASH.match(value):
        raise Invalid("the path", [Fault(path="hash", message="not 64 lower-case hex digits")])
    size = await call.api.put_source(SourceHash(value), limited(call.request, SOURCE_LIMIT, "a source archive"))
    return json_answer(SourceRef(hash=value, size=size), 201)


@operation(
    "GET",
    "/agent/v1/sources/{hash}",
    role=None,
    headers=(
        ("Authorization", "`Bearer KEY` with the agent's own key", ""),
        ("Corral-Agent", "the agent's id", ""),
    ),
    answers=(Answer(status=200, description="The archive.", media="application/gzip"),),
    errors=(401, 403, 404),
    tag="agents",
)
async def read_source(call: Call) -> ASGIApp:
    """Give an agent the source of its job."""
    key, agent = bearer(call.header("authorization")), call.header("corral-agent")
    if not key or not re.fullmatch(r"[a-z0-9_-]{1,64}", agent):
        raise Unauthenticated("send the headers 'Authorization: Bearer KEY' and 'Corral-Agent: ID'")
    chunks = await call.api.read_source(AgentId(agent), key, _hash(call))
    headers = {"content-type": "application/gzip", "cache-control": "no-store"}
    return Streamed(await _started(chunks), status=200, headers=headers, stopping=call.stopping)


async def _started(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The same chunks, the first already read: a source that is missing is still answered with a problem."""
    first = await anext(chunks, b"")

    async def all_of_them() -> AsyncGenerator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    return all_of_them()
