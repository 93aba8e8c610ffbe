# SPDX-License-Identifier: Apache-2.0
"""What a provisioner lists against what provisions say: strays, ghosts, and ends that two listings confirm.

Listed first, read afterwards: a provision made meanwhile is known by then. An instance of another installation is
never touched, and one that is missing from a list is never a reason to destroy anything.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec
from sqlalchemy import Connection

from corral.control.answers import gone, store_provider_id
from corral.control.scaler import Term
from corral.decide.listings import read_listing
from corral.model.errors import NotFound
from corral.model.events import Answer, EventKind, ListedInstance, Listing, Verdict
from corral.model.ids import AgentId, ClusterId
from corral.model.labels import NO_LABELS
from corral.model.records import Provision, Sighting
from corral.model.states import DeliveryState, ProvisionEvent, ProvisionState
from corral.runtime.clock import SECOND, Clock
from corral.store.interface import Database
from corral.store.repo import agents, deliveries, sightings, targets
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import fact, set_fact
from corral.store.repo.lease import LEASE, epoch_of, fence
from corral.store.repo.rows import NOW

log = logging.getLogger(__name__)

FLAP_GRACE = 120.0
"""Seconds between two complete listings that count as two."""
NAMES_KEPT = 10_000
NAMED_FOR = 3600.0
"""Seconds for which a stray whose agent knocked is left alone."""
REQUESTS_KEPT = 64
PARTS_MAX = 100_000
"""Instances of one listing in parts."""
STRAY_REASON = "inventory-stray"
STRAY_CAUSE = "stray"
APPROVED = "strays_generation"
_AGENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}\Z")


@dataclass(kw_only=True)
class Request:
    """An inventory that was asked for. ``asked_at``: database time before it was sent."""

    key: str
    asked_at: int
    parts: list[ListedInstance] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Ghost:
    """A provision that a complete listing did not have. ``since``: when the first such listing was asked for."""

    agent_id: AgentId
    pool: str
    since: int
    cost_per_hour: float


class Inventories:
    """Held by one coordinator."""

    def __init__(
        self,
        clock: Clock,
        database: Database,
        cluster_id: ClusterId,
        *,
        flap_grace: float = FLAP_GRACE,
    ) -> None:
        self._clock = clock
        self._database = database
        self._cluster_id = cluster_id
        self._named: OrderedDict[AgentId, float] = OrderedDict()
        self._grace = int(flap_grace * SECOND)
        self._requests: OrderedDict[str, Request] = OrderedDict()
        self._absent: dict[AgentId, int] = {}
        """When the first complete listing in a row without it was asked for."""
        self._ready: frozenset[tuple[str, AgentId]] = frozenset()
        self._since: int | None = None
        self.ghosts: dict[str, tuple[Ghost, ...]] = {}

    def named(self, agent_id: AgentId) -> None:
        """A hello named it, verified or not: somebody lives there."""
        self._named[agent_id] = self._clock.monotonic()
        self._named.move_to_end(agent_id)
        while len(self._named) > NAMES_KEPT:
            self._named.popitem(last=False)

    def asked(self, request: str, key: str, asked_at: int) -> None:
        self._since = asked_at if self._since is None else self._since
        self._requests[request] = Request(key=key, asked_at=asked_at)
        while len(self._requests) > REQUESTS_KEPT:
            self._requests.popitem(last=False)

    async def answered(self, request: str, answer: Answer, term: Term) -> None:
        """The answer to a request may hold the listing itself."""
        if answer.verdict is not Verdict.DONE or not answer.body.strip():
            return
        listing = read_listing(answer.body)
        if listing is None:
            log.warning("inventory %s: the answer is no listing", request)
            return
        await self.listed(msgspec.structs.replace(listing, request=request), term)

    async def listed(self, listing: Listing, term: Term) -> None:
        """:raises NotFound: it answers no request of this coordinator's."""
        request = self._requests.get(listing.request)
        if request is None:
            raise NotFound(f"no inventory request {listing.request!r} waits for a listing; answer the latest one")
        if listing.unsupported or listing.instances is None:
            await self._database.write(lambda c: _unsupported(c, term, request.key))
            return
        if len(request.parts) + len(listing.instances) > PARTS_MAX:
            log.warning("the listing of %s has more than %d instances and is not read", request.key, PARTS_MAX)
            return
        request.parts += listing.instances
        if listing.complete:
            whole, request.parts = tuple(request.parts), []
            await self._database.write(lambda c: self._compare(c, term, request, whole))

    def _compare(self, connection: Connection, term: Term, request: Request, whole: tuple[ListedInstance, ...]) -> None:
        fence(connection, LEASE, term.holder, term.epoch)
        targets.write(connection, request.key, listed_at=NOW, listing_supported=True)
        ours = [one for one in whole if one.cluster_id == self._cluster_id and one.agent_id]
        ids = {AgentId(one.agent_id) for one in ours}
        rows = {row.agent_id: row for row in provisions_rows.some(connection, ids)}
        for one in ours:
            self._instance(connection, request, one, rows.get(AgentId(one.agent_id)))
        kept = {(one.agent_id, one.provider_id) for one in ours}
        for row in sightings.of_target(connection, request.key):
            if (row.agent_id, row.provider_id) not in kept:
                sightings.forget(connection, row)
        self._missing(connection, request, ids)
        self._ready = self._judge(connection)

    def _instance(self, connection: Connection, request: Request, one: ListedInstance, row: Provision | None) -> None:
        agent_id = AgentId(one.agent_id)
        if row is None:
            sightings.seen(
                connection,
                request.key,
                agent_id,
                one.provider_id,
                pool=one.pool,
                hourly=one.hourly or 0.0,
                listed_at=request.asked_at,
            )
            return
        store_provider_id(connection, agent_id, one.provider_id)
        current = provisions_rows.get(connection, agent_id)
        if current is not None and current.state is ProvisionState.GONE and (current.gone_at or 0) < request.asked_at:
            log.warning("provision %s: was gone, and its provisioner lists it", agent_id)
            provisions_rows.advance(connection, current, ProvisionEvent.REAPPEARED, gone_at=None, release_attempts=0)

    def _missing(self, connection: Connection, request: Request, listed: set[AgentId]) -> None:
        ghosts, before = [], {ghost.agent_id: ghost for ghost in self.ghosts.get(request.key, ())}
        for row in provisions_rows.live(connection):
            if row.target_key != request.key:
                continue
            if row.agent_id in listed:
                self._absent.pop(row.agent_id, None)
                continue
            if row.state in (ProvisionState.RELEASING, ProvisionState.ABANDONED):
                self._absence(connection, row, request.asked_at)
            elif row.created_at is not None and row.created_at < request.asked_at:
                since = before[row.agent_id].since if row.agent_id in before else request.asked_at
                cost = row.cost_per_hour
                ghosts.append(Ghost(agent_id=row.agent_id, pool=row.pool, since=since, cost_per_hour=cost))
        self.ghosts[request.key] = tuple(ghosts)

    def _absence(self, connection: Connection, row: Provision, asked_at: int) -> None:
        """Two complete listings, a flap grace apart and both asked for after everything that was sent, say that it does
        not exist: of an abandoned one, and of one whose destruction was accepted."""
        sent = deliveries.of_agent(connection, row.agent_id)
        if any((each.send_deadline or 0) >= asked_at and each.last == Verdict.UNANSWERED for each in sent):
            return
        if any(each.state is DeliveryState.SENDING or (each.sent_at or 0) >= asked_at for each in sent):
            return
        first = self._absent.setdefault(row.agent_id, asked_at)
        accepted = any(each.kind is EventKind.SCALE_DOWN and each.last == Verdict.ACCEPTED for each in sent)
        if asked_at - first < self._grace or not (accepted or row.state is ProvisionState.ABANDONED):
            return
        del self._absent[row.agent_id]
        gone(connection, row.agent_id)
        log.info("provision %s: gone, by two listings", row.agent_id)

    # --- strays ---

    def _judge(self, connection: Connection) -> frozenset[tuple[str, AgentId]]:
        return frozenset(
            (row.target_key, row.agent_id) for row in sightings.every(connection) if self._condemned(connection, row)
        )

    def _condemned(self, connection: Connection, row: Sighting) -> bool:
        """Seen by two listings this coordinator asked for, a grace apart, and by nobody else since the first."""
        first = max(row.first_listed_at, self._since or row.last_listed_at)
        spaced = row.listings >= 2 and row.last_listed_at - first >= self._grace
        if not spaced or not _AGENT_ID.match(row.agent_id) or agents.get(connection, row.agent_id) is not None:
            return False
        named = self._named.get(row.agent_id)
        return named is None or self._clock.monotonic() - named > NAMED_FOR

    def ready_strays(self) -> frozenset[tuple[str, AgentId]]:
        return self._ready

    def condemned(self, done: frozenset[tuple[str, AgentId]]) -> None:
        self._ready -= done

    def condemn(self, connection: Connection, row: Sighting) -> None:
        """A provision and an agent of its own, so that its end goes the way of every other."""
        target = targets.get(connection, row.target_key)
        if target is None or not self._condemned(connection, row):
            return
        agents.add(connection, id=row.agent_id, pool=row.pool, kind="provisioned", labels=NO_LABELS, project="local")
        provisions_rows.add(
            connection,
            agent_id=row.agent_id,
            pool=row.pool,
            backend="event",
            host_id=None,
            labels=NO_LABELS,
            cause=STRAY_CAUSE,
            target=target.target,
            target_key=row.target_key,
            cost_per_hour=row.cost_per_hour,
            provider_id=row.provider_id,
            sent_at=row.first_listed_at,
        )
        made = provisions_rows.get(connection, row.agent_id)
        assert made is not None
        agents.cordon(connection, row.agent_id, STRAY_REASON)
        listed = {"first_listed_at": str(row.first_listed_at), "last_listed_at": str(row.last_listed_at)}
        evidence = {**listed, "listings": str(row.listings)}
        event = ProvisionEvent.RELEASE
        provisions_rows.advance(connection, made, event, evidence=evidence, release_reason=STRAY_REASON)
        sightings.forget(connection, row)
        log.warning("instance %s is nobody's and is destroyed: listed since a grace, wanted by nothing", row.agent_id)


def _unsupported(connection: Connection, term: Term, key: str) -> None:
    fence(connection, LEASE, term.holder, term.epoch)
    targets.write(connection, key, listing_supported=False)


def strays_allowed(connection: Connection) -> bool:
    """False after a restore or on a new database timeline, until an operator approves: what is not known here may be
    what a lost commit knew."""
    epoch = epoch_of(connection, LEASE)
    generation = str(epoch[0]) if epoch is not None else ""
    return fact(connection, APPROVED, generation) == generation


def approve_strays(connection: Connection) -> int:
    """Strays of this generation may be destroyed from now on; the generation."""
    epoch = epoch_of(connection, LEASE)
    generation = epoch[0] if epoch is not None else 0
    set_fact(connection, APPROVED, str(generation))
    return generation


def strays_held(connection: Connection) -> int:
    """How many wait for an approval."""
    return 0 if strays_allowed(connection) else len(sightings.every(connection))
