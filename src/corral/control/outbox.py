# SPDX-License-Identifier: Apache-2.0
"""Leader service: sends what the outbox holds to the users' provisioners and writes down what came of it.

Every send is recorded, with the moment until which it may still arrive, before it is made; then the answer is. Whoever
dies in between leaves a row that says so, and the next one repeats the same event after that moment. A new term's first
event to each target is its inventory request, and nothing is destroyed there before it was received: so a leader that
was deposed can destroy nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection

from corral.backends.event.interface import Deliverer
from corral.control import answers, bell
from corral.control.bell import Bell
from corral.control.inventory import Inventories, strays_allowed
from corral.control.rendering import epoch_text, inventory_event, scale_event
from corral.control.scaler import Term
from corral.decide import delivering
from corral.decide.delivering import Fence, Situation
from corral.model.errors import CorralError
from corral.model.events import Answer, EventKind, Inventory, Target, Verdict, target_key
from corral.model.ids import AgentId, ClusterId
from corral.model.pools import Backoff, Pool
from corral.model.records import Delivery, Provision, Provisioner
from corral.model.states import DeliveryEvent, DeliveryState, ProvisionState
from corral.runtime.chance import Chance
from corral.runtime.clock import SECOND, Clock
from corral.runtime.sealing import Sealer
from corral.runtime.service import Service
from corral.store.interface import Database
from corral.store.repo import deliveries, sightings, targets
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import now
from corral.store.repo.lease import LEASE, epoch_of, fence
from corral.store.repo.rows import NOW

log = logging.getLogger(__name__)

DUE_LIMIT = 64
"""Events of each kind and target that one pass looks at; a pass follows every answer."""
RECORDED_WITHIN = 2.0
"""Seconds that recording a send may take: after longer the term may be over, and the send is not made."""
SPAWN_TIMEOUT = 300.0
"""Seconds, for a provision whose pool is not configured any more."""
PURGE_EVERY = 300.0
FIRST_PATIENCE = 10.0
"""Seconds that a term's first creations wait behind an inventory request which is not answered, so as not to overtake
it on the way."""


@dataclass(frozen=True, kw_only=True)
class OutboxSettings:
    """``inventory_every``: seconds between two inventory requests to a target that answers them."""

    cluster_id: ClusterId
    urls: tuple[str, ...] = ()
    inventory_every: float = 600.0
    per_target: int = delivering.PER_TARGET


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What one pass looks at."""

    due: tuple[Delivery, ...]
    sending: tuple[Delivery, ...]
    states: Mapping[AgentId, Provision]
    unresolved: Mapping[AgentId, Mapping[str, int]]
    wanted: Mapping[str, Target]
    rows: Mapping[str, Provisioner]
    epoch: tuple[int, int] | None
    now: int


@dataclass(kw_only=True)
class Asking:
    """One target's inventory requests of this term. Seconds of the monotonic clock."""

    first: float | None = None
    attempts: int = 0
    next: float = 0.0
    running: bool = False
    ended: bool = False
    """The first call is over, however it was answered."""
    waived: bool = False


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A send that is recorded."""

    row: Delivery
    provision: Provision
    sealed: bytes | None


@dataclass(kw_only=True)
class OutboxState:
    """Of this term."""

    term: Term
    asking: dict[str, Asking] = field(default_factory=dict)


class Outbox(Service):
    """``on_term_over``: called when the lease row names another term than ours; begins a new one."""

    name = "outbox"
    interval = 1.0

    def __init__(
        self,
        clock: Clock,
        chance: Chance,
        database: Database,
        sealer: Sealer,
        bell_: Bell,
        deliverer: Deliverer,
        pools: Callable[[], tuple[Pool, ...]],
        term: Term,
        settings: OutboxSettings,
        *,
        inventories: Inventories,
        on_term_over: Callable[[], Awaitable[None]],
        pace: Callable[[], Backoff] = Backoff,
    ) -> None:
        super().__init__(clock)
        self._chance = chance
        self._database = database
        self._sealer = sealer
        self._bell = bell_
        self._deliverer = deliverer
        self._pools = pools
        self._settings = settings
        self._state = OutboxState(term=term)
        self._inventories = inventories
        self._on_term_over = on_term_over
        self._pace = pace
        self._busy: dict[str, tuple[Delivery, asyncio.Task[None]]] = {}
        self._asks: set[asyncio.Task[None]] = set()
        self._purged = clock.monotonic()
        self._ask_now = False
        for topic in (bell.OUTBOX, bell.HOST, bell.SCALE):
            bell_.listen(topic, self.wake)

    def begin_term(self, term: Term) -> None:
        """Every target has to be told of it first."""
        self._state = OutboxState(term=term)
        self.wake()

    def ask_now(self) -> None:
        """Every target is asked for an inventory in the next pass."""
        self._ask_now = True
        self.wake()

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Targets that did not answer this term's inventory request in time, and are sent everything all the same."""
        return tuple(key for key, asking in self._state.asking.items() if asking.waived)

    async def run_once(self) -> None:
        look = await self._database.read(self._look)
        if look.epoch != self._state.term.epoch:
            await self._on_term_over()
            return
        await self._enter_targets(look)
        await self._settle_unsent(look)
        self._ask(look)
        self._send(look)
        await self._condemn_strays()
        await self._purge()

    def _look(self, connection: Connection) -> Outlook:
        due = deliveries.due(connection, DUE_LIMIT)
        under_way = deliveries.sending(connection)
        agents = {row.agent_id for row in (*due, *under_way) if row.agent_id is not None}
        configured = {target_key(pool.target): pool.target for pool in self._pools() if pool.target is not None}
        return Outlook(
            due=due,
            sending=under_way,
            states={row.agent_id: row for row in provisions_rows.some(connection, agents)} if agents else {},
            unresolved=deliveries.unresolved(connection, agents) if agents else {},
            wanted={**targets.in_use(connection), **configured},
            rows={row.key: row for row in targets.every(connection)},
            epoch=epoch_of(connection, LEASE),
            now=now(connection),
        )

    async def _enter_targets(self, look: Outlook) -> None:
        news = {
            key: target
            for key, target in look.wanted.items()
            if key not in look.rows or look.rows[key].target != target
        }
        if news:
            await self._database.write(lambda c: targets.known(c, news))

    async def _settle_unsent(self, look: Outlook) -> None:
        """What needs no sending: the agent is here already, it is too late, or a send was interrupted and its deadline
        has passed."""
        lost = [row for row in look.sending if row.id not in self._busy and (row.send_deadline or 0) <= look.now]
        settled = [row for row in look.due if row.id not in self._busy and self._is_settled(row, look)]
        for row in lost:
            await self._record(row, Answer(verdict=Verdict.UNANSWERED, detail="the sending was interrupted"))
        for row in settled:
            await self._database.write(lambda c, row=row: answers.settle_unsent(c, self._state.term, row, self._pace()))  # type: ignore[misc]
        if settled:
            self._bell.ring(bell.SCALE)

    def _is_settled(self, row: Delivery, look: Outlook) -> bool:
        if row.kind is not EventKind.SCALE_UP or row.agent_id is None:
            return False
        provision = look.states.get(row.agent_id)
        wanted = provision is not None and provision.state is ProvisionState.REQUESTED and provision.failed_at is None
        return not wanted or delivering.too_late(row, look.now)

    # --- inventory ---

    def _ask(self, look: Outlook) -> None:
        moment = self.clock.monotonic()
        for key, target in look.wanted.items():
            asking = self._state.asking.setdefault(key, Asking())
            row = look.rows.get(key)
            if asking.running or not self._ask_due(asking, row, look, moment):
                continue
            asking.running = True
            task = asyncio.create_task(self._ask_one(key, target, asking), name=f"inventory-{key}")
            self._asks.add(task)
            task.add_done_callback(self._asks.discard)
        self._ask_now = False

    def _ask_due(self, asking: Asking, row: Provisioner | None, look: Outlook, moment: float) -> bool:
        if self._ask_now or asking.first is None:
            return True
        if moment < asking.next:
            return False
        told = row is not None and row.told_epoch == epoch_text(self._state.term.epoch)
        return not told or (row is not None and row.listing_supported is not False)

    async def _ask_one(self, key: str, target: Target, asking: Asking) -> None:
        state = self._state
        try:
            began = self.clock.monotonic()
            asked_at = await self._database.write(lambda c: _begin_ask(c, state.term, key))
            if self.clock.monotonic() - began > RECORDED_WITHIN or state is not self._state:
                return
            request = f"{epoch_text(state.term.epoch)}.{asked_at}"
            self._inventories.asked(request, key, asked_at)
            data = Inventory(cluster_id=self._settings.cluster_id, epoch=epoch_text(state.term.epoch), request=request)
            event_id = f"inventory.{request}"
            work = self._call(target, inventory_event(data, event_id, asked_at), event_id)
            asking.first = began if asking.first is None else asking.first
            self.wake()
            answer = await work
            asking.ended = True
            await self._heard(key, request, answer, asking, state)
        except CorralError as error:
            log.warning("inventory of %s: %s", key, error)
            asking.next = self.clock.monotonic() + delivering.BACKOFF_BASE
        finally:
            asking.running = False

    async def _heard(self, key: str, request: str, answer: Answer, asking: Asking, state: OutboxState) -> None:
        asking.attempts += 1
        if delivering.received(answer.verdict):
            asking.attempts, asking.waived = 0, False
            asking.next = self.clock.monotonic() + self._settings.inventory_every
        else:
            pause = delivering.pause(asking.attempts, self._chance.uniform(0, 1), answer.retry_after)
            asking.next = self.clock.monotonic() + pause
        await self._database.write(lambda c: answers.inventory_answered(c, state.term, key, answer))
        await self._inventories.answered(request, answer, state.term)
        self._bell.ring(bell.SCALE)
        self.wake()

    def _fences(self, look: Outlook) -> dict[str, Fence]:
        own, moment = epoch_text(self._state.term.epoch), self.clock.monotonic()
        found = {}
        for key, row in look.rows.items():
            asking = self._state.asking.get(key, Asking())
            if row.told_epoch == own:
                found[key] = Fence.TOLD
            elif asking.first is None or not (asking.ended or moment - asking.first >= FIRST_PATIENCE):
                found[key] = Fence.UNASKED
            elif moment - asking.first >= delivering.DELIVERY_DEADLINE:
                if not asking.waived:
                    log.error("INVENTORY_UNANSWERED: %s; it is asked to destroy without having been told of us", key)
                asking.waived = True
                found[key] = Fence.TOLD
            else:
                found[key] = Fence.ASKED
        return found

    # --- sending ---

    def _send(self, look: Outlook) -> None:
        load: dict[tuple[str, EventKind], int] = {}
        for row, _ in self._busy.values():
            load[row.target_key, row.kind] = load.get((row.target_key, row.kind), 0) + 1
        situation = Situation(
            fences=self._fences(look),
            now=look.now,
            unresolved=look.unresolved,
            load=load,
            per_target=self._settings.per_target,
        )
        free = [row for row in look.due if row.id not in self._busy and not self._is_settled(row, look)]
        for row in delivering.pick(free, situation):
            task = asyncio.create_task(self._send_one(row), name=f"deliver-{row.id}")
            self._busy[row.id] = (row, task)
            task.add_done_callback(lambda done, row=row: self._done(row, done))  # type: ignore[misc]

    def _done(self, row: Delivery, task: asyncio.Task[None]) -> None:
        self._busy.pop(row.id, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            level = logging.WARNING if isinstance(error, CorralError) else logging.ERROR
            log.log(level, "event %s: %s", row.id, error, exc_info=error)
            return
        self.wake()
        self._bell.ring(bell.SCALE)

    async def _send_one(self, row: Delivery) -> None:
        term, began = self._state.term, self.clock.monotonic()
        ready = await self._database.write(lambda c: self._begin(c, term, row))
        if ready is None:
            return
        if self.clock.monotonic() - began > RECORDED_WITHIN:
            await self._database.write(lambda c: answers.not_sent(c, term, ready.row))
            return
        claim = self._sealer.open(ready.sealed, ready.provision.agent_id) if ready.sealed is not None else None
        event = scale_event(
            ready.row,
            ready.provision,
            claim,
            cluster_id=self._settings.cluster_id,
            epoch=term.epoch,
            urls=self._settings.urls,
        )
        await self._record(ready.row, await self._call(row.target, event, row.id))

    async def _call(self, target: Target, event: bytes, event_id: str) -> Answer:
        """Bounded also where the adapter is not."""
        timeout = delivering.timeout_of(target)
        try:
            async with asyncio.timeout(timeout + delivering.SEND_MARGIN / 2):
                return await self._deliverer.deliver(target, event, event_id=event_id, timeout=timeout)
        except TimeoutError:
            return Answer(verdict=Verdict.UNANSWERED, detail=f"no answer within {timeout:g} s")

    def _begin(self, connection: Connection, term: Term, seen: Delivery) -> Ready | None:
        """Record the send. None: it is not to be sent (any more, or yet)."""
        fence(connection, LEASE, term.holder, term.epoch)
        row = deliveries.get(connection, seen.id)
        if row is None or row.state is not DeliveryState.PENDING or row.agent_id is None:
            return None
        others = deliveries.unresolved(connection, [row.agent_id]).get(row.agent_id, {})
        provision = provisions_rows.get(connection, row.agent_id)
        if provision is None or any(key != row.id for key in others):
            return None
        sealed = None
        if row.kind is EventKind.SCALE_UP:
            sealed = provisions_rows.sealed_claim(connection, row.agent_id)
            if provision.state is not ProvisionState.REQUESTED or sealed is None:
                return None
            if provision.sent_at is None:
                deadline = now(connection) + int(self._spawn_timeout(provision.pool) * SECOND)
                provisions_rows.write(connection, provision, sent_at=NOW, deadline_at=deadline)
        return Ready(row=_record_send(connection, row), provision=provision, sealed=sealed)

    def _spawn_timeout(self, name: str) -> float:
        pool = next((pool for pool in self._pools() if pool.name == name), None)
        return pool.spawn_timeout if pool is not None else SPAWN_TIMEOUT

    async def _record(self, row: Delivery, answer: Answer) -> None:
        term = self._state.term
        chance = self._chance.uniform(0, 1)
        await self._database.write(lambda c: answers.answered(c, term, row.id, answer, chance, self._pace()))

    # --- what else the leader does about provisioners ---

    async def _condemn_strays(self) -> None:
        ready = self._inventories.ready_strays()
        if not ready:
            return
        term = self._state.term

        def write(connection: Connection) -> None:
            fence(connection, LEASE, term.holder, term.epoch)
            if strays_allowed(connection):
                for row in sightings.every(connection):
                    if (row.target_key, row.agent_id) in ready:
                        self._inventories.condemn(connection, row)

        await self._database.write(write)
        self._inventories.condemned(ready)
        self.wake()

    async def _purge(self) -> None:
        if self.clock.monotonic() - self._purged >= PURGE_EVERY:
            self._purged = self.clock.monotonic()
            await self._database.write(deliveries.purge)

    async def on_stop(self) -> None:
        """Calls in flight are given up; their rows say until when they may still arrive."""
        tasks = [*(task for _, task in self._busy.values()), *self._asks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _begin_ask(connection: Connection, term: Term, key: str) -> int:
    fence(connection, LEASE, term.holder, term.epoch)
    moment = now(connection)
    targets.write(connection, key, asked_at=moment)
    return moment


def _record_send(connection: Connection, row: Delivery) -> Delivery:
    moment = now(connection)
    span = delivering.timeout_of(row.target) + delivering.SEND_MARGIN
    deliveries.advance(
        connection,
        row,
        DeliveryEvent.SEND,
        sent_at=moment,
        send_deadline=moment + int(span * SECOND),
        first_sent_at=row.first_sent_at or moment,
        attempts=row.attempts + 1,
    )
    after = deliveries.get(connection, row.id)
    assert after is not None
    return after
