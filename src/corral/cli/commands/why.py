# SPDX-License-Identifier: Apache-2.0
"""``corral why``: the story of a job, and the smallest change that would help."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from corral.cli.finding import find_job
from corral.cli.options import AsJson, JobRef, RunRef, StateDir, Url, with_client
from corral.cli.output import clean, write, write_json
from corral.model.ids import JobId

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import WhyView


def command(
    context: typer.Context,
    run: RunRef = "latest",
    job: JobRef = None,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Say why a job is in its state, and what would help."""

    async def work(client: Client) -> WhyView:
        return await client.why(JobId((await find_job(client, run, job)).id))

    view = with_client(context, state_dir, url, work)
    if as_json:
        write_json(view)
        return
    write(f"job {clean(view.name)} ({view.job_id}): {view.state}" + (f" ({view.code})" if view.code else ""))
    for sentence in view.sentences:
        write(f"  {clean(sentence)}")
    if view.fix:
        write(f"fix: {clean(view.fix)}")
