# SPDX-License-Identifier: Apache-2.0
"""Leader service: turns the difference between demand and supply into provisions, and back.

Creations go through ``admission``, the one way in. Each release is a cordon and the move to ``releasing`` together, so
that an agent that was just given a job stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from corral.control import admission, bell, failures
from corral.control.admission import DELIVERY_DEADLINE, Request, Term
from corral.control.bell import Bell
from corral.control.settle import Wake, end_job, ring
from corral.decide import scaling
from corral.decide.matching import Offered, Wanted
from corral.decide.scaling import (
    Creation,
    Demand,
    NotDone,
    Release,
    ReleaseReason,
    ScalingPlan,
    Shortfall,
    Supply,
    Unplaced,
)
from corral.decide.scaling.releases import OWN_CORDONS
from corral.model.errors import Conflict
from corral.model.ids import AgentId, JobId
from corral.model.labels import NO_LABELS
from corral.model.pools import EVENT, Backoff, Caps, Pool
from corral.model.records import Agent, Hold, PoolHealth, Provision
from corral.model.secret import Secret
from corral.model.spec import Reason
from corral.model.states import AgentState, JobEvent, ProvisionEvent, ProvisionState
from corral.runtime.chance import Chance, agent_id, secret_token
from corral.runtime.clock import Clock, rfc3339
from corral.runtime.sealing import Sealer
from corral.runtime.service import Service
from corral.store.interface import Database
from corral.store.repo import agents, deliveries, jobs
from corral.store.repo import pool_health as pool_health_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import now
from corral.store.repo.lease import LEASE, fence

log = logging.getLogger(__name__)

__all__ = ["LEASE", "Reasons", "Scaler", "ScalerSettings", "Term", "let_go", "look", "note_failure"]

DEMAND_LIMIT = 2000
"""Queued jobs of the same labels looked at in one pass; the rest waits behind them anyway."""
STATIC_REMEMBERED = 24 * 3600 * 1_000_000
"""Microseconds for which a job waits for a static agent that is away: longer, and nothing here could ever run it."""
FLUSH_LIMIT = 1800 * 1_000_000
"""Microseconds of one session that an agent whose job was given up has to send the rest of its log: as long as one
without any coordinator may go on."""
GROUP = 64
"""Creations in one transaction: what an agent says waits no longer than they take."""
UNSENT_TIMEOUT = 60 * 1_000_000
"""Microseconds after which a provision that its host never began is given up."""


@dataclass(frozen=True, kw_only=True)
class World:
    """What one pass looks at."""

    demand: tuple[Demand, ...]
    supply: tuple[Supply, ...]
    provisions: Mapping[AgentId, Provision]
    health: Mapping[str, PoolHealth]
    unroutable: Mapping[JobId, int | None]
    tokens: float | None
    now: int


@dataclass(kw_only=True)
class ScalerSettings:
    pools: Callable[[], tuple[Pool, ...]]
    caps: Callable[[], Caps]
    unroutable_after: float = 120.0
    """Seconds that a job which nothing could ever run waits before it fails."""


@dataclass(kw_only=True)
class Reasons:
    """Why each waiting job has no agent yet, from the last pass: shown, never decided upon."""

    unplaced: dict[JobId, Unplaced] = field(default_factory=dict)
    covered: frozenset[JobId] = frozenset()
    short: tuple[Shortfall, ...] = ()
    """Pools that are not as warm as they should be."""


class Scaler(Service):
    name = "scaler"
    interval = 1.0
    rest = 4.0

    def __init__(
        self,
        clock: Clock,
        chance: Chance,
        database: Database,
        sealer: Sealer,
        bell_: Bell,
        term: Term,
        settings: ScalerSettings,
    ) -> None:
        super().__init__(clock)
        self._chance = chance
        self._database = database
        self._sealer = sealer
        self._bell = bell_
        self._term = term
        self._settings = settings
        self.reasons = Reasons()
        self.draining = False
        bell_.listen(bell.SCALE, self.wake)

    def begin_term(self, term: Term) -> None:
        """What it writes is fenced with this one from now on."""
        self._term = term

    async def run_once(self) -> None:
        pools, caps = self._settings.pools(), self._settings.caps()
        world = await self._database.read(lambda c: look(c, pools, caps))
        plan = scaling.plan(world.demand, world.supply, pools, caps, world.health, world.now, world.tokens)
        made = [each.job_id for each in plan.creations if each.job_id is not None]
        stopped = {job_id: _stopping(job_id) for job_id in made} if self.draining else {}
        self.reasons = Reasons(
            unplaced={item.job_id: item for item in plan.unplaced} | stopped,
            covered=frozenset(plan.covered) | (frozenset(made) - stopped.keys()),
            short=plan.short,
        )
        await self._commit(plan, world, pools, caps)
        await self._give_up(plan, world)

    async def _commit(self, plan: ScalingPlan, world: World, pools: tuple[Pool, ...], caps: Caps) -> None:
        by_name = {pool.name: pool for pool in pools}
        for release in plan.releases:
            await self._release(release, world.provisions[release.agent_id], caps.backoff)
        for wanted in plan.uncordons:
            await self._take_back(wanted)
        if not self.draining:
            requests = [self._request(creation, by_name[creation.pool]) for creation in plan.creations]
            for start in range(0, len(requests), GROUP):
                await self._admit(requests[start : start + GROUP])
        if plan:
            self._bell.ring(bell.HOST, bell.QUEUE)

    def _request(self, creation: Creation, pool: Pool) -> Request:
        identity = agent_id(self._chance)
        claim = Secret(secret_token(self._chance, "claim_"))
        sealed = self._sealer.seal(claim, identity)
        return Request(creation=creation, pool=pool, identity=identity, claim=claim, sealed=sealed)

    async def _admit(self, requests: list[Request]) -> None:
        """By the caps and pools of this moment: a reload during a pass holds from then on."""
        now = {pool.name: pool for pool in self._settings.pools() if not pool.draining}
        requests = [replace(each, pool=now[each.pool.name]) for each in requests if each.pool.name in now]
        caps = self._settings.caps()
        try:
            answers = await self._database.write(lambda c: admission.admit(c, self._term, requests, caps))
        except Conflict as error:
            log.info("%d instances were not admitted: %s", len(requests), error)
            return
        for request, refused in zip(requests, answers, strict=True):
            if refused is not None:
                what = request.creation.job_id or f"the warmth of pool {request.pool.name}"
                log.info("an instance for %s was not admitted: %s", what, refused.detail)

    async def _take_back(self, agent_id: AgentId) -> None:
        try:
            await self._database.write(lambda c: take_back(c, self._term, agent_id))
        except Conflict:
            return
        log.info("agent %s is wanted after all", agent_id)

    async def _release(self, release: Release, provision: Provision, pace: Backoff) -> None:
        try:
            await self._database.write(lambda c: let_go(c, self._term, release, provision, pace))
        except Conflict:
            return
        log.info("provision %s: releasing, %s", release.agent_id, release.reason)

    async def _give_up(self, plan: ScalingPlan, world: World) -> None:
        """Jobs that nothing here could ever run, or for which enough instances were made in vain."""
        hopeless = [item for item in plan.unplaced if item.reason is NotDone.NO_POOL]
        ids = frozenset(item.job_id for item in hopeless)
        news = [item.job_id for item in hopeless if world.unroutable.get(item.job_id) is None]
        healed = [job_id for job_id, since in world.unroutable.items() if since is not None and job_id not in ids]
        spent = [item for item in plan.unplaced if item.reason is NotDone.CREATES_EXHAUSTED]
        late = [item for item in hopeless if self._too_long(item, world)]
        if not (news or healed or spent or late):
            return
        wake = Wake()

        def write(connection: Connection) -> None:
            fence(connection, LEASE, self._term.holder, self._term.epoch)
            jobs.mark_unroutable(connection, news)
            jobs.clear_unroutable(connection, healed)
            for item in (*late, *spent):
                _fail(connection, item, world.health, wake)

        await self._database.write(write)
        ring(self._bell, wake)
        if news and self._settings.unroutable_after <= 0:
            self.wake()

    def _too_long(self, item: Unplaced, world: World) -> bool:
        since = world.unroutable.get(item.job_id)
        if self._settings.unroutable_after <= 0:
            return True
        return since is not None and world.now - since >= self._settings.unroutable_after * 1_000_000


def _stopping(job_id: JobId) -> Unplaced:
    detail = "this coordinator is stopping and makes no new instances"
    return Unplaced(job_id=job_id, reason=NotDone.DRAINING, detail=detail)


# --- reading -----------------------------------------------------------------------------------------------


def look(connection: Connection, pools: tuple[Pool, ...], caps: Caps) -> World:
    """The whole state that a plan depends on, from one snapshot."""
    provisions = {row.agent_id: row for row in provisions_rows.live(connection)}
    bound = [row.job_id for row in provisions.values() if row.job_id is not None]
    # A job that something was made for is looked at however many wait before it: else its agent would seem free.
    heads = jobs.queued_heads(connection, DEMAND_LIMIT, bound)
    rows = {row.id: row for row in agents.live(connection)}
    live = jobs.unended(connection, bound)
    by_pool = {pool.name: pool for pool in pools}
    moment = now(connection)
    return World(
        demand=tuple(
            Demand(
                job_id=head.id,
                run_id=head.run_id,
                wanted=Wanted(labels=head.labels, excludes=head.excludes),
                creates=head.creates,
                cpu=head.cpu,
                memory=head.memory,
                provisioning=head.provisioning,
            )
            for head in heads
        ),
        supply=tuple(_supply(row, rows.get(row.agent_id), live, by_pool, moment) for row in provisions.values())
        + tuple(_static_supply(row) for row in rows.values() if row.id not in provisions and _remembered(row, moment)),
        provisions=provisions,
        health={row.pool: row for row in pool_health_rows.every(connection)},
        unroutable={head.id: head.unroutable_since for head in heads},
        tokens=admission.tokens(connection, caps),
        now=moment,
    )


def _remembered(agent: Agent, moment: int) -> bool:
    """Of a static agent: it is here, or was within the time that a job waits for one."""
    seen = max(agent.created_at, agent.connected_at or 0, agent.disconnected_at or 0)
    return _online(agent) or (agent.kind == "static" and moment - seen < STATIC_REMEMBERED)


def _late(agent: Agent, moment: int) -> bool:
    """It has been here for longer than any log takes."""
    return _online(agent) and moment - (agent.connected_at or 0) >= FLUSH_LIMIT


def _online(agent: Agent) -> bool:
    return agent.state is AgentState.ONLINE


def _supply(
    row: Provision, agent: Agent | None, live: frozenset[JobId], by_pool: Mapping[str, Pool], moment: int
) -> Supply:
    pool = by_pool.get(row.pool)
    online = agent is not None and _online(agent)
    labels = row.labels | (agent.labels if agent is not None else NO_LABELS)
    return Supply(
        agent_id=row.agent_id,
        pool=row.pool,
        state=row.state,
        offered=Offered(
            labels=labels,
            mandatory=pool.mandatory if pool else row.mandatory,
            default=pool.default if pool else False,
        ),
        bound=row.job_id,
        bound_live=row.job_id is not None and row.job_id in live,
        online=online,
        assigned=agent is not None and agent.assignment is not None,
        ever_assigned=agent is not None and agent.ever_assigned,
        cordon=agent.cordon_reason if agent else None,
        held=agent is not None and agent.hold is not None,
        draining=agent is not None and agent.hold is Hold.DRAIN,
        idle_since=agent.idle_since if agent else None,
        deadline_at=_deadline(row),
        failed=row.failed_at is not None,
        ended=row.ended_at is not None,
        lost=agent is not None and agent.cordon_reason == ReleaseReason.LOST and not _late(agent, moment),
        requested_at=row.requested_at,
        unsent=unbegun(row),
        event=row.backend == EVENT,
        provisioning=row.provisioning,
        cpu=row.cpu,
        memory=row.memory,
        cost=row.cost_per_hour,
        machine=row.machine,
    )


def unbegun(row: Provision) -> bool:
    """As far as its row knows, nobody began to make it."""
    seen = (row.sent_at, row.created_at, row.failed_at, row.ended_at)
    return row.state is ProvisionState.REQUESTED and all(moment is None for moment in seen)


def _deadline(row: Provision) -> int | None:
    """Its spawn deadline counts from the first sending; until then, how long the sending may take."""
    if row.sent_at is not None or row.deadline_at is not None:
        return row.deadline_at
    return row.requested_at + (DELIVERY_DEADLINE if row.backend == EVENT else UNSENT_TIMEOUT)


def _static_supply(agent: Agent) -> Supply:
    """A static agent serves demand but is nobody's to release: it belongs to no pool."""
    return Supply(
        agent_id=agent.id,
        pool="",
        state=ProvisionState.ACTIVE,
        offered=Offered(labels=agent.labels),
        online=_online(agent),
        assigned=agent.assignment is not None,
        cordon=agent.cordon_reason,
        held=agent.hold is not None,
        idle_since=agent.idle_since,
        static=True,
    )


# --- writing -----------------------------------------------------------------------------------------------


def let_go(connection: Connection, term: Term, release: Release, provision: Provision, pace: Backoff) -> None:
    """Cordon and release in one transaction. What nobody began to make is gone at once.

    :raises Conflict: it was assigned, or changed, meanwhile.
    """
    fence(connection, LEASE, term.holder, term.epoch)
    agent = agents.get(connection, release.agent_id)
    if agent is None or agent.assignment is not None:
        raise Conflict("the agent has a job")
    if agent.cordon_reason is None and not agents.cordon(connection, agent.id, release.reason):
        raise Conflict("the agent was given a job")
    unsent = _never_begun(connection, provision)
    event = ProvisionEvent.UNSENT if unsent else ProvisionEvent.RELEASE
    told = _evidence(provision, agent)
    if not provisions_rows.advance(connection, provision, event, evidence=told, release_reason=release.reason):
        raise Conflict("the provision changed meanwhile")
    if unsent:
        agents.end(connection, agent.id)
    if release.reason is ReleaseReason.SPAWN_TIMEOUT:
        note_failure(connection, provision, _timeout_error(provision), pace)


def _never_begun(connection: Connection, provision: Provision) -> bool:
    """Nothing outside was asked for it: there is nothing to end. The row's version decides against who begins now."""
    if not unbegun(provision):
        return False
    return provision.backend != EVENT or deliveries.unsent(connection, provision.agent_id)


def _timeout_error(provision: Provision) -> str:
    if provision.sent_at is not None:
        return scaling.SPAWN_TIMEOUT_ERROR
    who = "the provisioner could not be reached" if provision.backend == EVENT else "no host began to make it"
    return f"{who} in time"


def _evidence(provision: Provision, agent: Agent) -> dict[str, str]:
    """What the decision rests on, for whoever is told to end the instance."""
    moments = {
        "requested_at": provision.requested_at,
        "deadline_at": provision.deadline_at,
        "registered_at": provision.adopted_at,
        "idle_since": agent.idle_since if agent.state is AgentState.ONLINE else None,
        "disconnected_at": agent.disconnected_at,
    }
    told = {name: rfc3339(moment) for name, moment in moments.items() if moment is not None}
    return told | {"agent": str(agent.state)} | ({"error": provision.error} if provision.error else {})


def take_back(connection: Connection, term: Term, agent_id: AgentId) -> None:
    """Undo the scaler's own cordon of an agent that was to go for no other reason than that nobody needed it.

    :raises Conflict: it changed meanwhile.
    """
    fence(connection, LEASE, term.holder, term.epoch)
    agent = agents.get(connection, agent_id)
    provision = provisions_rows.get(connection, agent_id)
    if agent is None or provision is None or provision.state is not ProvisionState.ACTIVE:
        raise Conflict("its instance is being ended")
    if agent.cordon_reason not in OWN_CORDONS or agent.ever_assigned or agent.state is not AgentState.ONLINE:
        raise Conflict("it is cordoned for another reason")
    agents.uncordon(connection, agent_id)


def note_failure(connection: Connection, provision: Provision, error: str, pace: Backoff) -> None:
    """A failure of its pool: the next creation waits, longer with each in a row. Several that were under way together
    are one failure: only what was asked for after the pause began makes it longer."""
    failures.note(connection, provision, error)
    known = next((row for row in pool_health_rows.every(connection) if row.pool == provision.pool), None)
    if not scaling.doubles(known, provision.requested_at):
        pool_health_rows.error(connection, provision.pool, error)
        return
    pause = scaling.backoff(known.failures if known is not None else 0, pace)
    pool_health_rows.failed(connection, provision.pool, error, pause)


def _fail(connection: Connection, item: Unplaced, health: Mapping[str, PoolHealth], wake: Wake) -> None:
    job = jobs.get(connection, item.job_id)
    if job is None:
        return
    if item.reason is NotDone.CREATES_EXHAUSTED:
        last = health.get(item.pool)
        detail = item.detail + (f"; last error of pool {item.pool}: {last.last_error}" if last else "")
        end_job(connection, job, JobEvent.FAIL, wake, reason=Reason.CREATES_EXHAUSTED, detail=detail)
    else:
        end_job(connection, job, JobEvent.FAIL, wake, reason=Reason.UNROUTABLE, detail=item.detail)
