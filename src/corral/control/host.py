# SPDX-License-Identifier: Apache-2.0
"""Carries out this host's provisions: asks the backend to create what is requested and to destroy what is releasing.

The intent was committed before anything outside is touched; the call repeats the same agent id after a restart, so
it finds what exists. It writes what happened; that a provision is not wanted any more is the leader's to say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from sqlalchemy import Connection

from corral.backends.interface import Backend, Ending, InstanceSpec
from corral.control import bell, settle
from corral.control import measures as m
from corral.control.bell import Bell
from corral.control.scaler import note_failure
from corral.control.sessions import Sessions
from corral.control.settle import SECOND, Wake, ring
from corral.model.errors import CorralError
from corral.model.failures import backend_kind
from corral.model.ids import AgentId, ClusterId
from corral.model.pools import Backoff, Pool
from corral.model.records import Provision
from corral.model.spec import Reason
from corral.model.states import ATTEMPT, ProvisionEvent, ProvisionState
from corral.runtime.clock import Clock
from corral.runtime.logs import about
from corral.runtime.metrics import Metrics
from corral.runtime.sealing import Sealer
from corral.runtime.service import Service
from corral.store.interface import Database
from corral.store.repo import agents, jobs
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import now
from corral.store.repo.rows import NOW

log = logging.getLogger(__name__)

N = TypeVar("N", int, float)

CONCURRENT_CREATES = 8
CONCURRENT_DESTROYS = 16
DESTROY_DEADLINE = 60.0
"""Seconds one destroy call may take."""
LIST_EVERY = 10.0
"""Seconds between looks at the instances there are: one may have ended without the news of it arriving (lost, or while
the database was away), or appeared after it was given up."""
ABSENT_AFTER = 75.0
"""Seconds between the first and the last complete listing that lack an instance which was there once, with no session
of its agent meanwhile, after which it counts as ended. Longer than a living agent's longest pause between two rounds of
dialling (60 s and a connect timeout): whoever merely removed its directory must not get its job started twice."""
LAST_WORDS = 0.8
"""Seconds that an ended agent's session gets to read what was still on the line, so that a job which ended is not
taken for lost; together with the settling it stays within a second."""
RELEASE_BACKOFF_BASE = 1.0
RELEASE_BACKOFF_MAX = 60.0
RELEASE_ATTEMPTS_MAX = 20
WANTED = (ProvisionState.REQUESTED, ProvisionState.ACTIVE)
VANISHED = "its instance does not exist any more"


class Host(Service):
    name = "host"
    interval = 1.0

    def __init__(
        self,
        clock: Clock,
        database: Database,
        sealer: Sealer,
        sessions: Sessions,
        bell_: Bell,
        backends: Mapping[str, Backend],
        pools: Callable[[], tuple[Pool, ...]],
        *,
        host_id: str,
        cluster_id: ClusterId,
        urls: tuple[str, ...],
        metrics: Metrics,
        pace: Callable[[], Backoff] = Backoff,
    ) -> None:
        super().__init__(clock)
        self._database = database
        self._sealer = sealer
        self._sessions = sessions
        self._bell = bell_
        self._backends = backends
        self._pools = pools
        self._host_id = host_id
        self._cluster_id = cluster_id
        self._urls = urls
        self._metrics = metrics
        self._pace = pace
        self._busy: dict[AgentId, asyncio.Task[None]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._listed = -LIST_EVERY
        self._absent: dict[AgentId, float] = {}
        """When a complete listing first lacked an instance that was there once."""
        self._creates = asyncio.Semaphore(CONCURRENT_CREATES)
        self._destroys = asyncio.Semaphore(CONCURRENT_DESTROYS)
        bell_.listen(bell.HOST, self.wake)
        bell_.listen(bell.SCALE, self.wake)

    async def on_start(self) -> None:
        """Look at what exists before anything is asked for: instances that ended while nobody watched."""
        for backend in self._backends.values():
            backend.watch(self._on_ending)
        await self._look_at_instances()

    async def _look_at_instances(self) -> None:
        """The news of an end only comes sooner; what it is about can be seen at any time."""
        for backend in self._backends.values():
            if backend.can_list:
                await self._compare(backend)
        self._listed = self.clock.monotonic()

    async def _compare(self, backend: Backend) -> None:
        """What exists against what the rows say: an instance that ended settles its job, one that was accounted as
        gone before we looked (a slow create that landed late) goes back to being destroyed."""
        before = await self._database.read(now)
        try:
            there = {one.agent_id: one for one in await backend.list()}
        except CorralError as error:
            log.warning("the instances of backend %s cannot be listed: %s", backend.kind, error)
            return
        ended = [one.agent_id for one in there.values() if one.ended]
        news, gone = await self._database.read(
            lambda c: (provisions_rows.not_ended(c, ended), provisions_rows.gone_before(c, list(there), before))
        )
        if gone:
            await self._database.write(lambda c: _reappeared(c, gone))
            self.wake()
        await asyncio.gather(*(self._ended(Ending(agent_id=i, detail=there[i].detail)) for i in news))
        if backend.local:
            await self._settle_absent(backend, frozenset(there))

    async def _settle_absent(self, backend: Backend, there: frozenset[AgentId]) -> None:
        """An instance that was there and is in no list any more, nor heard of, has ended: its host was restarted, or
        its directory removed. Of what never was there (a create under way, or its answer lost) this says nothing."""
        rows = await self._database.read(lambda c: provisions_rows.of_host(c, self._host_id, WANTED))
        moment = self.clock.monotonic()
        for row in rows:
            if row.backend != backend.kind or row.ended_at is not None:
                continue
            if not _existed(row) or row.agent_id in there | self._busy.keys() or self._sessions.get(row.agent_id):
                self._absent.pop(row.agent_id, None)
            elif moment - self._absent.setdefault(row.agent_id, moment) >= ABSENT_AFTER:
                del self._absent[row.agent_id]
                log.warning("provision %s: %s", row.agent_id, VANISHED)
                await self._ended(Ending(agent_id=row.agent_id, detail=VANISHED), blamed=False)

    async def settle_vanished(self) -> None:
        """For instances tied to a process before this one, which took its instances and all traces of them along:
        what was made then and does not exist now has ended. Called before the first pass."""
        rows = await self._database.read(lambda c: provisions_rows.of_host(c, self._host_id, WANTED))
        for kind, backend in self._backends.items():
            there = {one.agent_id for one in await backend.list()}
            for row in rows:
                if row.backend == kind and _existed(row) and row.agent_id not in there:
                    ending = Ending(agent_id=row.agent_id, detail="the process it was tied to was killed")
                    await self._ended(ending, blamed=False)

    async def run_once(self) -> None:
        if self.clock.monotonic() - self._listed >= LIST_EVERY:
            await self._look_at_instances()
        states = (ProvisionState.REQUESTED, ProvisionState.RELEASING)
        rows = await self._database.read(lambda c: (provisions_rows.of_host(c, self._host_id, states), now(c)))
        for row in rows[0]:
            if row.agent_id in self._busy:
                continue
            if row.state is ProvisionState.REQUESTED and row.created_at is None and row.failed_at is None:
                self._begin(row, self._create(row))
            elif row.state is ProvisionState.RELEASING and (row.release_next_at or 0) <= rows[1]:
                self._begin(row, self._destroy(row))

    def _begin(self, row: Provision, work: object) -> None:
        assert asyncio.iscoroutine(work)
        with about(provision=row.agent_id, pool=row.pool):
            task: asyncio.Task[None] = asyncio.create_task(work, name=f"host-{row.agent_id}")
        self._busy[row.agent_id] = task
        task.add_done_callback(lambda done: self._done(row.agent_id, done))

    def _done(self, agent_id: AgentId, task: asyncio.Task[None]) -> None:
        self._busy.pop(agent_id, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            # Tried again at the interval: woken at once, a database that only reads would be asked without a pause.
            level = logging.WARNING if isinstance(error, CorralError) else logging.ERROR
            log.log(level, "provision %s: %s", agent_id, error, exc_info=error)
            return
        self.wake()
        self._bell.ring(bell.SCALE)

    async def on_stop(self) -> None:
        """Calls in flight are given up here; their rows say what to ask again."""
        tasks = [*self._busy.values(), *self._endings]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def settled(self, timeout: float) -> int:
        """Wait for destroys in flight and due; how many provisions of this host are not gone after it."""
        end = self.clock.monotonic() + timeout
        while True:
            await self.run_once()
            left = await self._database.read(lambda c: provisions_rows.count_live(c))
            if not left or self.clock.monotonic() >= end:
                return left
            if self._busy:
                await asyncio.wait(set(self._busy.values()), timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
            else:
                await self.clock.sleep(0.02)

    # --- creating ---

    async def _create(self, row: Provision) -> None:
        async with self._creates:
            pool = next((pool for pool in self._pools() if pool.name == row.pool), None)
            backend = self._backends.get(row.backend)
            if pool is None or backend is None:
                await self._failed(row, f"pool {row.pool} is not configured on this host any more")
                return
            sealed = await self._database.write(lambda c: _begin_create(c, row, pool))
            if sealed is None:
                return
            began = self.clock.monotonic()
            try:
                spec = self._spec(row, pool, sealed)
                created = await backend.create(spec, pool.spawn_timeout)
            except CorralError as error:
                log.warning("provision %s in pool %s: %s", row.agent_id, row.pool, error)
                await self._failed(row, error.message)
                return
            kind = backend_kind(row.backend)
            self._metrics.observe(m.CREATE_SECONDS, self.clock.monotonic() - began, backend=kind)
            self._metrics.count(m.CREATES, pool=row.pool, outcome="succeeded")
            await self._database.write(lambda c: _record_created(c, row.agent_id, created.provider_id))

    def _spec(self, row: Provision, pool: Pool, sealed: bytes) -> InstanceSpec:
        return InstanceSpec(
            cluster_id=self._cluster_id,
            agent_id=row.agent_id,
            pool=row.pool,
            labels=row.labels,
            claim_code=self._sealer.open(sealed, row.agent_id),
            coordinator_urls=self._urls,
            cpu_limit=enforced(row.cpu, pool.cpu, pool.cpu_limit),
            memory_limit=enforced(row.memory, pool.memory, pool.memory_limit),
            user=pool.user,
            inherit_env=pool.inherit_env,
        )

    async def _failed(self, row: Provision, error: str) -> None:
        self._metrics.count(m.CREATES, pool=row.pool, outcome="failed")
        await self._database.write(lambda c: _record_failed(c, row.agent_id, error, self._pace()))
        self._bell.ring(bell.SCALE)

    # --- destroying ---

    async def _destroy(self, row: Provision) -> None:
        async with self._destroys:
            backend = self._backends.get(row.backend)
            if backend is None:
                message = f"backend {row.backend} is not configured on this host any more"
                await self._database.write(lambda c: _record_refusal(c, row.agent_id, message))
                return
            try:
                await backend.destroy(row.agent_id, DESTROY_DEADLINE)
            except CorralError as error:
                log.warning("provision %s cannot be destroyed yet: %s", row.agent_id, error)
                message = error.message
                self._metrics.count(m.DESTROYS, pool=row.pool, outcome="failed")
                await self._database.write(lambda c: _record_refusal(c, row.agent_id, message))
                return
            self._metrics.count(m.DESTROYS, pool=row.pool, outcome="succeeded")
            await self._database.write(lambda c: _record_gone(c, row.agent_id))
            log.info("provision %s: gone", row.agent_id)

    async def forget_claim(self, agent_id: AgentId) -> None:
        """The agent acknowledged its configuration: what carried the claim is wiped where the instance is."""
        row = await self._database.read(lambda c: provisions_rows.get(c, agent_id))
        backend = self._backends.get(row.backend) if row is not None and row.host_id == self._host_id else None
        if backend is None:
            return
        try:
            await backend.forget_claim(agent_id)
        except CorralError as error:
            log.warning("what carried the claim of %s is still there: %s", agent_id, error)

    # --- news from the backend ---

    def _on_ending(self, ending: Ending) -> None:
        task = asyncio.create_task(self._hear(ending), name=f"ended-{ending.agent_id}")
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _hear(self, ending: Ending) -> None:
        try:
            await self._ended(ending)
        except CorralError as error:
            log.warning("instance %s ended and it could not be recorded: %s", ending.agent_id, error)
            self._listed = -LIST_EVERY

    async def _ended(self, ending: Ending, *, blamed: bool = True) -> None:
        """The instance is gone: its job is settled at once, after the last words on its line. ``blamed``: that it
        ended before its agent registered is its pool's failure; not so when somebody took it along."""
        await self._sessions.ended(ending.agent_id, LAST_WORDS)
        wake = Wake()
        await self._database.write(lambda c: _settle_ending(c, ending, wake, self._pace(), blamed=blamed))
        ring(self._bell, wake)
        self._bell.ring(bell.SCALE, bell.QUEUE)


def enforced(asked: N | None, usual: N | None, limit: N | None) -> N | None:
    """What the kernel holds the instance to: the pool's limit for one of the pool's own size, what a job asked for
    where it asked for another; one that is given stands for the other."""
    return limit if asked == usual and limit is not None else asked


def _existed(row: Provision) -> bool:
    """The backend's answer was recorded, or its agent registered."""
    return row.created_at is not None or row.state is ProvisionState.ACTIVE


def _begin_create(connection: Connection, row: Provision, pool: Pool) -> bytes | None:
    """Record the send before it is made. None: the provision is not wanted any more."""
    current = provisions_rows.get(connection, row.agent_id)
    if current is None or current.state is not ProvisionState.REQUESTED or current.failed_at is not None:
        return None
    if current.sent_at is None:
        deadline = now(connection) + int(pool.spawn_timeout * SECOND)
        provisions_rows.write(connection, current, sent_at=NOW, deadline_at=deadline)
    return provisions_rows.sealed_claim(connection, row.agent_id)


def _record_created(connection: Connection, agent_id: AgentId, provider_id: str) -> None:
    """Whatever the row's state is by now: the agent may have registered, or finished, before this answer."""
    row = provisions_rows.get(connection, agent_id)
    if row is not None:
        provisions_rows.write(connection, row, created_at=NOW, provider_id=provider_id)


def _record_failed(connection: Connection, agent_id: AgentId, error: str, pace: Backoff) -> None:
    row = provisions_rows.get(connection, agent_id)
    if row is None or row.state is not ProvisionState.REQUESTED:
        return
    provisions_rows.write(connection, row, failed_at=NOW, error=error)
    note_failure(connection, row, error, pace)


def _record_gone(connection: Connection, agent_id: AgentId) -> None:
    row = provisions_rows.get(connection, agent_id)
    if row is not None and provisions_rows.advance(connection, row, ProvisionEvent.GONE):
        agents.end(connection, agent_id)


def _reappeared(connection: Connection, agent_ids: Iterable[AgentId]) -> None:
    for agent_id in agent_ids:
        row = provisions_rows.get(connection, agent_id)
        if row is not None and row.state is ProvisionState.GONE:
            log.warning("provision %s: was gone, and its instance is there", agent_id)
            provisions_rows.advance(connection, row, ProvisionEvent.REAPPEARED, gone_at=None, release_attempts=0)


def _record_refusal(connection: Connection, agent_id: AgentId, error: str) -> None:
    row = provisions_rows.get(connection, agent_id)
    if row is None or row.state is not ProvisionState.RELEASING:
        return
    tries = row.release_attempts + 1
    if tries >= RELEASE_ATTEMPTS_MAX:
        provisions_rows.advance(connection, row, ProvisionEvent.EXHAUSTED, release_attempts=tries, error=error)
        return
    pause = min(RELEASE_BACKOFF_BASE * 2 ** (tries - 1), RELEASE_BACKOFF_MAX)
    provisions_rows.write(
        connection, row, release_attempts=tries, error=error, release_next_at=now(connection) + int(pause * SECOND)
    )


def _settle_ending(connection: Connection, ending: Ending, wake: Wake, pace: Backoff, *, blamed: bool) -> None:
    provision = provisions_rows.get(connection, ending.agent_id)
    never_registered = blamed and provision is not None and provision.state is ProvisionState.REQUESTED
    if provisions_rows.note_ended(connection, ending.agent_id, ending.detail) and never_registered:
        assert provision is not None
        note_failure(connection, provision, f"the agent ended before it registered: {ending.detail}", pace)
    agent = agents.get(connection, ending.agent_id)
    if agent is None or agent.assignment is None or agent.assigned_attempt is None:
        return
    row = jobs.attempt(connection, agent.assignment, agent.assigned_attempt)
    if row is not None and row.state not in ATTEMPT.terminal:
        settle.lose(
            connection, row, Reason.INSTANCE_LOST, ending.detail or "the instance ended", wake, instance_gone=True
        )
