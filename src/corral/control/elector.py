# SPDX-License-Identifier: Apache-2.0
"""Stands for the lease, renews it, and says when this coordinator leads and when it does so no longer.

``on_elected`` and ``on_deposed`` are called in the event loop, in turn, and never wait. A failed renewal does not end
a term and does not lengthen it: its trust runs out by our own clock, before anybody else can hold the lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from corral.decide import leasing
from corral.decide.leasing import RENEW_EVERY, STAND_EVERY, TTL, Lease, Renewal, Watch
from corral.model.errors import CorralError
from corral.model.ids import CoordinatorId
from corral.runtime.clock import Clock
from corral.runtime.service import Service
from corral.store.interface import Database
from corral.store.repo import lease as lease_rows
from corral.store.repo.lease import LEASE

log = logging.getLogger(__name__)


class Elector(Service):
    """One for each coordinator. ``term``: the lease while we trust that we hold it."""

    name = "elector"

    def __init__(
        self,
        clock: Clock,
        database: Database,
        *,
        holder: CoordinatorId,
        on_elected: Callable[[Lease], None],
        on_deposed: Callable[[str], None],
        on_paused: Callable[[], None] = lambda: None,
        generation: Callable[[], int] = lambda: 1,
    ) -> None:
        super().__init__(clock)
        self._database = database
        self._holder = holder
        self._on_elected = on_elected
        self._on_deposed = on_deposed
        self._on_paused = on_paused
        self._generation = generation
        self._term: Lease | None = None
        self._until = 0.0
        self._renewed: Renewal | None = None
        self._seen: Watch | None = None
        self._guard: asyncio.TimerHandle | None = None
        self.draining = False
        self.interval = STAND_EVERY

    @property
    def term(self) -> Lease | None:
        """What a leader's transaction is fenced with. None: we do not lead, or cannot be sure of it."""
        return self._term if self._term is not None and self.clock.monotonic() < self._until else None

    async def run_once(self) -> None:
        if self._term is not None:
            await self._renew(self._term)
        elif not self.draining:
            await self._stand()
        self.interval = RENEW_EVERY if self._term is not None else STAND_EVERY

    async def resign(self) -> None:
        """Lead no longer, and let the next one take over at once. A draining coordinator does not stand again."""
        self.draining = True
        mine = self._term
        self._depose("it resigned")
        if mine is not None:
            try:
                await self._database.write(lambda c: lease_rows.resign(c, LEASE, mine))
            except CorralError as error:
                log.warning("the lease could not be given back and runs out by itself: %s", error)

    async def on_stop(self) -> None:
        self._depose("it stops")

    # --- holding it ---

    async def _renew(self, mine: Lease) -> None:
        asked_at = self.clock.monotonic()
        if asked_at >= self._until:
            self._depose("its lease was not renewed in time")
            return
        moment = await self._database.write(lambda c: lease_rows.renew(c, LEASE, mine))
        if self._term is not mine:
            return
        if moment is None:
            self._depose("another coordinator holds the lease")
            return
        now = Renewal(asked_at=asked_at, database_at=moment)
        if self._renewed is not None and leasing.paused(self._renewed, now):
            self._on_paused()
            self._depose("it was paused, or the database's clock was set")
            return
        self._trust(now)

    def _trust(self, renewal: Renewal) -> None:
        self._renewed = renewal
        self._until = leasing.trusted_until(renewal.asked_at)
        if self._guard is not None:
            self._guard.cancel()
        # The end of trust is noticed when it comes, also while a renewal hangs.
        left = max(0.0, self._until - self.clock.monotonic())
        self._guard = asyncio.get_running_loop().call_later(left, self._expire)

    def _expire(self) -> None:
        if self._term is not None:
            self._depose("its lease was not renewed in time")

    def _depose(self, why: str) -> None:
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None
        self._renewed = None
        self._seen = None
        if self._term is None:
            return
        log.warning("coordinator %s leads no longer: %s", self._holder, why)
        self._term = None
        self._on_deposed(why)

    # --- standing for it ---

    async def _stand(self) -> None:
        asked_at = self.clock.monotonic()
        found, _ = await self._database.read(lambda c: lease_rows.read(c, LEASE))
        self._seen = leasing.watch(self._seen, found, self.clock.monotonic())
        dead = self._seen.lease if self._seen is not None and leasing.dead(self._seen, asked_at) else None
        generation = self._generation()
        mine = await self._database.write(
            lambda c: lease_rows.acquire(c, LEASE, self._holder, ttl=TTL, generation=generation, dead=dead)
        )
        if mine is None or self.draining:
            return
        self._term = mine
        self._trust(Renewal(asked_at=asked_at, database_at=mine.renewed_at))
        if self.term is None:
            # The answer took longer than a term is trusted.
            self._depose("its election came too late")
            return
        log.info("coordinator %s leads, epoch %d.%d", self._holder, *mine.epoch)
        self._on_elected(mine)
