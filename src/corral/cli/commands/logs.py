# SPDX-License-Identifier: Apache-2.0
"""``corral logs``: what jobs printed, byte for byte, now or as it comes."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from corral.cli.failing import say
from corral.cli.finding import combinations, find_job, find_run, job_of
from corral.cli.options import AsJson, JobRef, RunRef, StateDir, Url, with_client
from corral.cli.output import clean, write_json_line
from corral.model.errors import NotFound
from corral.model.ids import JobId

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import JobView, StepView


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of a log with ``--json``. ``data``: base64 of the bytes from ``offset`` on."""

    job: str
    job_id: str
    attempt: int
    step: int
    offset: int
    data: str


def command(
    context: typer.Context,
    run: RunRef = "latest",
    job: JobRef = None,
    step: Annotated[int | None, typer.Option("--step", min=0, help="Only this step, by its number from 0.")] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Another attempt than the latest.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print the log of a job, or of all jobs of a run.

    It comes byte for byte as it was printed. What is said about the log (which job and step, what is missing)
    goes to standard error.
    """

    async def work(client: Client) -> None:
        for view in await _jobs(client, run, job):
            await _Printer(client, view, attempt, as_json).print(step, follow)

    with_client(context, state_dir, url, work)


async def _jobs(client: Client, run: str, job: str | None) -> list[JobView]:
    if run.lower().startswith("job_"):
        return [await find_job(client, run, job)]
    jobs = (await find_run(client, run)).jobs
    chosen = jobs if job is None else combinations(jobs, job) or (job_of(jobs, job, run),)
    return [await client.job(JobId(each.id)) for each in chosen]


class _Printer:
    def __init__(self, client: Client, job: JobView, attempt: int | None, as_json: bool) -> None:
        self.client = client
        self.job = job
        self.attempt = attempt
        self.as_json = as_json

    async def print(self, step: int | None, follow: bool) -> None:
        steps = [each for each in self.job.steps if step is None or each.index == step]
        if not steps and step is not None:
            raise NotFound(f"job {self.job.name} has {len(self.job.steps)} steps, numbered from 0; there is no {step}")
        if follow:
            await self._follow(step)
            return
        for each in steps:
            await self._step(each)

    async def _step(self, step: StepView) -> None:
        self._announce(step)
        offset = 0
        async for chunk in self.client.read_log(JobId(self.job.id), step=step.index, attempt=self.attempt):
            self._write(step.index, offset, chunk)
            offset += len(chunk)
        if step.log_missing:
            self._say(f"log incomplete: {step.log_missing} bytes are missing")

    async def _follow(self, only: int | None) -> None:
        names = {each.index: each for each in self.job.steps}
        announced = -1
        chunks = self.client.follow_log(JobId(self.job.id), attempt=self.attempt, step=only or 0)
        async for part in chunks:
            if only is not None and part.step != only:
                break
            if part.step != announced and part.step in names:
                announced = part.step
                self._announce(names[part.step])
            if part.data:
                self._write(part.step, part.offset, part.data)
            if only is not None and part.final:
                break

    def _announce(self, step: StepView) -> None:
        self._say(f"== {clean(self.job.name)}, step {step.index}: {clean(step.name)}")

    def _say(self, text: str) -> None:
        if not self.as_json:
            sys.stdout.flush()
            say(text)

    def _write(self, step: int, offset: int, data: bytes) -> None:
        if self.as_json:
            write_json_line(
                LogLine(
                    job=self.job.name,
                    job_id=self.job.id,
                    attempt=self.attempt or self.job.attempt,
                    step=step,
                    offset=offset,
                    data=base64.b64encode(data).decode("ascii"),
                )
            )
        else:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
