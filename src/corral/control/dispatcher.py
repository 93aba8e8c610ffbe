# SPDX-License-Identifier: Apache-2.0
"""Offers queued jobs to the idle agents connected here, and takes their answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection

from corral.control import bell, offers, settle
from corral.control import measures as m
from corral.control.bell import Bell
from corral.control.session import Secrets, Session
from corral.control.sessions import Sessions, tell_withdrawn
from corral.control.settle import Wake, end_job, ring
from corral.decide import dispatching
from corral.decide.dispatching import IdleAgent, Placement, QueuedJob
from corral.decide.matching import Size, Wanted
from corral.model.errors import Conflict, CorralError
from corral.model.ids import JobId
from corral.model.pools import EVENT, Pool
from corral.model.spec import STEP_LOG_LIMIT, Reason
from corral.model.states import JobEvent
from corral.runtime.clock import SECOND, Clock
from corral.runtime.metrics import Metrics
from corral.runtime.sealing import SecretUnavailable
from corral.runtime.service import Service
from corral.store.interface import Database
from corral.store.repo import agents, jobs
from corral.store.repo.installation import now
from corral.wire.codec import ProtocolError, encode
from corral.wire.messages import Accept, Decline, DeclineReason, Offer, Start, Withdraw

log = logging.getLogger(__name__)


class Dispatcher(Service):
    name = "dispatcher"
    interval = 1.0

    def __init__(
        self,
        clock: Clock,
        database: Database,
        sessions: Sessions,
        bell_: Bell,
        secrets: Secrets,
        *,
        ack_timeout: float = 10.0,
        log_limit: int = STEP_LOG_LIMIT,
        pools: Callable[[], Sequence[Pool]] = tuple,
        metrics: Metrics,
    ) -> None:
        super().__init__(clock)
        self._database = database
        self._sessions = sessions
        self._bell = bell_
        self._secrets = secrets
        self._ack_timeout = ack_timeout
        self._log_limit = log_limit
        self._pools = pools
        self._metrics = metrics
        self.draining = False
        bell_.listen(bell.QUEUE, self.wake)

    async def run_once(self) -> None:
        events = frozenset(pool.name for pool in self._pools() if pool.backend == EVENT)
        idle = [] if self.draining else [_idle_agent(session, events) for session in self._sessions.idle()]
        limits = {pool.name: pool.max_running for pool in self._pools() if pool.max_running is not None}
        seen = await self._database.read(lambda c: _look(c, idle, limits))
        if seen.overdue:
            await self._expire()
        if not idle:
            return
        placements = dispatching.plan(seen.queued, idle, seen.now, seen.room)
        results = await asyncio.gather(*(self._offer(each, seen.now) for each in placements), return_exceptions=True)
        for error in results:
            # One offer that cannot be made says nothing about the others.
            if isinstance(error, BaseException):
                log.error("an offer could not be made: %s", error, exc_info=error)

    async def _expire(self) -> None:
        wake = Wake()
        await self._database.write(lambda c: offers.expire(c, wake))
        tell_withdrawn(self._sessions, wake)
        ring(self._bell, wake)

    async def _offer(self, placement: Placement, now_: int) -> None:
        session = self._sessions.get(placement.agent_id)
        if session is None or not session.idle:
            return
        wake = Wake()
        session.assignment = (placement.job_id, 0)
        try:
            made = await self._database.write(
                lambda c: offers.make(
                    c,
                    placement,
                    session=session.number,
                    boot_id=session.boot_id,
                    ack_timeout=self._ack_timeout,
                    wake=wake,
                )
            )
        except CorralError as error:
            session.vacate(placement.job_id, 0)
            if not isinstance(error, Conflict):
                raise
            return
        ring(self._bell, wake)
        if made is None:
            session.vacate(placement.job_id, 0)
            return
        session.place(placement.job_id, made.order.attempt, made.run_id)
        session.offered_at = self.clock.monotonic()
        if made.queued_at is not None:
            self._metrics.observe(m.JOB_WAIT, max(0, now_ - made.queued_at) / SECOND)
        await self._send(session, made)

    async def _send(self, session: Session, made: offers.Made) -> None:
        order = msgspec.structs.replace(made.order, log_limit=self._log_limit)
        offer = Offer(job_id=order.job_id, attempt=order.attempt, order=order, deadline=self._ack_timeout)
        try:
            encode(offer)
        except ProtocolError as error:
            await self._refuse_order(session, made, error)
            return
        session.send(offer)

    async def _refuse_order(self, session: Session, made: offers.Made, error: ProtocolError) -> None:
        """An order that fits no frame would be refused by every agent."""
        job_id = JobId(made.order.job_id)
        wake = Wake()

        def fail(connection: Connection) -> None:
            job = jobs.get(connection, job_id)
            row = jobs.attempt(connection, job_id, made.order.attempt)
            if row is not None:
                settle.withdraw(connection, row, "the order is too large", wake, counts=False)
                job = jobs.get(connection, job_id)
            if job is not None:
                detail = f"the job with its inputs is too large for an agent: {error.message}"
                end_job(connection, job, JobEvent.FAIL, wake, reason=Reason.INTERNAL, detail=detail)

        await self._database.write(fail)
        session.vacate(job_id, made.order.attempt)
        ring(self._bell, wake)

    # --- answers ---

    async def on_answer(self, session: Session, message: Accept | Decline) -> None:
        """Called by the session in the order of its frames."""
        assert session.agent_id is not None
        if isinstance(message, Accept):
            await self._accepted(session, message)
        else:
            await self._declined(session, message)

    async def _accepted(self, session: Session, message: Accept) -> None:
        agent_id, job_id, attempt = session.agent_id, JobId(message.job_id), message.attempt
        assert agent_id is not None
        wake = Wake()
        try:
            taken = await self._database.write(lambda c: offers.accept(c, agent_id, job_id, attempt, wake))
        except Conflict:
            taken = None
        self._metrics.count(m.OFFERS, answer="late" if taken is None else "accepted")
        if taken is None:
            session.send(Withdraw(job_id=job_id, attempt=attempt))
            session.vacate(job_id, attempt)
            self.wake()
            return
        try:
            secrets = await self._secrets(job_id, taken.run_id) if taken.secrets else {}
        except SecretUnavailable as error:
            await self._without_secrets(session, job_id, attempt, error)
            return
        self._metrics.observe(m.DISPATCH, self.clock.monotonic() - session.offered_at)
        session.send(Start(job_id=job_id, attempt=attempt, secrets=secrets))
        ring(self._bell, wake)

    async def _without_secrets(self, session: Session, job_id: JobId, attempt: int, error: SecretUnavailable) -> None:
        wake = Wake()
        await self._database.write(lambda c: offers.without_secrets(c, job_id, attempt, error.message, wake))
        session.send(Withdraw(job_id=job_id, attempt=attempt))
        session.vacate(job_id, attempt)
        ring(self._bell, wake)
        self._bell.ring(bell.QUEUE, bell.SCALE)

    async def _declined(self, session: Session, message: Decline) -> None:
        agent_id, job_id, attempt = session.agent_id, JobId(message.job_id), message.attempt
        assert agent_id is not None
        self._metrics.count(m.OFFERS, answer="declined")
        leaving = message.reason is DeclineReason.DRAINING
        reason = message.detail or message.reason
        wake = Wake()
        await self._database.write(
            lambda c: offers.decline(c, agent_id, job_id, attempt, reason, wake, leaving=leaving)
        )
        wake.withdrawn.clear()
        session.draining = session.draining or leaving
        session.vacate(job_id, attempt)
        ring(self._bell, wake)
        self._bell.ring(bell.QUEUE, bell.SCALE)


def _idle_agent(session: Session, events: frozenset[str]) -> IdleAgent:
    assert session.agent_id is not None
    return IdleAgent(
        id=session.agent_id,
        offered=session.offered,
        bound=session.bound,
        idle_since=session.idle_since,
        pool=session.pool,
        size=session.size,
        by_event=session.pool in events,
    )


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """``overdue``: offers that were not answered in time. ``room``: jobs that may begin, of pools that limit it."""

    queued: list[QueuedJob]
    room: dict[str, int]
    overdue: int
    now: int


def _look(connection: Connection, idle: Sequence[IdleAgent], limits: Mapping[str, int]) -> _Seen:
    overdue = jobs.overdue_offers(connection)
    queued = _queue(connection, idle) if idle else []
    busy = agents.busy_by_pool(connection) if limits else {}
    room = {pool: max(0, limit - busy.get(pool, 0)) for pool, limit in limits.items()}
    return _Seen(queued=queued, room=room, overdue=overdue, now=now(connection))


def _queue(connection: Connection, idle: Sequence[IdleAgent]) -> list[QueuedJob]:
    bound = [agent.bound for agent in idle if agent.bound is not None]
    heads = jobs.queued_heads(connection, len(idle), bound)
    declined = [head.id for head in heads if head.offers]
    avoid = jobs.last_agents(connection, declined) if declined else {}
    return [
        QueuedJob(
            id=head.id,
            wanted=Wanted(labels=head.labels, excludes=head.excludes),
            avoid=avoid.get(head.id),
            size=Size(cpu=head.cpu, memory=head.memory),
            provisioning=head.provisioning,
        )
        for head in heads
    ]
