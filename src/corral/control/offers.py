# SPDX-License-Identifier: Apache-2.0
"""The transactions of an offer: made, accepted, declined, not answered; and the order that an agent gets."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection

from corral.control import settle
from corral.control.settle import SECOND, Wake, job_facts, run_context
from corral.decide import progress
from corral.decide.dispatching import Placement
from corral.decide.scaling import ReleaseReason
from corral.model.errors import Conflict
from corral.model.expressions import Context, ExpressionError, expand
from corral.model.ids import AgentId, JobId, RunId
from corral.model.records import Job, Run
from corral.model.spec import JobOrder, NeedResult, Reason, SourceRef
from corral.model.states import AttemptEvent, AttemptState, JobEvent, JobState
from corral.store.repo import agents, jobs, runs
from corral.store.repo.installation import now
from corral.store.repo.rows import NOW

MISSED_ACKS_MAX = 2
"""Offers in a row an agent may leave unanswered before nothing more is offered to it."""
DEADLINE_MARGIN = 60.0
"""Seconds beyond the job's own timeout, which the agent enforces, before the coordinator ends it without the agent."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """An offer that is committed and has to be sent."""

    agent_id: AgentId
    run_id: RunId
    order: JobOrder
    queued_at: int | None = None
    """When the job became ready, microseconds of the database."""


def make(
    connection: Connection, placement: Placement, *, session: int, boot_id: str, ack_timeout: float, wake: Wake
) -> Made | None:
    """Claim the job for the agent: job and agent row change together or not at all.

    None: the job cannot be ordered and was ended instead. :raises Conflict: job or agent changed meanwhile.
    """
    job = jobs.get(connection, placement.job_id)
    if job is None or job.state is not JobState.QUEUED:
        raise Conflict("the job is not queued any more")
    try:
        order = order_of(connection, job)
    except ExpressionError as error:
        settle.end_job(connection, job, JobEvent.FAIL, wake, reason=Reason.EXPRESSION_FAILED, detail=error.message)
        return None
    number = job.attempt + 1
    if not jobs.advance(connection, job, JobEvent.OFFER, attempt=number, agent_id=placement.agent_id):
        raise Conflict("the job was taken")
    if not agents.assign(connection, placement.agent_id, session=session, job_id=job.id, attempt=number):
        raise Conflict("the agent was taken or cordoned")
    jobs.add_attempt(
        connection,
        job_id=job.id,
        number=number,
        agent_id=placement.agent_id,
        boot_id=boot_id,
        deadline=int(ack_timeout * SECOND),
    )
    return Made(agent_id=placement.agent_id, run_id=job.run_id, order=order, queued_at=job.queued_at)


def order_of(connection: Connection, job: Job) -> JobOrder:
    """What the agent gets: the job with its templates expanded and what its needs came to.

    :raises ExpressionError: a template cannot be evaluated.
    """
    run = runs.get(connection, job.run_id)
    assert run is not None, "a job's run is deleted only with it"
    needs = _needs(connection, job)
    spec = msgspec.structs.replace(job.spec, env=_environment(run, job, needs))
    source = None
    if run.source_hash is not None and job.spec.checkout:
        source = SourceRef(hash=run.source_hash, size=run.source_size or 0)
    return JobOrder(
        run_id=run.id,
        job_id=job.id,
        attempt=job.attempt + 1,
        name=job.name,
        workflow=run.workflow,
        spec=spec,
        matrix=job.matrix,
        needs=needs,
        event=run.event,
        source=source,
    )


def _needs(connection: Connection, job: Job) -> dict[str, NeedResult]:
    if not job.needs:
        return {}
    by_base: dict[str, list[progress.JobFacts]] = {}
    for other in jobs.of_run(connection, job.run_id):
        by_base.setdefault(other.base, []).append(job_facts(other))
    return progress.needs_of(job_facts(job), by_base)


def _environment(run: Run, job: Job, needs: dict[str, NeedResult]) -> dict[str, str]:
    """Workflow below job below what the run was started with."""
    context = Context(needs=needs, matrix=job.matrix, run=run_context(run), event=run.event)
    written = {**run.workflow_env, **job.spec.env}
    return {**{name: expand(value, context) for name, value in written.items()}, **run.env}


@dataclass(frozen=True, kw_only=True)
class Taken:
    """``secrets``: the names of those that its agent gets."""

    run_id: RunId
    secrets: tuple[str, ...]


def accept(connection: Connection, agent_id: AgentId, job_id: JobId, attempt: int, wake: Wake) -> Taken | None:
    """Commit the start; only after that may the agent be told. None: the offer does not stand any more."""
    row = jobs.attempt(connection, job_id, attempt)
    job = jobs.get(connection, job_id)
    if row is None or job is None or row.agent_id != agent_id or row.state is not AttemptState.OFFERED:
        return None
    limit = now(connection) + int((job.spec.timeout + DEADLINE_MARGIN) * SECOND)
    started = jobs.advance(
        connection, job, JobEvent.START, tries=job.tries + 1, offers=0, creates=0, started_at=NOW, deadline_at=limit
    )
    if not started or not jobs.advance_attempt(connection, row, AttemptEvent.START):
        raise Conflict("the job changed while its offer was accepted")
    agents.answered(connection, agent_id)
    runs.started(connection, job.run_id)
    wake.runs.add(job.run_id)
    return Taken(run_id=job.run_id, secrets=job.spec.needed_secrets())


def without_secrets(connection: Connection, job_id: JobId, attempt: int, detail: str, wake: Wake) -> None:
    """A job that cannot be given its secrets ends before it begins, on whichever way its agent was to be told."""
    row = jobs.attempt(connection, job_id, attempt)
    job = jobs.get(connection, job_id)
    if row is None or job is None:
        return
    jobs.advance_attempt(connection, row, AttemptEvent.FAIL, reason=Reason.SECRET_UNAVAILABLE)
    agents.unassign(connection, row.agent_id, job_id=job_id, attempt=attempt)
    settle.end_job(connection, job, JobEvent.FAIL, wake, reason=Reason.SECRET_UNAVAILABLE, detail=detail)


def decline(
    connection: Connection, agent_id: AgentId, job_id: JobId, attempt: int, reason: str, wake: Wake, *, leaving: bool
) -> None:
    """The agent does not take it. ``leaving``: it takes nothing more, so it is cordoned."""
    row = jobs.attempt(connection, job_id, attempt)
    if row is not None and row.agent_id == agent_id and row.state is AttemptState.OFFERED:
        settle.withdraw(connection, row, reason, wake)
        agents.answered(connection, agent_id)
    if leaving:
        agents.cordon(connection, agent_id, ReleaseReason.DRAIN)


def expire(connection: Connection, wake: Wake) -> None:
    """Offers that were not answered in time: the job is queued again, a deaf agent gets no more."""
    moment = now(connection)
    for row in jobs.offered(connection):
        if row.offer_deadline_at > moment:
            continue
        settle.withdraw(connection, row, "the offer was not answered in time", wake)
        if agents.missed_ack(connection, row.agent_id) >= MISSED_ACKS_MAX:
            agents.cordon(connection, row.agent_id, ReleaseReason.UNRESPONSIVE)
