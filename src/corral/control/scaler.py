# SPDX-License-Identifier: Apache-2.0
"""Leader service: turns the difference between demand and supply into provisions, and back.

Each creation is one admission transaction: caps counted, provision, agent row and claim written, or nothing. Each
release is a cordon and the move to ``releasing`` together, so that an agent that was just given a job stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection

from corral.control import bell, failures
from corral.control.bell import Bell
from corral.control.registration import digest
from corral.control.settle import Wake, end_job, ring
from corral.decide import scaling
from corral.decide.matching import Offered, Wanted, fits
from corral.decide.scaling import Creation, Demand, NotDone, Release, ReleaseReason, ScalingPlan, Supply, Unplaced
from corral.model.errors import Conflict
from corral.model.ids import AgentId, CoordinatorId, JobId
from corral.model.labels import NO_LABELS
from corral.model.pools import Caps, Pool
from corral.model.records import Agent, Hold, PoolHealth, Provision
from corral.model.secret import Secret
from corral.model.spec import Reason
from corral.model.states import AgentState, JobEvent, ProvisionEvent, ProvisionState
from corral.runtime.chance import Chance, agent_id, secret_token
from corral.runtime.clock import Clock
from corral.runtime.sealing import Sealer
from corral.runtime.service import Service
from corral.store.interface import Database
from corral.store.repo import agents, jobs
from corral.store.repo import claims as claims_rows
from corral.store.repo import pool_health as pool_health_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import fence, now

log = logging.getLogger(__name__)

LEASE = "leader"
DEMAND_LIMIT = 2000
"""Queued jobs of the same labels looked at in one pass; the rest waits behind them anyway."""
CLAIM_PREFIX_LENGTH = 12
UNSENT_TIMEOUT = 60 * 1_000_000
"""Microseconds after which a provision that its host never began is given up."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """The right to lead: every transaction of the scaler checks it first."""

    holder: CoordinatorId
    epoch: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class World:
    """What one pass looks at."""

    demand: tuple[Demand, ...]
    supply: tuple[Supply, ...]
    provisions: Mapping[AgentId, Provision]
    health: Mapping[str, PoolHealth]
    unroutable: Mapping[JobId, int | None]
    static: tuple[Offered, ...]
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

    async def run_once(self) -> None:
        pools = self._settings.pools()
        world = await self._database.read(lambda c: look(c, pools))
        plan = scaling.plan(world.demand, world.supply, pools, self._settings.caps(), world.health, world.now)
        coming = frozenset(plan.covered) | {creation.job_id for creation in plan.creations}
        self.reasons = Reasons(unplaced={item.job_id: item for item in plan.unplaced}, covered=coming)
        await self._commit(plan, world, pools)
        await self._give_up(plan, world, pools)

    async def _commit(self, plan: ScalingPlan, world: World, pools: tuple[Pool, ...]) -> None:
        by_name = {pool.name: pool for pool in pools}
        for release in plan.releases:
            await self._release(release, world.provisions[release.agent_id])
        if not self.draining:
            for creation in plan.creations:
                await self._create(creation, by_name[creation.pool])
        if plan:
            self._bell.ring(bell.HOST)

    async def _create(self, creation: Creation, pool: Pool) -> None:
        identity = agent_id(self._chance)
        claim = Secret(secret_token(self._chance, "claim_"))
        sealed = self._sealer.seal(claim, identity)
        caps = self._settings.caps()
        try:
            await self._database.write(lambda c: admit(c, self._term, creation, pool, caps, identity, claim, sealed))
        except Conflict as error:
            log.info("an instance for %s was not admitted: %s", creation.job_id, error)

    async def _release(self, release: Release, provision: Provision) -> None:
        try:
            await self._database.write(lambda c: let_go(c, self._term, release, provision))
        except Conflict:
            return
        log.info("provision %s: releasing, %s", release.agent_id, release.reason)

    async def _give_up(self, plan: ScalingPlan, world: World, pools: tuple[Pool, ...]) -> None:
        """Jobs that nothing here could ever run, or for which enough instances were made in vain."""
        hopeless = [item for item in plan.unplaced if item.reason is NotDone.NO_POOL and not self._static(item, world)]
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

    def _static(self, item: Unplaced, world: World) -> bool:
        wanted = next(d.wanted for d in world.demand if d.job_id == item.job_id)
        return any(fits(wanted, offered) for offered in world.static)

    def _too_long(self, item: Unplaced, world: World) -> bool:
        since = world.unroutable.get(item.job_id)
        if self._settings.unroutable_after <= 0:
            return True
        return since is not None and world.now - since >= self._settings.unroutable_after * 1_000_000


# --- reading -----------------------------------------------------------------------------------------------


def look(connection: Connection, pools: tuple[Pool, ...]) -> World:
    """The whole state that a plan depends on, from one snapshot."""
    heads = jobs.queued_heads(connection, DEMAND_LIMIT)
    provisions = {row.agent_id: row for row in provisions_rows.live(connection)}
    rows = {row.id: row for row in agents.live(connection)}
    bound = [row.job_id for row in provisions.values() if row.job_id is not None]
    live = jobs.unended(connection, bound)
    by_pool = {pool.name: pool for pool in pools}
    return World(
        demand=tuple(
            Demand(
                job_id=head.id,
                run_id=head.run_id,
                wanted=Wanted(labels=head.labels, excludes=head.excludes),
                creates=head.creates,
                cpu=head.cpu,
                memory=head.memory,
            )
            for head in heads
        ),
        supply=tuple(_supply(row, rows.get(row.agent_id), live, by_pool) for row in provisions.values())
        + tuple(_static_supply(row) for row in rows.values() if row.id not in provisions and _online(row)),
        provisions=provisions,
        health={row.pool: row for row in pool_health_rows.every(connection)},
        unroutable={head.id: head.unroutable_since for head in heads},
        static=tuple(Offered(labels=row.labels) for row in rows.values() if row.kind == "static"),
        now=now(connection),
    )


def _online(agent: Agent) -> bool:
    return agent.state is AgentState.ONLINE


def _supply(row: Provision, agent: Agent | None, live: frozenset[JobId], by_pool: Mapping[str, Pool]) -> Supply:
    pool = by_pool.get(row.pool)
    online = agent is not None and _online(agent)
    labels = row.labels | (agent.labels if agent is not None else NO_LABELS)
    return Supply(
        agent_id=row.agent_id,
        pool=row.pool,
        state=row.state,
        offered=Offered(
            labels=labels,
            mandatory=pool.mandatory if pool else NO_LABELS,
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
        deadline_at=row.deadline_at if row.sent_at is not None else row.requested_at + UNSENT_TIMEOUT,
        failed=row.failed_at is not None,
        ended=row.ended_at is not None,
        lost=agent is not None and agent.cordon_reason == ReleaseReason.LOST and not online,
    )


def _static_supply(agent: Agent) -> Supply:
    """A static agent serves demand but is nobody's to release: it belongs to no pool."""
    return Supply(
        agent_id=agent.id,
        pool="",
        state=ProvisionState.ACTIVE,
        offered=Offered(labels=agent.labels),
        online=True,
        assigned=agent.assignment is not None,
        cordon=agent.cordon_reason,
        held=agent.hold is not None,
        idle_since=agent.idle_since,
        static=True,
    )


# --- writing -----------------------------------------------------------------------------------------------


def admit(
    connection: Connection,
    term: Term,
    creation: Creation,
    pool: Pool,
    caps: Caps,
    identity: AgentId,
    claim: Secret,
    sealed: bytes,
) -> None:
    """The one way in: caps counted again, then provision, agent and claim written together.

    :raises Conflict: the term is over, or a cap is reached by now; nothing is written.
    """
    fence(connection, LEASE, term.holder, term.epoch)
    if provisions_rows.count_live(connection, pool.name) >= pool.max_agents:
        raise Conflict(f"pool {pool.name} has its {pool.max_agents} agents")
    if provisions_rows.count_live(connection) >= caps.max_agents:
        raise Conflict(f"the cluster has its {caps.max_agents} agents")
    if provisions_rows.count_creating(connection) >= caps.concurrent_creates:
        raise Conflict(f"{caps.concurrent_creates} instances are being created already")
    agents.add(connection, id=identity, pool=pool.name, kind="provisioned", labels=creation.labels, project="local")
    provisions_rows.add(
        connection,
        agent_id=identity,
        pool=pool.name,
        backend=pool.backend,
        host_id=term.holder,
        labels=creation.labels,
        cause="job",
        job_id=creation.job_id,
        run_id=creation.run_id,
        cpu=creation.cpu,
        memory=creation.memory,
        owner_id=term.holder,
        claim_sealed=sealed,
    )
    code = claim.reveal()
    claims_rows.add(connection, digest=digest(code), agent_id=identity, prefix=code[:CLAIM_PREFIX_LENGTH])
    jobs.count_create(connection, creation.job_id)


def let_go(connection: Connection, term: Term, release: Release, provision: Provision) -> None:
    """Cordon and release in one transaction. :raises Conflict: it was assigned, or changed, meanwhile."""
    fence(connection, LEASE, term.holder, term.epoch)
    agent = agents.get(connection, release.agent_id)
    if agent is None or agent.assignment is not None:
        raise Conflict("the agent has a job")
    if agent.cordon_reason is None and not agents.cordon(connection, agent.id, release.reason):
        raise Conflict("the agent was given a job")
    if not provisions_rows.advance(connection, provision, ProvisionEvent.RELEASE, release_reason=release.reason):
        raise Conflict("the provision changed meanwhile")
    if release.reason is ReleaseReason.SPAWN_TIMEOUT:
        note_failure(connection, provision, scaling.SPAWN_TIMEOUT_ERROR)


def note_failure(connection: Connection, provision: Provision, error: str) -> None:
    """A failure of its pool: the next creation waits, longer with each in a row. Several that were under way together
    are one failure: only what was asked for after the pause began makes it longer."""
    failures.note(connection, provision, error)
    known = next((row for row in pool_health_rows.every(connection) if row.pool == provision.pool), None)
    if known is not None and known.backoff_began_at is not None and provision.requested_at <= known.backoff_began_at:
        pool_health_rows.error(connection, provision.pool, error)
        return
    pool_health_rows.failed(
        connection, provision.pool, error, scaling.backoff(known.failures if known is not None else 0)
    )


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
