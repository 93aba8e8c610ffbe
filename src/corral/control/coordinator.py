# SPDX-License-Identifier: Apache-2.0
"""One coordinator: its services started and stopped in order, and the :class:`~corral.control.api.Api` over them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from sqlalchemy import Connection

from corral import __version__
from corral.backends.event.interface import Deliverer
from corral.backends.interface import Backend
from corral.control import (
    bell,
    credentials,
    diagnose,
    hearing,
    holding,
    inventory,
    leaks,
    ledger,
    logs,
    measures,
    queries,
    registry,
    runs,
    settle,
)
from corral.control.api import LogPart, Principal, Role, ServiceHealth
from corral.control.bell import Bell
from corral.control.checks import STALLED_AFTER
from corral.control.deliverers import ByKind
from corral.control.diagnose import Subject
from corral.control.dispatcher import Dispatcher
from corral.control.failures import FailureTracker
from corral.control.fleet import Fleet
from corral.control.host import Host
from corral.control.inventory import Inventories
from corral.control.limiter import AddressLimiter
from corral.control.lines import LastLines
from corral.control.link import Link
from corral.control.outbox import Outbox, OutboxSettings
from corral.control.provisioning import WorkflowDeliverer
from corral.control.quota import RUN_LOG_LIMIT, RunQuota
from corral.control.registration import digest
from corral.control.retention import clean
from corral.control.scaler import Reasons, Scaler, ScalerSettings, Term
from corral.control.session import Services, SessionSettings
from corral.control.sessions import Sessions, tell_withdrawn
from corral.control.settle import Wake, ring
from corral.control.sweeper import Sweeper, SweeperSettings
from corral.control.telemetry import Telemetry
from corral.model.errors import Fault, Forbidden, Invalid, NotFound, Refused, Unauthenticated
from corral.model.events import Listing, ProvisionReport
from corral.model.ids import AgentId, ClusterId, CoordinatorId, JobId, RunId, SourceHash, TokenId
from corral.model.labels import NO_LABELS, Labels
from corral.model.leaks import EpochView, LedgerView, ReportView
from corral.model.records import Agent, Job
from corral.model.secret import Secret
from corral.model.spec import STEP_LOG_LIMIT, Lock, Reason, SourceRef
from corral.model.states import RUN, ProvisionEvent, ProvisionState
from corral.model.views import (
    AgentView,
    Clean,
    Cleaned,
    CreatedToken,
    DiagnoseView,
    DrainAgent,
    JobView,
    NewRun,
    NewToken,
    Page,
    PoolView,
    ProvisionView,
    RegisterWorkflows,
    ReloadView,
    Rerun,
    RotateToken,
    RunView,
    ServerView,
    TokenView,
    WhyView,
    WorkflowView,
)
from corral.runtime.chance import Chance, cluster_id, coordinator_id
from corral.runtime.clock import SECOND, Clock, rfc3339
from corral.runtime.logs import bind
from corral.runtime.metrics import Metrics
from corral.runtime.sealing import Sealer, SecretUnavailable
from corral.runtime.service import Service
from corral.store.interface import Database, LogKey, LogStore, SourceStore
from corral.store.measured import MeasuredDatabase
from corral.store.repo import agents as agent_rows
from corral.store.repo import installation, jobs, secrets, tokens
from corral.store.repo import lease as lease_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.repo import runs as run_rows
from corral.store.repo import workflows as workflows_rows
from corral.store.repo.lease import LEASE
from corral.wire import close
from corral.workflow.lock import LOCK_VERSION, check_lock

log = logging.getLogger(__name__)

SOURCE_LIMIT = 1024**3
"""Bytes of a source archive."""
SMALL_LOCK = 32
"""Jobs and workflows that are checked at once, without a thread."""
WATCH_PAUSE = 0.1
"""Seconds between two views of a watched run."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorSettings:
    """``offline``: answer questions about what is stored, run no loop. Seconds and bytes throughout."""

    urls: tuple[str, ...] = ()
    offline: bool = False
    unroutable_after: float = 120.0
    queue_timeout: float = 24 * 3600.0
    lost_after: float = 120.0
    stranded_after: float = 1800.0
    heartbeat_interval: float = 20.0
    agent_dead_after: float = 60.0
    ack_timeout: float = 10.0
    inventory_every: float = 600.0
    flap_grace: float = 120.0
    step_log_limit: int = STEP_LOG_LIMIT
    run_log_limit: int = RUN_LOG_LIMIT
    keep: Clean = field(default_factory=Clean)
    directories: Mapping[str, Path] = field(default_factory=dict)
    """Where the server keeps things, by the place's name (state, logs, work)."""
    changed: tuple[tuple[str, str, str], ...] = ()
    """Settings that differ from their defaults: name, value, default."""
    certificate: Path | None = None
    """The certificate (PEM) that the server shows, where it ends TLS itself."""


@dataclass(frozen=True, kw_only=True)
class Stores:
    database: Database
    logs: LogStore
    sources: SourceStore


@dataclass(frozen=True, kw_only=True)
class Identity:
    cluster_id: ClusterId
    coordinator_id: CoordinatorId
    epoch: tuple[int, int]


def _raise_generation(connection: Connection) -> int:
    return lease_rows.raise_generation(connection, LEASE, installation.now(connection) // SECOND)


async def identify(database: Database, chance: Chance, *, take_lease: bool) -> Identity:
    """Who this installation and this coordinator are; with ``take_lease`` a new term begins, with a new epoch."""

    def read(connection: Connection) -> Identity:
        cluster = ClusterId(installation.fact(connection, "cluster_id", cluster_id(chance)))
        own = CoordinatorId(installation.fact(connection, "coordinator_id", coordinator_id(chance)))
        epoch = lease_rows.take(connection, LEASE, own) if take_lease else (0, 0)
        return Identity(cluster_id=cluster, coordinator_id=own, epoch=epoch)

    return await database.write(read)


class Coordinator:
    """Implements :class:`corral.control.api.Api`."""

    def __init__(
        self,
        *,
        clock: Clock,
        chance: Chance,
        stores: Stores,
        sealer: Sealer,
        identity: Identity,
        backends: Mapping[str, Backend],
        fleet: Fleet,
        settings: CoordinatorSettings,
        bell_: Bell | None = None,
        deliverer: Deliverer | None = None,
    ) -> None:
        self.clock = clock
        self.bell = bell_ or Bell()
        self.identity = identity
        self.settings = settings
        self._chance = chance
        self.counters = Metrics(measures.METRICS)
        self._db: Database = MeasuredDatabase(
            stores.database,
            clock,
            on_write=lambda seconds: self.counters.observe(measures.DATABASE_WRITE, seconds),
            on_error=lambda: self.counters.count(measures.DATABASE_ERRORS),
        )
        self.failures = FailureTracker()
        self._logs = stores.logs
        self._sources = stores.sources
        self._sealer = sealer
        self._backends = backends
        self.fleet = fleet
        pools, caps = fleet.pools, fleet.caps
        self._pools = pools
        self._lines = LastLines()
        self._started_at = clock.now()
        self.inventories = Inventories(clock, self._db, identity.cluster_id, flap_grace=settings.flap_grace)
        self._began = clock.monotonic()
        self._running = False
        self.sessions = Sessions(self._session_services())
        self.dispatcher = Dispatcher(
            clock,
            self._db,
            self.sessions,
            self.bell,
            self.secrets_of,
            ack_timeout=settings.ack_timeout,
            log_limit=settings.step_log_limit,
            pools=pools,
            metrics=self.counters,
        )
        self.scaler = Scaler(
            clock,
            chance,
            self._db,
            sealer,
            self.bell,
            Term(holder=identity.coordinator_id, epoch=identity.epoch),
            ScalerSettings(pools=pools, caps=caps, unroutable_after=settings.unroutable_after),
        )
        self.host = Host(
            clock,
            self._db,
            sealer,
            self.sessions,
            self.bell,
            backends,
            pools,
            host_id=identity.coordinator_id,
            cluster_id=identity.cluster_id,
            urls=settings.urls,
            metrics=self.counters,
            pace=lambda: caps().backoff,
        )
        self.sweeper = Sweeper(
            clock,
            self._db,
            self.sessions,
            self.bell,
            SweeperSettings(lost_after=settings.lost_after, queue_timeout=settings.queue_timeout),
            coordinator_id=identity.coordinator_id,
        )
        self.workflow_targets = WorkflowDeliverer(
            clock=clock,
            chance=chance,
            database=self._db,
            bell=self.bell,
            sessions=self.sessions,
            seal=self._seal,
            fence=self._fence,
        )

        self.outbox: Outbox | None = None
        if deliverer is not None:
            self.outbox = Outbox(
                clock,
                chance,
                self._db,
                sealer,
                self.bell,
                ByKind(workflows=self.workflow_targets, others=deliverer),
                pools,
                Term(holder=identity.coordinator_id, epoch=identity.epoch),
                OutboxSettings(
                    cluster_id=identity.cluster_id, urls=settings.urls, inventory_every=settings.inventory_every
                ),
                inventories=self.inventories,
                on_term_over=self._new_term,
                pace=lambda: caps().backoff,
            )
        self.services: tuple[Service, ...] = (self.sweeper, self.dispatcher, self.host, self.scaler)
        if self.outbox is not None:
            self.services += (self.outbox,)
        self._telemetry = Telemetry(
            self.counters,
            clock,
            epoch=lambda: self.identity.epoch,
            directories=settings.directories,
            pools=pools,
            caps=caps,
            failures=self.failures,
        )
        self._telemetry.watch(self.services, self.bell)

    async def _new_term(self) -> None:
        """Our term was ended from outside (`corral cluster raise-epoch`): the file lock is still ours, so the next is
        too."""
        own = self.identity.coordinator_id
        epoch = await self._db.write(lambda c: lease_rows.take(c, LEASE, own))
        log.warning("a new term: epoch %d.%d", *epoch)
        self.identity = replace(self.identity, epoch=epoch)
        term = Term(holder=own, epoch=epoch)
        self.scaler.begin_term(term)
        if self.outbox is not None:
            self.outbox.begin_term(term)

    def _fence(self, connection: Connection) -> None:
        """:raises Conflict: our term as leader is over."""
        lease_rows.fence(connection, LEASE, self.identity.coordinator_id, self.identity.epoch)

    def _session_services(self) -> Services:
        settings = self.settings
        return Services(
            database=self._db,
            logs=self._logs,
            clock=self.clock,
            bell=self.bell,
            limiter=AddressLimiter(self.clock),
            coordinator_id=self.identity.coordinator_id,
            settings=SessionSettings(
                urls=settings.urls,
                heartbeat_interval=settings.heartbeat_interval,
                agent_dead_after=settings.agent_dead_after,
                lost_after=settings.lost_after,
                stranded_after=settings.stranded_after,
            ),
            on_hello=self.inventories.named,
            on_answer=lambda session, message: self.dispatcher.on_answer(session, message),
            on_bound=lambda agent_id: self.host.forget_claim(agent_id),
            secrets=self.secrets_of,
            pool_offer=self._pool_offer,
            lines=self._lines,
            quota=RunQuota(self._db, self._logs, settings.run_log_limit),
            metrics=self.counters,
        )

    def _pool_offer(self, name: str) -> tuple[Labels, bool]:
        pool = next((pool for pool in self._pools() if pool.name == name), None)
        return (pool.mandatory, pool.default) if pool is not None else (NO_LABELS, False)

    # --- life ---

    async def start(self) -> None:
        """What the last process left first, then agents may come, then the leader's services. Idempotent."""
        if self._running or self.settings.offline:
            return
        self._running = True
        # Every loop begins below here, and inherits it.
        bind(coordinator=self.identity.coordinator_id)
        await self._recover()
        self.fleet.remember(await self._db.read(provisions_rows.live))
        await self._telemetry.follow_failures(self._db, counted=False)
        for service in self.services:
            await service.start()

    async def _recover(self) -> None:
        """Sessions of the process before this one are over; an offer it made was never started."""
        own = self.identity.coordinator_id
        wake = Wake()

        def write(connection: Connection) -> None:
            inventory.strays_allowed(connection)  # the first term of all is the one that needs no approval
            agent_rows.disconnect_all(connection, own)
            for row in jobs.offered(connection):
                settle.withdraw(connection, row, "the coordinator was restarted", wake, counts=False)

        await self._db.write(write)

    async def stop(self, grace: float = 10.0) -> None:
        """Stop offering and creating, let sessions go, end the loops. What runs goes on: agents and their wardens
        outlive the coordinator. Idempotent; the stores are the caller's to close."""
        if not self._running:
            return
        self._running = False
        self.dispatcher.draining = True
        self.scaler.draining = True
        await self.scaler.stop(grace)
        await self.dispatcher.stop(grace)
        await self.sessions.stop(grace)
        await self.sweeper.stop(grace)
        await self.host.stop(grace)
        if self.outbox is not None:
            await self.outbox.stop(grace)
        for backend in self._backends.values():
            await backend.close()

    async def release_all(self, timeout: float) -> int:
        """For a coordinator that takes its instances with it: everything is given back, unfinished or not. How many
        provisions are not confirmed gone after ``timeout`` seconds."""
        self.scaler.draining = True
        await self._db.write(_release_everything)
        return await self.host.settled(timeout)

    # --- who ---

    async def authenticate(self, token: str) -> Principal:
        hashed = digest(token)
        row = await self._db.read(lambda c: tokens.by_digest(c, hashed))
        if row is None:
            raise Unauthenticated("the token is unknown or revoked")
        return Principal(token_id=TokenId(row.id), name=row.name, role=Role(row.role))

    async def create_token(self, new: NewToken, *, by: str = "") -> CreatedToken:
        faults = credentials.faults_of(new)
        if faults:
            raise Invalid("token", faults)
        made = credentials.make(new, self._chance)
        row = await self._db.write(lambda c: credentials.store(c, made, by))
        return CreatedToken(token=made.text, view=queries.token_view(row))

    async def tokens(self) -> tuple[TokenView, ...]:
        return tuple(queries.token_view(row) for row in await self._db.read(tokens.every))

    async def rotate_token(self, token_id: TokenId, how: RotateToken, *, by: str = "") -> CreatedToken:
        made, row = await self._db.write(lambda c: credentials.rotate(c, token_id, how.grace, self._chance, by))
        return CreatedToken(token=made.text, view=queries.token_view(row))

    async def revoke_token(self, token_id: TokenId) -> TokenView:
        wake = Wake()
        row, ended = await self._db.write(lambda c: credentials.revoke(c, token_id, wake))
        ring(self.bell, wake)
        session = self.sessions.get(row.agent_id) if row.agent_id is not None else None
        if session is not None and ended:
            session.close(close.REFUSED, "this agent's token was revoked")
        self.bell.ring(bell.SCALE)
        return queries.token_view(row)

    # --- health ---

    async def server(self) -> ServerView:
        generation, counter = self.identity.epoch
        return ServerView(
            version=__version__,
            cluster_id=self.identity.cluster_id,
            coordinator_id=self.identity.coordinator_id,
            epoch=f"{generation}.{counter}",
            started_at=rfc3339(self._started_at),
        )

    async def health(self) -> tuple[ServiceHealth, ...]:
        found = [await self._database_health()]
        now = self.clock.monotonic()
        for service in self.services:
            quiet = now - service.last_pass if service.last_pass is not None else None
            healthy = quiet is not None and quiet < STALLED_AFTER
            detail = (
                "" if healthy else "has not completed a pass yet" if quiet is None else f"no pass for {quiet:.0f} s"
            )
            found.append(ServiceHealth(name=service.name, healthy=healthy, detail=detail))
        return tuple(found)

    async def metrics(self) -> bytes:
        return await self._telemetry.render(self._db, self.sessions, self._reasons(), self.services, self.ledger)

    async def diagnose(self, only: str = "") -> DiagnoseView:
        return await diagnose.run(diagnose.checks(self._subject()), self.clock, only)

    def _subject(self) -> Subject:
        settings = self.settings
        return Subject(
            clock=self.clock,
            database=self._db,
            logs=self._logs,
            backends=self._backends,
            pools=self._pools(),
            caps=self.fleet.caps(),
            services=() if settings.offline else self.services,
            failures=self.failures,
            ledger=self.ledger,
            holder=self.identity.coordinator_id,
            epoch=self.identity.epoch,
            began=self._began,
            started_at=self._started_at,
            directories=settings.directories,
            changed=settings.changed,
            certificate=settings.certificate,
            offline=settings.offline,
        )

    async def _database_health(self) -> ServiceHealth:
        try:
            await self._db.write(lambda c: installation.fact(c, "cluster_id", ""))
        except Exception as error:
            return ServiceHealth(name="database", healthy=False, detail=str(error))
        return ServiceHealth(name="database", healthy=True)

    # --- runs ---

    async def create_run(self, new: NewRun) -> RunView:
        faults = await _lock_faults(new.lock)
        if faults:
            raise Invalid("lock file", faults)
        await self._check_source(new.source)
        prepared = runs.prepare(new, self._chance, self._seal, self.clock.now())
        await self._add(prepared)
        return await self.run(prepared.id)

    async def _check_source(self, source: SourceRef | None) -> None:
        if source is None:
            return
        size = await self._sources.size(SourceHash(source.hash))
        if size is None:
            message = f"no source archive {source.hash[:12]}… here"
            raise Invalid("run", [Fault(path="source", message=message, remedy="upload it first")])
        if size != source.size:
            raise Invalid("run", [Fault(path="source.size", message=f"is {source.size}, the archive has {size}")])

    def _seal(self, name: str, value: str, run_id: RunId) -> bytes:
        return self._sealer.seal(Secret(value), f"{run_id}/{name}")

    async def _add(self, prepared: runs.Prepared) -> None:
        wake = Wake()
        await self._db.write(lambda c: runs.add(c, prepared, wake))
        ring(self.bell, wake)

    async def unfinished(self) -> int:
        """Runs that have not ended."""
        return len(await self._db.read(run_rows.live))

    async def runs(
        self, *, project: str = "local", cursor: str = "", limit: int = 50, provisioning: bool = False
    ) -> Page[RunView]:
        before = _parse_cursor(cursor)
        limit = max(1, min(limit, 200))
        rows = await self._db.read(lambda c: run_rows.page(c, project, before, limit, provisioning=provisioning))
        following = f"{rows[-1].created_at}.{rows[-1].id}" if len(rows) == limit else ""
        return Page(items=tuple(queries.run_view(row) for row in rows), next=following)

    async def run(self, run_id: RunId) -> RunView:
        return await self._db.read(lambda c: queries.full_run(c, run_id, self._reasons(), self._lines))

    def _reasons(self) -> Reasons:
        return self.scaler.reasons

    async def watch_run(self, run_id: RunId) -> AsyncIterator[RunView]:
        topic = bell.run_topic(run_id)
        last: RunView | None = None
        while True:
            ticket = self.bell.ticket(topic)
            try:
                began = self.clock.monotonic()
                view = await self.run(run_id)
                took = self.clock.monotonic() - began
                if view != last:
                    yield view
                    last = view
                if view.state in RUN.terminal:
                    return
                # A view of a thousand jobs takes a while: watching must not cost more than a tenth of the time.
                await self.clock.sleep(max(WATCH_PAUSE, 10 * took))
                await self.bell.wait(topic, ticket, 0.5)
            finally:
                self.bell.drop(topic, ticket)

    async def cancel_run(self, run_id: RunId, *, force: bool = False) -> RunView:
        wake = Wake()
        await self._db.write(lambda c: runs.cancel(c, run_id, force=force, reason=Reason.CANCELLED, wake=wake))
        tell_withdrawn(self.sessions, wake)
        ring(self.bell, wake)
        return await self.run(run_id)

    async def rerun(self, run_id: RunId, how: Rerun) -> RunView:
        run, spec, before = await self._db.read(
            lambda c: (run_rows.get(c, run_id), run_rows.spec_of(c, run_id), jobs.of_run(c, run_id))
        )
        if run is None or spec is None:
            raise NotFound(f"no run {run_id}")
        if run.provisioning:
            raise Refused(
                f"run {run_id} works for a provisioner: its event is delivered again by itself until it is done"
            )
        source = SourceRef(hash=run.source_hash, size=run.source_size or 0) if run.source_hash else None
        if source is not None and await self._sources.size(SourceHash(source.hash)) is None:
            raise Refused(f"the source of run {run_id} is not kept any more; submit it anew")
        again = NewRun(
            lock=Lock(version=LOCK_VERSION, hash=run.lock_hash, files={}, workflows=(spec,)),
            workflow=run.workflow,
            source=source,
            title=run.title,
            jobs=run.job_filter,
            env=run.env,
            secrets=how.secrets,
            event=run.event,
            project=run.project,
        )
        prepared = runs.prepare(again, self._chance, self._seal, self.clock.now(), original=run_id)
        prepared = runs.again(run, before, prepared, failed_only=how.failed_only)
        await self._add(prepared)
        return await self.run(prepared.id)

    async def clean(self, how: Clean) -> Cleaned:
        return await clean(self._db, self._logs, self._sources, how)

    async def job(self, job_id: JobId) -> JobView:
        view = await self._db.read(lambda c: queries.full_job(c, job_id, self._reasons(), self._lines))
        steps = []
        for step in view.steps:
            key = LogKey(run_id=RunId(view.run_id), job_id=job_id, attempt=view.attempt, step=step.index)
            steps.append(msgspec.structs.replace(step, log_stored=(await self._logs.info(key)).size))
        return msgspec.structs.replace(view, steps=tuple(steps))

    async def why(self, job_id: JobId) -> WhyView:
        return await self._db.read(lambda c: queries.why(c, job_id, self._pools(), self._reasons()))

    # --- registered workflows ---

    async def register_workflows(self, wanted: RegisterWorkflows, *, by: str = "") -> tuple[WorkflowView, ...]:
        faults = await _lock_faults(wanted.lock)
        if faults:
            raise Invalid("lock file", faults)
        specs = registry.chosen(wanted)
        await self._check_source(wanted.source)
        pools = self._pools()

        def write(connection: Connection) -> tuple[WorkflowView, ...]:
            registry.register(connection, specs, wanted, pools, by)
            return tuple(registry.view(registry.existing(connection, spec.name), pools) for spec in specs)

        return await self._db.write(write)

    async def workflows(self, *, project: str = "local") -> tuple[WorkflowView, ...]:
        rows = await self._db.read(lambda c: workflows_rows.every(c, project))
        return tuple(registry.view(row, self._pools()) for row in rows)

    async def workflow(self, name: str) -> WorkflowView:
        return registry.view(await self._db.read(lambda c: registry.existing(c, name)), self._pools())

    async def remove_workflow(self, name: str) -> WorkflowView:
        pools = self._pools()
        return registry.view(await self._db.write(lambda c: registry.remove(c, name, pools)), pools)

    # --- logs ---

    async def read_log(
        self, job_id: JobId, *, attempt: int | None = None, step: int, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        key = await self._db.read(lambda c: logs.key_of(c, job_id, attempt, step))
        return self._logs.read(key, start, end)

    async def log_size(self, job_id: JobId, *, attempt: int | None = None, step: int) -> tuple[int, bool]:
        key, whole = await self._db.read(lambda c: logs.extent(c, job_id, attempt, step))
        info = await self._logs.info(key)
        return info.size, info.final or (whole is not None and info.size >= whole)

    def follow_log(
        self, job_id: JobId, *, attempt: int | None = None, step: int = 0, offset: int = 0
    ) -> AsyncIterator[LogPart]:
        follower = logs.Follower(self._db, self._logs, self.bell)
        return follower.follow(job_id, attempt, step, offset)

    # --- sources ---

    async def put_source(self, hash: SourceHash, chunks: AsyncIterator[bytes]) -> int:
        return await self._sources.put(hash, chunks, SOURCE_LIMIT)

    async def source_size(self, hash: SourceHash) -> int | None:
        return await self._sources.size(hash)

    async def read_source(self, agent_id: AgentId, key: str, hash: SourceHash) -> AsyncIterator[bytes]:
        found = await self._db.read(lambda c: queries.job_of_agent(c, agent_id))
        if found is None or found[0].key_digest != digest(key):
            raise Unauthenticated("no such agent or key")
        run = found[1]
        if run is None or run.source_hash != hash:
            raise Forbidden("this is not the source of the agent's job")
        return self._sources.read(hash)

    # --- agents and pools ---

    async def agents(self) -> tuple[AgentView, ...]:
        return await self._db.read(queries.agent_views)

    async def cordon_agent(self, agent_id: AgentId, *, by: str = "") -> AgentView:
        return await self._hold(await self._db.write(lambda c: holding.cordon(c, agent_id, by)))

    async def uncordon_agent(self, agent_id: AgentId) -> AgentView:
        return await self._hold(await self._db.write(lambda c: holding.uncordon(c, agent_id)))

    async def drain_agent(self, agent_id: AgentId, how: DrainAgent, *, by: str = "") -> AgentView:
        agent = await self._db.write(lambda c: holding.drain(c, agent_id, by, how.hand_back_after))
        self.sessions.send(agent_id, holding.drain_message(agent, self.clock.now()))
        return await self._hold(agent)

    async def _hold(self, agent: Agent) -> AgentView:
        """The session is told what the row says; the row alone decides."""
        session = self.sessions.get(agent.id)
        if session is not None:
            session.held = agent.hold is not None
            session.draining = session.draining and agent.cordon_reason is not None
        self.bell.ring(bell.QUEUE, bell.SCALE)
        return await self._db.read(lambda c: queries.one_agent(c, agent.id))

    async def pools(self) -> tuple[PoolView, ...]:
        isolation = {kind: str(backend.isolation) for kind, backend in self._backends.items()}
        return await self._db.read(lambda c: queries.pool_views(c, self._pools(), self._reasons(), isolation))

    async def reload_config(self) -> ReloadView:
        view = await self.fleet.reload()
        self.bell.ring(bell.SCALE, bell.QUEUE, bell.HOST)
        return view

    async def provisions(self, *, state: str = "", pool: str = "") -> tuple[ProvisionView, ...]:
        return await self._db.read(lambda c: ledger.listed(c, state=state, pool=pool))

    async def provision(self, agent_id: AgentId) -> ProvisionView:
        return await self._db.read(lambda c: ledger.shown(c, agent_id))

    async def retry_provision(self, agent_id: AgentId, *, by: str = "") -> ProvisionView:
        await self._db.write(lambda c: ledger.retry(c, agent_id, by))
        self.bell.ring(bell.SCALE, bell.HOST)
        return await self.provision(agent_id)

    async def forget_provision(self, agent_id: AgentId, *, by: str = "") -> ProvisionView:
        await self._db.write(lambda c: ledger.forget(c, agent_id, by))
        self.bell.ring(bell.SCALE)
        return await self.provision(agent_id)

    # --- provisioners ---

    async def report_provision(self, agent_id: AgentId, said: ProvisionReport) -> ReportView:
        view = await self._db.write(lambda c: hearing.report(c, agent_id, said, self.fleet.caps().backoff))
        self.bell.ring(bell.OUTBOX, bell.SCALE)
        return view

    async def take_listing(self, listing: Listing) -> LedgerView:
        term = Term(holder=self.identity.coordinator_id, epoch=self.identity.epoch)
        await self.inventories.listed(listing, term)
        self.bell.ring(bell.OUTBOX, bell.SCALE)
        return await self.ledger()

    async def ledger(self) -> LedgerView:
        unanswered = self.outbox.unanswered if self.outbox is not None else ()
        return await self._db.read(lambda c: leaks.snapshot(c, self.inventories.ghosts, unanswered))

    async def inventory_now(self) -> LedgerView:
        if self.outbox is None:
            raise Refused("no server runs on this state directory; only it asks provisioners")
        self.outbox.ask_now()
        return await self.ledger()

    async def approve_strays(self, *, by: str = "") -> EpochView:
        generation = await self._db.write(inventory.approve_strays)
        log.warning("strays may be destroyed from now on (generation %d), says %s", generation, by or "the operator")
        return EpochView(generation=generation)

    async def raise_epoch(self, *, by: str = "") -> EpochView:
        """The term in hand ends with it: the outbox notices, and takes a new one."""
        generation = await self._db.write(_raise_generation)
        log.warning("the epoch's generation is %d now, says %s", generation, by or "the operator")
        self.bell.ring(bell.OUTBOX)
        return EpochView(generation=generation)

    async def serve_agent(self, link: Link) -> None:
        if not self._running:
            await link.close(close.SHUTTING_DOWN, "this coordinator is not serving agents")
            return
        await self.sessions.serve(link)

    async def secrets_of(self, job_id: JobId, run_id: RunId) -> dict[str, str]:
        """Those that the job's agent is given. :raises SecretUnavailable: one cannot be opened."""
        job, sealed = await self._db.read(lambda c: _sealed(c, job_id, run_id))
        if job is None:
            return {}
        names = job.spec.needed_secrets()
        missing = [name for name in names if name not in sealed]
        if missing:
            raise SecretUnavailable(f"the secret {missing[0]!r} is not stored any more")
        return {name: self._sealer.open(sealed[name], f"{run_id}/{name}").reveal() for name in names}


def _sealed(connection: Connection, job_id: JobId, run_id: RunId) -> tuple[Job | None, dict[str, bytes]]:
    job = jobs.get(connection, job_id)
    return job, secrets.of_run(connection, run_id) if job is not None and job.spec.needed_secrets() else {}


def _parse_cursor(cursor: str) -> tuple[int, str] | None:
    if not cursor:
        return None
    at, _, last = cursor.partition(".")
    if not at.isdigit() or not last:
        raise Invalid("page", [Fault(path="cursor", message="is not one that this server gave out")])
    return int(at), last


async def _lock_faults(lock: Lock) -> tuple[Fault, ...]:
    """A large lock is checked beside the loop: a hostile one takes seconds."""
    if sum(len(workflow.jobs) for workflow in lock.workflows) <= SMALL_LOCK and len(lock.workflows) <= SMALL_LOCK:
        return check_lock(lock)
    return await asyncio.to_thread(check_lock, lock)


def _release_everything(connection: Connection) -> None:
    """An operator's word, or the end of an all-in-one coordinator: no verdict, no budget."""
    for row in provisions_rows.live(connection):
        if row.state in (ProvisionState.REQUESTED, ProvisionState.ACTIVE):
            agent_rows.cordon(connection, row.agent_id, "shutdown")
            provisions_rows.advance(connection, row, ProvisionEvent.RELEASE, release_reason="shutdown")
