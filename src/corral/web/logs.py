# SPDX-License-Identifier: Apache-2.0
"""Logs over HTTP: raw bytes by range, and followed by server-sent events with resume by offset."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated

from litestar.types import ASGIApp
from msgspec import Meta, Struct

from corral.control.api import LogPart
from corral.model.errors import Fault, Invalid, NotFound
from corral.model.ids import JobId
from corral.model.views import LogEvent
from corral.web.operations import Answer, Call, operation
from corral.web.ranges import byte_range
from corral.web.runs import job_id
from corral.web.streaming import Streamed, event, event_stream

POSITION = r"^(\d{1,4}):(\d{1,15})$"
"""``STEP:OFFSET``: the first byte wanted."""
Attempt = Annotated[int, Meta(ge=1, le=10_000)]


class LogQuery(Struct, frozen=True, kw_only=True):
    attempt: Attempt | None = None


class FollowQuery(Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    attempt: Attempt | None = None
    from_: Annotated[str, Meta(pattern=POSITION)] = "0:0"


def _step(call: Call) -> int:
    text = call.params["step"]
    if not re.fullmatch(r"\d{1,4}", text):
        raise NotFound("a step is named by its number, from 0")
    return int(text)


@operation(
    "GET",
    "/api/v1/jobs/{job_id}/steps/{step}/log",
    query=LogQuery,
    headers=(("Range", "`bytes=FIRST-LAST`, `bytes=FIRST-` or `bytes=-LAST_N`", ""),),
    answers=(
        Answer(
            status=200,
            description="The bytes as they were printed, ANSI sequences included.",
            media="application/octet-stream",
            headers=(("Corral-Log-Final", "`true` when nothing more will come"),),
        ),
        Answer(
            status=206,
            description="The range asked for.",
            media="application/octet-stream",
            headers=(("Content-Range", "`bytes FIRST-LAST/SIZE`; SIZE is `*` while the log grows"),),
        ),
    ),
    errors=(404, 416),
    tag="logs",
)
async def read_log(call: Call) -> ASGIApp:
    """Read the log of one step, whole or a range of it."""
    query: LogQuery = call.query(LogQuery)
    job, step = job_id(call), _step(call)
    size, final = await call.api.log_size(job, attempt=query.attempt, step=step)
    wanted = byte_range(call.header("range"), size)
    start, end = wanted or (0, size)
    headers = _log_headers(start, end, size, final, partial=wanted is not None)
    chunks = await call.api.read_log(job, attempt=query.attempt, step=step, start=start, end=end)
    return Streamed(_bytes(chunks), status=206 if wanted else 200, headers=headers, stopping=call.stopping)


def _log_headers(start: int, end: int, size: int, final: bool, *, partial: bool) -> dict[str, str]:
    headers = {
        "content-type": "application/octet-stream",
        "content-length": str(end - start),
        "accept-ranges": "bytes",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "corral-log-final": "true" if final else "false",
    }
    if partial:
        headers["content-range"] = f"bytes {start}-{end - 1}/{size if final else '*'}"
    return headers


async def _bytes(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    async for chunk in chunks:
        yield chunk


@operation(
    "GET",
    "/api/v1/jobs/{job_id}/log/events",
    query=FollowQuery,
    headers=(("Last-Event-ID", "`STEP:OFFSET`, where to go on; wins over `from`", POSITION),),
    answers=(
        Answer(
            status=200,
            description=(
                "Events `log` (data: LogEvent, its bytes in base64; id: `STEP:OFFSET` to go on from) of all steps in "
                "order as they arrive; `end` after the last."
            ),
            media="text/event-stream",
        ),
    ),
    errors=(404,),
    tag="logs",
)
async def follow_log(call: Call) -> ASGIApp:
    """Follow the log of a job by server-sent events."""
    query: FollowQuery = call.query(FollowQuery)
    job = job_id(call)
    step, offset = _position(call.header("last-event-id") or query.from_)
    view = await call.api.job(job)
    if query.attempt is not None and query.attempt > view.attempt:
        raise NotFound(f"job {job} has no attempt {query.attempt}; its latest is {view.attempt}")
    return event_stream(_log_events(call, job, query.attempt, step, offset), call.stopping)


def _position(text: str) -> tuple[int, int]:
    form = re.match(POSITION, text)
    if form is None:
        raise Invalid("the request", [Fault(path="Last-Event-ID", message=f"{text[:40]!r} is not STEP:OFFSET")])
    return int(form[1]), int(form[2])


async def _log_events(call: Call, job: JobId, attempt: int | None, step: int, offset: int) -> AsyncIterator[bytes]:
    async for part in call.api.follow_log(job, attempt=attempt, step=step, offset=offset):
        yield event("log", _log_event(part), id=f"{part.step}:{part.offset + len(part.data)}")


def _log_event(part: LogPart) -> LogEvent:
    data = base64.b64encode(part.data).decode("ascii")
    return LogEvent(step=part.step, offset=part.offset, data=data, final=part.final)
