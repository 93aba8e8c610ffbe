# SPDX-License-Identifier: Apache-2.0
"""``corral logs``: what jobs printed, byte for byte, now or as it comes."""

from __future__ import annotations

import base64
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from corral.cli.exits import ExitCode
from corral.cli.failing import say
from corral.cli.finding import combinations, find_job, find_run, job_of
from corral.cli.logreading import Plain, Reading, fault, file_of, incomplete, matches, pattern, save, tail_start
from corral.cli.options import AsJson, JobRef, RunRef, StateDir, Url, with_client
from corral.cli.output import clean, write, write_json_line
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


class LogMatch(msgspec.Struct, frozen=True, kw_only=True):
    """One line with ``--search --json``. ``line``: its number, from 1."""

    job: str
    job_id: str
    step: int
    line: int
    text: str


class LogCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One log with ``--verify --json``. ``fault``: empty: none; null: it is not final yet."""

    job: str
    job_id: str
    step: int
    fault: str | None


MATCHES_LIMIT = 10_000
"""Lines that a search prints; more than anybody reads."""


def command(
    context: typer.Context,
    run: RunRef = "latest",
    job: JobRef = None,
    step: Annotated[int | None, typer.Option("--step", min=0, help="Only this step, by its number from 0.")] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Another attempt than the latest.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=1, help="Only so many lines of each step's end.")
    ] = None,
    search: Annotated[
        str | None, typer.Option("--search", metavar="REGEX", help="Only lines that match, each with where it stands.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Print nothing of it: read all and compare with what was reported.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file (one step), or below this directory.")
    ] = None,
    no_colour: Annotated[
        bool, typer.Option("--no-colour", "--no-color", help="Take colours and the like out.")
    ] = False,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print the log of a job, or of all jobs of a run.

    It comes byte for byte as it was printed. What is said about the log (which job and step, what is missing)
    goes to standard error. Exit code 1: with --search nothing matches, with
    --verify a log is not whole, and without either fewer bytes can be read than were stored.
    """
    _sensible(follow=follow, tail=tail, search=search, verify=verify, output=output, attempt=attempt)
    wanted = pattern(search) if search is not None else None

    async def work(client: Client) -> bool:
        jobs = await _jobs(client, run, job)
        readings = [
            Reading(client=client, job=view, step=each, attempt=attempt) for view in jobs for each in _steps(view, step)
        ]
        if verify:
            return await _verify(readings, as_json)
        if wanted is not None:
            return await _search(readings, wanted, as_json)
        if output is not None:
            await _save(readings, output, single=step is not None and len(readings) == 1)
            return True
        whole = True
        for view in jobs:
            printer = _Printer(client, view, attempt, as_json, plain=no_colour, tail=tail)
            await printer.print(step, follow)
            whole = whole and printer.whole
        return whole

    if not with_client(context, state_dir, url, work):
        raise typer.Exit(ExitCode.RUN_FAILED)


def _sensible(**given: object) -> None:
    """:raises BadParameter: options that exclude each other."""
    modes = [name for name in ("follow", "search", "verify", "output") if given[name]]
    if len(modes) > 1:
        raise typer.BadParameter(f"--{modes[0]} and --{modes[1]} exclude each other")
    if given["verify"] and given["attempt"] is not None:
        raise typer.BadParameter("--verify knows what was reported of the latest attempt only; leave --attempt out")
    if given["tail"] is not None and modes:
        raise typer.BadParameter(f"--tail and --{modes[0]} exclude each other")


def _steps(job: JobView, number: int | None) -> list[StepView]:
    """:raises NotFound: no such step."""
    steps = [each for each in job.steps if number is None or each.index == number]
    if not steps and number is not None:
        raise NotFound(f"job {job.name} has {len(job.steps)} steps, numbered from 0; there is no {number}")
    return steps


async def _verify(readings: list[Reading], as_json: bool) -> bool:
    whole = True
    for reading in readings:
        found = await fault(reading)
        whole = whole and not found
        if as_json:
            checked = LogCheck(job=reading.job.name, job_id=reading.job.id, step=reading.step.index, fault=found)
            write_json_line(checked)
        elif found:
            write(clean(f"{reading.name}: {found}"))
        elif found is None and reading.step.state not in ("pending", "skipped"):
            say(clean(f"{reading.name}: not final yet"))
    if whole and not as_json:
        say(f"{len(readings)} logs are as they were printed")
    return whole


async def _search(readings: list[Reading], wanted: re.Pattern[bytes], as_json: bool) -> bool:
    count = 0
    for reading in readings:
        async for number, line in matches(reading, wanted):
            text = line.decode(errors="replace")
            if as_json:
                write_json_line(
                    LogMatch(
                        job=reading.job.name, job_id=reading.job.id, step=reading.step.index, line=number, text=text
                    )
                )
            else:
                write(f"{clean(reading.job.name)}:{reading.step.index}:{number}: {clean(text)}")
            count += 1
            if count >= MATCHES_LIMIT:
                say(f"stopped after {count} lines; search for less")
                return True
    return count > 0


async def _save(readings: list[Reading], output: Path, *, single: bool) -> None:
    for reading in readings:
        path = output if single else file_of(output, reading)
        if reading.step.log_stored or single:
            say(f"{path}: {await save(reading, path)} bytes")
        if missing := incomplete(reading.step):
            say(clean(f"{reading.name}: log {missing}"))


async def _jobs(client: Client, run: str, job: str | None) -> list[JobView]:
    if run.lower().startswith("job_"):
        return [await find_job(client, run, job)]
    jobs = (await find_run(client, run)).jobs
    chosen = jobs if job is None else combinations(jobs, job) or (job_of(jobs, job, run),)
    return [await client.job(JobId(each.id)) for each in chosen]


class _Printer:
    def __init__(
        self,
        client: Client,
        job: JobView,
        attempt: int | None,
        as_json: bool,
        *,
        plain: bool = False,
        tail: int | None = None,
    ) -> None:
        self.client = client
        self.job = job
        self.attempt = attempt
        self.as_json = as_json
        self.tail = tail
        self.plain = Plain() if plain and not as_json else None
        self.whole = True
        """Every step's log had the bytes that the server's record says are stored."""

    async def print(self, step: int | None, follow: bool) -> None:
        steps = _steps(self.job, step)
        if follow:
            await self._follow(step)
            return
        for each in steps:
            await self._step(each)

    async def _step(self, step: StepView) -> None:
        self._announce(step)
        reading = Reading(client=self.client, job=self.job, step=step, attempt=self.attempt)
        offset = 0 if self.tail is None else (await tail_start(reading, self.tail))[0]
        async for chunk in reading.bytes(offset):
            self._write(step.index, offset, chunk)
            offset += len(chunk)
        if self.plain is not None:
            sys.stdout.buffer.write(self.plain.end())
        if missing := incomplete(step):
            self._say(f"log {missing}")
        # What is missing was never stored: the size is that of what was.
        stored = step.log_size or 0
        if self.attempt in (None, self.job.attempt) and offset < stored:
            self.whole = False
            say(f"log damaged: {offset} bytes of {clean(reading.name)} can be read; {stored} were stored")

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
            sys.stdout.buffer.write(data if self.plain is None else self.plain.feed(data))
            sys.stdout.flush()
