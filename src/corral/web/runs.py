# SPDX-License-Identifier: Apache-2.0
"""Runs and jobs over HTTP."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated

from litestar.types import ASGIApp
from msgspec import Meta, Struct

from corral.control.api import Role
from corral.model.errors import NotFound
from corral.model.ids import JobId, RunId
from corral.model.views import CancelRun, Clean, Cleaned, JobView, NewRun, Page, Rerun, RunView, WhyView
from corral.web.operations import Answer, Call, operation
from corral.web.responses import json_answer
from corral.web.streaming import event, event_stream

_ID = re.compile(r"[a-z0-9_-]{1,64}\Z")


def run_id(call: Call) -> RunId:
    """:raises NotFound: for anything that cannot be an id, before it reaches the database."""
    value = call.params["run_id"]
    if not _ID.match(value):
        raise NotFound("no run has such an id")
    return RunId(value)


def job_id(call: Call) -> JobId:
    """:raises NotFound: for anything that cannot be an id, before it reaches the database."""
    value = call.params["job_id"]
    if not _ID.match(value):
        raise NotFound("no job has such an id")
    return JobId(value)


class RunsQuery(Struct, frozen=True, kw_only=True):
    project: Annotated[str, Meta(max_length=128, pattern="^[a-zA-Z0-9._-]+$")] = "local"
    cursor: Annotated[str, Meta(max_length=256, pattern="^[a-zA-Z0-9:._=-]*$")] = ""
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    provisioning: bool = False


@operation(
    "POST",
    "/api/v1/runs",
    role=Role.OPERATOR,
    body=NewRun,
    answers=(Answer(status=201, description="The run, its jobs waiting or queued.", body=RunView),),
    errors=(409,),
    tag="runs",
)
async def create_run(call: Call) -> ASGIApp:
    """Create a run of one workflow of a lock file."""
    view = await call.api.create_run(await call.body(NewRun))
    return json_answer(view, 201, {"location": f"/api/v1/runs/{view.id}"})


@operation(
    "GET",
    "/api/v1/runs",
    query=RunsQuery,
    answers=(Answer(status=200, description="Newest first, without their jobs.", body=Page[RunView]),),
    tag="runs",
)
async def list_runs(call: Call) -> ASGIApp:
    """List runs, a page at a time: those of users, or with `provisioning` those that work for provisioners."""
    query: RunsQuery = call.query(RunsQuery)
    page = await call.api.runs(
        project=query.project, cursor=query.cursor, limit=query.limit, provisioning=query.provisioning
    )
    return json_answer(page)


@operation(
    "GET",
    "/api/v1/runs/{run_id}",
    answers=(Answer(status=200, description="With its jobs, without their steps.", body=RunView),),
    errors=(404,),
    tag="runs",
)
async def get_run(call: Call) -> ASGIApp:
    """Show one run."""
    return json_answer(await call.api.run(run_id(call)))


@operation(
    "GET",
    "/api/v1/runs/{run_id}/events",
    answers=(
        Answer(
            status=200,
            description="Events `run` (data: RunView) now and after each change; `end` after the last.",
            media="text/event-stream",
        ),
    ),
    errors=(404,),
    tag="runs",
)
async def watch_run(call: Call) -> ASGIApp:
    """Follow one run by server-sent events."""
    wanted = run_id(call)
    await call.api.run(wanted)
    return event_stream(_run_events(call, wanted), call.stopping)


async def _run_events(call: Call, wanted: RunId) -> AsyncIterator[bytes]:
    async for view in call.api.watch_run(wanted):
        yield event("run", view)


@operation(
    "POST",
    "/api/v1/runs/{run_id}/cancel",
    role=Role.OPERATOR,
    body=CancelRun,
    body_required=False,
    answers=(Answer(status=200, description="The run as it is now.", body=RunView),),
    errors=(404, 409),
    tag="runs",
)
async def cancel_run(call: Call) -> ASGIApp:
    """Cancel a run: gracefully, or by killing with `force`."""
    body: CancelRun = await call.body(CancelRun)
    return json_answer(await call.api.cancel_run(run_id(call), force=body.force))


@operation(
    "POST",
    "/api/v1/runs/{run_id}/rerun",
    role=Role.OPERATOR,
    body=Rerun,
    body_required=False,
    answers=(Answer(status=201, description="The new run.", body=RunView),),
    errors=(404, 409),
    tag="runs",
)
async def rerun(call: Call) -> ASGIApp:
    """Run it again, with the same lock file, source and event."""
    body: Rerun = await call.body(Rerun)
    view = await call.api.rerun(run_id(call), body)
    return json_answer(view, 201, {"location": f"/api/v1/runs/{view.id}"})


@operation(
    "POST",
    "/api/v1/clean",
    role=Role.ADMIN,
    body=Clean,
    body_required=False,
    answers=(Answer(status=200, description="What was removed.", body=Cleaned),),
    tag="runs",
)
async def clean(call: Call) -> ASGIApp:
    """Remove the oldest ended runs until both bounds hold."""
    return json_answer(await call.api.clean(await call.body(Clean)))


@operation(
    "GET",
    "/api/v1/jobs/{job_id}",
    answers=(Answer(status=200, description="With its steps and attempts.", body=JobView),),
    errors=(404,),
    tag="jobs",
)
async def get_job(call: Call) -> ASGIApp:
    """Show one job."""
    return json_answer(await call.api.job(job_id(call)))


@operation(
    "GET",
    "/api/v1/jobs/{job_id}/why",
    answers=(Answer(status=200, description="The story, oldest first, and the smallest fix.", body=WhyView),),
    errors=(404,),
    tag="jobs",
)
async def why(call: Call) -> ASGIApp:
    """Say why a job is in the state it is in."""
    return json_answer(await call.api.why(job_id(call)))
