# SPDX-License-Identifier: Apache-2.0
"""Which idle agent is offered which queued job.

An agent made for a job is offered only that job, so that a small job cannot take the machine another waits for;
once its job has ended or runs elsewhere it is released to others, after a grace. An agent that just declined a job
or let its offer pass is not asked again while another one fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from corral.decide.matching import UNSIZED, Offered, Size, Wanted, fits
from corral.model.ids import AgentId, JobId

RELEASE_GRACE = 30 * 1_000_000
"""Microseconds that a bound agent without its job stays reserved: its job may come back by a retry."""


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """In the order in which they are to be served."""

    id: JobId
    wanted: Wanted
    avoid: AgentId | None = None
    size: Size = UNSIZED
    provisioning: bool = False
    """It works for a provisioner: an instance that an event brought up is not for it, and no limit of a pool holds it
    up."""


@dataclass(frozen=True, kw_only=True)
class IdleAgent:
    """Online here, unassigned, not cordoned, not draining. ``bound``: the job it was made for."""

    id: AgentId
    offered: Offered
    bound: JobId | None = None
    idle_since: int = 0
    pool: str = ""
    size: Size = UNSIZED
    by_event: bool = False
    """Of an event pool."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    job_id: JobId
    agent_id: AgentId


def released(agent: IdleAgent, queued: Mapping[JobId, QueuedJob], now: int) -> bool:
    """True where the agent may serve any job that fits."""
    if agent.bound is None:
        return True
    return agent.bound not in queued and now - agent.idle_since >= RELEASE_GRACE


def plan(
    queued: Sequence[QueuedJob], idle: Sequence[IdleAgent], now: int, room: Mapping[str, int] | None = None
) -> tuple[Placement, ...]:
    """Placements, at most one per job and agent; bound agents first, then the longest idle that fits.

    ``room``: how many more jobs may run in a pool; one that is not named has no limit of its own.
    """
    left = dict(room or {})
    by_id = {job.id: job for job in queued}
    bound = {agent.bound: agent for agent in idle if agent.bound is not None and agent.bound in by_id}
    free = sorted((a for a in idle if released(a, by_id, now)), key=lambda a: (a.idle_since, a.id))
    classes = _by_offer(free)
    placements = []
    for job in queued:
        own = bound.get(job.id)
        # Even the instance made for it is asked again only when nobody else fits.
        again = own is not None and own.id == job.avoid
        if own is not None and not _may_take(job, own, left):
            own = None
        agent = (_take(job, classes, left) or own) if again else (own or _take(job, classes, left))
        if agent is not None:
            placements.append(Placement(job_id=job.id, agent_id=agent.id))
            if agent.pool in left:
                left[agent.pool] -= 1
    return tuple(placements)


_Classes = dict[Offered, list[IdleAgent]]


def _by_offer(agents: Sequence[IdleAgent]) -> _Classes:
    """Agents that match alike, together: many agents, few classes, so a pass stays linear."""
    classes: _Classes = {}
    for agent in agents:
        classes.setdefault(agent.offered, []).append(agent)
    return classes


def _take(job: QueuedJob, classes: _Classes, left: Mapping[str, int]) -> IdleAgent | None:
    """The longest idle agent of the class with the fewest labels; one to avoid only when nobody else fits."""
    candidates = [agents for offered, agents in classes.items() if agents and fits(job.wanted, offered)]
    candidates.sort(key=lambda agents: len(agents[0].offered.labels))
    last: tuple[list[IdleAgent], int] | None = None
    for agents in candidates:
        for index, agent in enumerate(agents):
            if not _may_take(job, agent, left):
                continue
            if agent.id != job.avoid:
                return agents.pop(index)
            last = (agents, index)
    return last[0].pop(last[1]) if last is not None else None


def _may_take(job: QueuedJob, agent: IdleAgent, left: Mapping[str, int]) -> bool:
    if not agent.size.holds(job.size):
        return False
    if job.provisioning:
        return not agent.by_event
    return left.get(agent.pool, 1) > 0
