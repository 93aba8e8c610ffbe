# SPDX-License-Identifier: Apache-2.0
"""Rows as users see them: views, and the story of why a job is where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from corral.control.levels import slots_by_pool
from corral.control.lines import LastLines
from corral.control.scaler import Reasons
from corral.decide.matching import Offered, Wanted, fits, nearest, route
from corral.decide.scaling import NotDone, Unplaced, no_pool
from corral.model.errors import NotFound
from corral.model.ids import AgentId, JobId, RunId
from corral.model.pools import Pool
from corral.model.records import Agent, Attempt, Hold, Job, ListedJob, Provision, Run, Step, Token
from corral.model.spec import StepSpec
from corral.model.states import JOB, AgentState, JobState, ProvisionState
from corral.model.views import AgentView, AttemptView, JobView, PoolView, RunView, StepView, TokenView, WhyView
from corral.runtime.clock import SECOND, rfc3339
from corral.store.repo import agents, jobs, runs, tokens
from corral.store.repo import pool_health as pool_health_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import now
from corral.wire.messages import Facts

STATIC_SHOWN = 5
"""Static agents that a story names; a fleet of them would drown the rest."""


def when(moment: int | None) -> str | None:
    return None if moment is None else rfc3339(moment)


def _seconds(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None else round(max(0, end - start) / SECOND, 6)


# --- runs and jobs -----------------------------------------------------------------------------------------


def run_view(run: Run, job_views: Sequence[JobView] = ()) -> RunView:
    return RunView(
        id=run.id,
        project=run.project,
        workflow=run.workflow,
        title=run.title,
        state=run.state,
        reason=run.reason,
        detail=run.detail,
        original=run.original,
        provisioning=run.provisioning,
        created_at=rfc3339(run.created_at),
        started_at=when(run.started_at),
        finished_at=when(run.finished_at),
        jobs_total=run.jobs_total,
        jobs_finished=run.jobs_finished,
        log_incomplete=run.log_incomplete,
        jobs=tuple(job_views),
    )


def full_run(connection: Connection, run_id: RunId, reasons: Reasons, lines: LastLines) -> RunView:
    """:raises NotFound: no such run."""
    run = runs.get(connection, run_id)
    if run is None:
        raise NotFound(f"no run {run_id}")
    rows = jobs.listed(connection, run_id)
    moment = now(connection)
    made = provisions_rows.of_run(connection, run_id)
    return run_view(run, [job_view(job, made.get(job.id), moment, reasons, lines) for job in rows])


def job_view(
    job: ListedJob,
    provision: Provision | None,
    moment: int,
    reasons: Reasons,
    lines: LastLines,
    *,
    steps: Sequence[StepView] = (),
    attempts: Sequence[AttemptView] = (),
) -> JobView:
    """``moment``: now; what goes on is measured up to it."""
    end = job.finished_at or moment
    asked = _asked(job, provision)
    return JobView(
        id=job.id,
        run_id=job.run_id,
        name=job.name,
        state=job.state,
        reason=job.reason,
        detail=job.detail,
        labels=tuple(sorted(job.labels)),
        matrix=job.matrix,
        needs=tuple(need.job for need in job.needs),
        attempt=job.attempt,
        agent_id=job.agent_id or "",
        outputs=job.outputs,
        created_at=rfc3339(job.created_at),
        queued_at=when(job.queued_at),
        started_at=when(job.started_at),
        finished_at=when(job.finished_at),
        queued=_seconds(job.queued_at, asked or job.started_at or end),
        provisioned=_seconds(asked, job.started_at or end) if asked is not None else None,
        running=_seconds(job.started_at, end),
        total=_seconds(job.queued_at, end),
        waiting_for=_waiting_for(job, reasons) if job.state not in JOB.terminal else "",
        last_line=lines.get(job.id) if job.state in (JobState.RUNNING, JobState.CANCELLING) else "",
        steps=tuple(steps),
        attempts=tuple(attempts),
    )


def _asked(job: ListedJob, provision: Provision | None) -> int | None:
    """When an instance was asked for this job, if one was and ran it (or still may)."""
    if provision is None or job.queued_at is None or provision.requested_at < job.queued_at:
        return None
    if job.started_at is not None and provision.agent_id != job.agent_id:
        return None
    return provision.requested_at


def full_job(
    connection: Connection,
    job_id: JobId,
    reasons: Reasons,
    lines: LastLines,
) -> JobView:
    """With steps and attempts. :raises NotFound: no such job."""
    job = required(connection, job_id)
    made = provisions_rows.of_job(connection, job_id)
    steps = {step.number: step for step in jobs.steps_of(connection, job_id, job.attempt)}
    written = (*job.spec.steps, *job.spec.cleanup)
    views = [_step_view(number, spec, steps.get(number)) for number, spec in enumerate(written)]
    attempts = [_attempt_view(row) for row in jobs.attempts_of(connection, job_id)]
    return job_view(job, made[-1] if made else None, now(connection), reasons, lines, steps=views, attempts=attempts)


def required(connection: Connection, job_id: JobId) -> Job:
    job = jobs.get(connection, job_id)
    if job is None:
        raise NotFound(f"no job {job_id}")
    return job


def _step_view(number: int, spec: StepSpec, row: Step | None) -> StepView:
    if row is None:
        return StepView(index=number, name=spec.name, state="pending")
    return StepView(
        index=number,
        name=spec.name,
        state=row.state,
        reason=row.reason,
        detail=row.detail,
        exit_code=row.exit_code,
        signal=row.signal,
        started_at=when(row.started_at),
        finished_at=when(row.finished_at),
        log_size=row.log_size,
        log_digest=row.log_digest,
        log_missing=row.log_missing,
    )


def _attempt_view(row: Attempt) -> AttemptView:
    return AttemptView(
        number=row.number,
        state=row.state,
        agent_id=row.agent_id,
        reason=row.reason,
        detail=row.detail,
        offered_at=rfc3339(row.offered_at),
        started_at=when(row.started_at),
        began_at=when(row.began_at),
        finished_at=when(row.finished_at),
    )


# --- why ---------------------------------------------------------------------------------------------------


def _waiting_for(job: ListedJob, reasons: Reasons) -> str:
    match job.state:
        case JobState.WAITING:
            return "needs " + ", ".join(need.job for need in job.needs) if job.needs else "a free place in its matrix"
        case JobState.QUEUED:
            unplaced = reasons.unplaced.get(job.id)
            if unplaced is not None:
                return unplaced.detail
            if job.id in reasons.covered:
                return "an agent for it is coming up"
            return "waiting for an agent"
        case JobState.OFFERED:
            return "an agent has been asked"
        case _:
            return ""


def why(connection: Connection, job_id: JobId, pools: Sequence[Pool], reasons: Reasons) -> WhyView:
    """The story of one job so far, and the smallest change that would let it run."""
    job = required(connection, job_id)
    unplaced = _unplaced(job, pools, reasons) if job.state is JobState.QUEUED else None
    sentences = [*_story(connection, job)]
    waiting = unplaced.detail if unplaced is not None else _waiting_for(job, reasons)
    if waiting:
        sentences.append(f"it waits: {waiting}")
    if job.state is JobState.QUEUED:
        sentences += _absent(connection, job)
    if job.state in JOB.terminal:
        sentences.append(_end_sentence(job))
    return WhyView(
        job_id=job.id,
        name=job.name,
        state=job.state,
        code=unplaced.reason if unplaced else job.reason,
        sentences=tuple(sentences),
        fix=_fix(job, unplaced, pools),
    )


def _absent(connection: Connection, job: Job) -> list[str]:
    """Static agents that would take it, and why they do not."""
    wanted = Wanted(labels=job.labels, excludes=job.excludes)
    fitting = [row for row in agents.static(connection) if fits(wanted, Offered(labels=row.labels))]
    names = tokens.names_of_agents(connection) if fitting else {}
    return [
        f"static agent {names.get(row.id, row.id)} fits; {why_not}"
        for row in fitting[:STATIC_SHOWN]
        if (why_not := _absence(row))
    ]


def _absence(agent: Agent) -> str:
    if agent.state is not AgentState.ONLINE:
        return "it is not connected"
    if agent.hold is not None:
        return "an operator drains it" if agent.hold is Hold.DRAIN else "it is cordoned by an operator"
    if agent.cordon_reason is not None:
        return f"it is cordoned: {agent.cordon_reason}"
    return "it has another job" if agent.assignment is not None else ""


def _unplaced(job: Job, pools: Sequence[Pool], reasons: Reasons) -> Unplaced | None:
    """Why it gets no agent: what the scaler last said, or, before it looked at the job, what can be told without it."""
    known = reasons.unplaced.get(job.id)
    if known is not None or job.id in reasons.covered:
        return known
    wanted = Wanted(labels=job.labels, excludes=job.excludes)
    return no_pool(job.id, wanted, pools) if not route(wanted, pools) else None


def _story(connection: Connection, job: Job) -> list[str]:
    sentences = [f"{rfc3339(job.created_at)} created with run {job.run_id}"]
    dated: list[tuple[int, str]] = []
    for provision in provisions_rows.of_job(connection, job.id):
        dated += provision_story(provision)
    for attempt in jobs.attempts_of(connection, job.id):
        dated += _attempt_story(attempt)
    sentences += [f"{rfc3339(moment)} {text}" for moment, text in sorted(dated, key=lambda entry: entry[0])]
    return sentences


def provision_story(row: Provision) -> list[tuple[int, str]]:
    story = [(row.requested_at, f"instance {row.agent_id} was asked for in pool {row.pool} ({row.backend})")]
    if row.adopted_at is not None:
        story.append((row.adopted_at, f"its agent {row.agent_id} registered"))
    if row.failed_at is not None:
        story.append((row.failed_at, f"the instance could not be made: {row.error}"))
    if row.ended_at is not None:
        story.append((row.ended_at, f"the instance ended by itself: {row.error}"))
    if row.released_at is not None:
        story.append((row.released_at, f"the instance was released: {row.release_reason or row.error or 'gone'}"))
    if row.gone_at is not None:
        story.append((row.gone_at, "the instance is confirmed gone"))
    return story


def _attempt_story(row: Attempt) -> list[tuple[int, str]]:
    story = [(row.offered_at, f"attempt {row.number} was offered to agent {row.agent_id}")]
    if row.started_at is not None:
        story.append((row.started_at, f"attempt {row.number} was accepted and started"))
    if row.finished_at is not None:
        because = ": ".join(part for part in (row.reason, row.detail) if part)
        story.append(
            (row.finished_at, f"attempt {row.number} ended {row.state}" + (f" ({because})" if because else ""))
        )
    return story


def _end_sentence(job: Job) -> str:
    because = ": ".join(part for part in (job.reason, job.detail) if part)
    return f"it ended {job.state}" + (f" because of {because}" if because else "")


def _fix(job: Job, unplaced: Unplaced | None, pools: Sequence[Pool]) -> str:
    if unplaced is None and job.reason != "unroutable":
        return ""
    wanted = Wanted(labels=job.labels, excludes=job.excludes)
    reason = unplaced.reason if unplaced else NotDone.NO_POOL
    match reason:
        case NotDone.NO_POOL:
            return _label_fix(wanted, pools)
        case NotDone.AT_POOL_MAX:
            fitting = route(wanted, pools)
            return f"raise max_agents of pool {fitting[0].name}, or wait for one of its agents" if fitting else ""
        case _:
            return _room_fix(reason, unplaced.pool if unplaced else "", pools)


def _room_fix(reason: NotDone, name: str, pools: Sequence[Pool]) -> str:
    """Where a pool fits and makes nothing now."""
    machine = next((pool.machine for pool in pools if pool.name == name), "")
    match reason:
        case NotDone.AT_MAX_RUNNING:
            return f"raise max_running of pool {name}, or wait for one of its jobs"
        case NotDone.AT_GLOBAL_MAX:
            return "raise the cluster's max_agents, or wait for an agent to end"
        case NotDone.AT_CPU_CAP:
            return f"raise max_cpu (of pool {name}, or of all), ask for fewer cores, or wait for an agent to end"
        case NotDone.AT_MEMORY_CAP:
            return f"raise max_memory (of pool {name}, or of all), ask for less memory, or wait for an agent to end"
        case NotDone.AT_MACHINE_CAP:
            return f"raise what machine {machine} has, ask for less, or wait for an agent on it to end"
        case NotDone.AT_SPEND_CAP:
            return "raise max_cost_per_hour, or wait for an agent to end"
        case NotDone.AT_PROVISIONER_SLOTS:
            return "raise provisioner_slots, or wait for another provisioning run"
        case NotDone.AT_RATE:
            return "wait: instances are created a few at a time"
        case NotDone.BACKING_OFF:
            return f"mend pool {name}; it is tried again by itself"
        case NotDone.LEAKING:
            return f"corral provisions list --abandoned --pool {name}, then retry or forget each"
        case NotDone.DRAINING:
            return "wait for another pool, or end the drain"
        case NotDone.AGENT_OFFLINE:
            return "start one of the static agents that fit, or configure a pool with these labels"
        case NotDone.AGENT_BUSY:
            return "wait for one of the static agents that fit, or configure a pool with these labels"
        case NotDone.CREATES_EXHAUSTED:
            return "find out why its instances end before they run it, then run it again"
        case NotDone.NO_POOL | NotDone.AT_POOL_MAX | NotDone.NOT_WAITING:
            return ""


def _label_fix(wanted: Wanted, pools: Sequence[Pool]) -> str:
    near = nearest(wanted, pools)
    if near is None:
        return "configure a pool"
    pool, difference = near
    if difference.missing:
        missing = ", ".join(sorted(difference.missing))
        return f"add the label {missing} to pool {pool.name}, or take it out of the job's runs_on"
    if difference.unasked:
        return f"name {', '.join(sorted(difference.unasked))} in the job's runs_on"
    if difference.excluded:
        return f"take {', '.join(sorted(difference.excluded))} out of the job's excludes"
    return f"give the job a label of pool {pool.name}, or make the pool the default one"


# --- agents, pools, tokens ---------------------------------------------------------------------------------


def agent_views(connection: Connection) -> tuple[AgentView, ...]:
    return _agent_views(connection, agents.live(connection))


def one_agent(connection: Connection, agent_id: AgentId) -> AgentView:
    """:raises NotFound: no such agent."""
    views = _agent_views(connection, agents.some(connection, [agent_id]))
    if not views:
        raise NotFound(f"no agent {agent_id}")
    return views[0]


def _agent_views(connection: Connection, rows: Sequence[Agent]) -> tuple[AgentView, ...]:
    ids = [row.id for row in rows]
    provisions = {row.agent_id: row for row in provisions_rows.some(connection, ids)}
    facts = agents.facts(connection, ids)
    names = tokens.names_of_agents(connection)
    views = [_agent_view(row, provisions.get(row.id), facts.get(row.id), names.get(row.id, "")) for row in rows]
    return tuple(reversed(views))


def _agent_view(row: Agent, provision: Provision | None, facts: Facts | None, name: str) -> AgentView:
    seen = row.disconnected_at or row.connected_at
    return AgentView(
        id=row.id,
        name=name,
        pool=row.pool,
        kind=row.kind,
        state=row.state,
        labels=tuple(sorted(row.labels)),
        job_id=row.assignment or "",
        cordon_reason=row.cordon_reason or "",
        hold=row.hold or "",
        held_by=row.held_by or "",
        held_at=when(row.held_at),
        provision_state=provision.state if provision else "",
        host=facts.host if facts else "",
        version=facts.version if facts else "",
        created_at=rfc3339(row.created_at),
        last_seen_at=when(seen),
        cause=provision.cause if provision else "",
    )


def pool_views(
    connection: Connection, pools: Sequence[Pool], reasons: Reasons, isolation: Mapping[str, str]
) -> tuple[PoolView, ...]:
    provisions = provisions_rows.live(connection)
    slots = slots_by_pool(provisions_rows.held(connection))
    rows = {row.id: row for row in agents.some(connection, [p.agent_id for p in provisions])}
    health = {row.pool: row for row in pool_health_rows.every(connection)}
    heads = jobs.queued_heads(connection, 2000)
    views = []
    for pool in pools:
        mine = [p for p in provisions if p.pool == pool.name]
        busy = sum(1 for p in mine if _busy(rows.get(p.agent_id)))
        idle = sum(1 for p in mine if p.state is ProvisionState.ACTIVE and _idle(rows.get(p.agent_id)))
        routed = [
            h for h in heads if (fit := route(Wanted(labels=h.labels, excludes=h.excludes), pools)) and fit[0] == pool
        ]
        waiting = next(
            (u.detail for h in routed if (u := reasons.unplaced.get(h.id)) is not None), _cold(pool, reasons)
        )
        views.append(
            PoolView(
                name=pool.name,
                backend=pool.backend,
                labels=tuple(sorted(pool.labels)),
                max_agents=pool.max_agents,
                max_running=pool.max_running,
                user=pool.user,
                isolation=isolation.get(pool.backend, ""),
                agents=slots[pool.name],
                idle=idle,
                busy=busy,
                queued=len(routed),
                waiting_reason=waiting,
                last_error=health[pool.name].last_error if pool.name in health else "",
                draining=pool.draining,
            )
        )
    kept = {row.pool for row in provisions}
    return tuple(view for view in views if view.name in kept or not view.draining)


def _cold(pool: Pool, reasons: Reasons) -> str:
    """Why it is not as warm as it should be."""
    short = next((each for each in reasons.short if each.pool == pool.name), None)
    return f"{short.missing} warm agents are missing: {short.detail}" if short is not None else ""


def _busy(agent: Agent | None) -> bool:
    return agent is not None and agent.assignment is not None


def _idle(agent: Agent | None) -> bool:
    return (
        agent is not None
        and agent.state is AgentState.ONLINE
        and agent.assignment is None
        and agent.cordon_reason is None
        and agent.hold is None
    )


def token_view(token: Token) -> TokenView:
    return TokenView(
        id=token.id,
        name=token.name,
        role=token.role,
        prefix=token.prefix,
        created_at=rfc3339(token.created_at),
        last_used_at=when(token.last_used_at),
        revoked_at=when(token.revoked_at),
        agent_id=token.agent_id or "",
        created_by=token.created_by or "",
        replaced_by=token.replaced_by or "",
        expires_at=when(token.expires_at),
    )


def job_of_agent(connection: Connection, agent_id: AgentId) -> tuple[Agent, Run | None] | None:
    """The agent and the run of the job it holds."""
    agent = agents.get(connection, agent_id)
    if agent is None:
        return None
    run_id = jobs.run_of(connection, agent.assignment) if agent.assignment is not None else None
    return agent, runs.get(connection, run_id) if run_id is not None else None
