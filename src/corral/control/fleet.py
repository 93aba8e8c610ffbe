# SPDX-License-Identifier: Apache-2.0
"""The pools and caps in force: replaced as a whole while everything goes on, or not at all.

A pool that is removed drains: nothing new is created in it, its idle agents are released, its jobs end; it is known
until its last instance is gone, also over a restart.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import msgspec

from corral.model.errors import Refused
from corral.model.pools import Caps, Pool
from corral.model.records import Provision
from corral.model.views import ReloadView


@dataclass(frozen=True, kw_only=True)
class Configured:
    """What a reload brings. ``later``: settings that differ from those in force and are read only at a start."""

    pools: tuple[Pool, ...]
    caps: Caps
    later: tuple[str, ...] = ()


Loader = Callable[["Fleet"], Awaitable[Configured]]
"""Reads the configuration again. :raises Invalid: every fault of it. :raises Refused: there is none to read."""


async def nothing_to_load(fleet: Fleet) -> Configured:
    raise Refused("this server runs without a configuration file; start it with --config to have one to reload")


class Fleet:
    """What the loops ask for pools and caps, at every pass anew."""

    def __init__(self, pools: tuple[Pool, ...], caps: Caps, load: Loader = nothing_to_load) -> None:
        self._configured = pools
        self._removed: tuple[Pool, ...] = ()
        self._caps = caps
        self._load = load

    def pools(self) -> tuple[Pool, ...]:
        """Those of the configuration in its order, then removed ones that drain."""
        return self._configured + self._removed

    def caps(self) -> Caps:
        return self._caps

    def remember(self, live: Iterable[Provision]) -> None:
        """At a start: pools that were removed before it, by what is left of them."""
        known = {pool.name for pool in self.pools()}
        for row in live:
            if row.pool and row.pool not in known:
                known.add(row.pool)
                self._removed += (_left_of(row),)

    async def reload(self) -> ReloadView:
        """All of the new configuration, or none of it.

        :raises Invalid: every fault; what was in force stays.
        """
        found = await self._load(self)
        before = {pool.name: pool for pool in self._configured}
        after = {pool.name: pool for pool in found.pools}
        drained = [pool for pool in self.pools() if pool.name not in after]
        self._removed = tuple(msgspec.structs.replace(pool, draining=True) for pool in drained)
        self._configured = found.pools
        capped, self._caps = self._caps != found.caps, found.caps
        return ReloadView(
            added=tuple(sorted(after.keys() - before.keys())),
            changed=tuple(sorted(name for name in after.keys() & before.keys() if after[name] != before[name])),
            removed=tuple(sorted(before.keys() - after.keys())),
            caps_changed=capped,
            at_next_start=found.later,
        )


def _left_of(row: Provision) -> Pool:
    return Pool(
        name=row.pool,
        backend=row.backend,
        labels=row.labels,
        mandatory=row.mandatory,
        max_agents=0,
        draining=True,
        target=row.target,
    )
