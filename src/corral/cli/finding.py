# SPDX-License-Identifier: Apache-2.0
"""Runs and jobs by what a person types: the beginning of an id, ``latest``, a job's name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral.model.errors import NotFound, Refused
from corral.model.ids import JobId, RunId

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import AgentView, JobView, RunView

LATEST = "latest"
_FULL = 20
"""Characters of a whole id of a run."""
WHOLE_AGENT_ID = len("agent_") + 26


async def find_run(client: Client, text: str) -> RunView:
    """The run that ``text`` names, with its jobs.

    :raises NotFound: none, with what comes near. :raises Refused: several begin so.
    """
    wanted = text.lower()
    if wanted == LATEST:
        newest = (await client.runs(limit=1)).items
        if not newest:
            raise NotFound("there are no runs yet; start one with: corral run")
        return await client.run(RunId(newest[0].id))
    if wanted.startswith("run_") and len(wanted) >= _FULL:
        return await client.run(RunId(wanted))
    ids = [run.id async for run in client.all_runs()]
    found = [each for each in ids if each.startswith(wanted) or each.startswith(f"run_{wanted}")]
    return await client.run(RunId(_only(found, ids, text, "run")))


async def find_job(client: Client, run: str, job: str | None) -> JobView:
    """The job that the words name, with its steps and attempts; a run of one job needs no name.

    :raises NotFound: none, with what comes near. :raises Refused: several fit.
    """
    if run.lower().startswith("job_"):
        return await client.job(JobId(run.lower()))
    jobs = (await find_run(client, run)).jobs
    return await client.job(JobId(job_of(jobs, job, run).id))


async def find_agent(client: Client, text: str) -> AgentView:
    """The agent that ``text`` names: by its id, the beginning of it, or the name of its token.

    :raises NotFound: none, with what comes near. :raises Refused: several fit.
    """
    agents = await client.agents()
    named = [agent.id for agent in agents if text in (agent.id, agent.name)]
    begin = [agent.id for agent in agents if agent.id.startswith(text) or agent.id.startswith(f"agent_{text}")]
    known = [agent.name or agent.id for agent in agents]
    chosen = _only(named or begin, known, text, "agent")
    return next(agent for agent in agents if agent.id == chosen)


async def find_provision(client: Client, text: str, state: str = "") -> str:
    """Id of the one that ``text`` names: by its id, or the beginning of one; of those in a state, else of all that are
    not gone. One that is gone needs its whole id.

    :raises NotFound: no such provision. :raises Refused: several begin like that.
    """
    known = [each.id for each in await client.provisions(state=state)]
    if text in known or (text.startswith("agent_") and len(text) == WHOLE_AGENT_ID):
        return text
    begin = [each for each in known if each.startswith(text) or each.startswith(f"agent_{text}")]
    return _only(begin, known, text, "provision")


def job_of(jobs: Sequence[JobView], text: str | None, run: str) -> JobView:
    """The one of ``jobs`` that ``text`` names: its whole name, its id, or the beginning of either."""
    names = [job.name for job in jobs]
    if text is None:
        if len(jobs) == 1:
            return jobs[0]
        raise Refused(f"run {run} has {len(jobs)} jobs; name one of: {', '.join(names)}")
    exact = [job for job in jobs if text in (job.name, job.id)]
    if exact:
        return exact[0]
    found = [job.name for job in jobs if job.name.startswith(text) or job.id.startswith(text)]
    name = _only(found, names, text, "job")
    return next(job for job in jobs if job.name == name)


def combinations(jobs: Sequence[JobView], name: str) -> tuple[JobView, ...]:
    """The jobs that a matrix made of the job ``name``, in order; none where it has no matrix."""
    return tuple(job for job in jobs if job.name.startswith(f"{name} ("))


def _only(found: list[str], known: list[str], text: str, kind: str) -> str:
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
        raise Refused(f"{len(found)} {kind}s begin with {text!r}: {shown}; type more of it")
    if not known:
        raise NotFound(f"no {kind} {text!r}: there are no {kind}s")
    near = difflib.get_close_matches(text, known, 1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known[:5])}"
    raise NotFound(f"no {kind} {text!r}; {hint}")
