# SPDX-License-Identifier: Apache-2.0
"""What is there that can still serve a job: idle agents and provisions under way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.decide.dispatching import RELEASE_GRACE
from corral.decide.matching import Offered, Size, Wanted, fits
from corral.decide.scaling.terms import Demand, Supply
from corral.model.ids import JobId
from corral.model.states import ProvisionState


class _Class(NamedTuple):
    """Supply that matches alike."""

    offered: Offered
    event: bool
    size: Size


@dataclass(kw_only=True)
class Usable:
    bound: dict[JobId, Supply] = field(default_factory=dict)
    free: dict[_Class, list[Supply]] = field(default_factory=dict)
    reserved: list[Supply] = field(default_factory=list)
    """Bound, its job neither queued nor long enough away: it serves nobody yet."""
    _by_label: dict[str, list[_Class]] = field(default_factory=lambda: defaultdict(list))
    _ways: dict[tuple[Wanted, bool, float | None, int | None], list[_Class]] = field(default_factory=dict)

    @classmethod
    def of(cls, supply: Iterable[Supply], queued: set[JobId], now: int) -> Usable:
        usable = cls()
        for item in supply:
            if not can_serve(item, now):
                continue
            if item.bound is not None and item.bound in queued:
                usable.bound.setdefault(item.bound, item)
            elif _free(item, now):
                size = Size(cpu=item.cpu, memory=item.memory)
                usable.free.setdefault(_Class(item.offered, item.event, size), []).append(item)
            else:
                usable.reserved.append(item)
        for key, items in usable.free.items():
            # The last is taken first: one that is there before one that is on its way.
            items.sort(key=lambda item: item.state is ProvisionState.ACTIVE)
            for label in key.offered.labels:
                usable._by_label[label].append(key)
        return usable

    def __bool__(self) -> bool:
        return bool(self.bound or self.free)

    def take(self, demand: Demand, wanted: Wanted) -> Supply | None:
        """Its own instance first, then one of the smallest class that fits: an order that does not depend on what
        else is there, so that releasing what is left over changes no choice."""
        own = self.bound.pop(demand.job_id, None)
        if own is not None and not (demand.provisioning and own.event):
            return own
        key = (wanted, demand.provisioning, demand.cpu, demand.memory)
        way = self._ways.get(key)
        if way is None:
            way = self._ways[key] = self._way(demand)
        while way:
            items = self.free[way[-1]]
            if items:
                return items.pop()
            way.pop()
        return None

    def _way(self, demand: Demand) -> list[_Class]:
        """The classes that fit, the smallest last. Looked for among those that have the job's rarest label: each host
        has a label of its own, so there may be as many classes as agents."""
        wanted = demand.wanted
        near = list(self.free)
        if wanted.labels:
            near = min((self._by_label.get(label, []) for label in wanted.labels), key=lambda some: len(some))
        asked = Size(cpu=demand.cpu, memory=demand.memory)
        fitting = [
            key
            for key in near
            if key.size.holds(asked) and fits(wanted, key.offered) and not (demand.provisioning and key.event)
        ]
        return sorted(fitting, key=_rank, reverse=True)

    def left(self) -> list[Supply]:
        return [item for items in self.free.values() for item in items]


def _rank(key: _Class) -> tuple[object, ...]:
    """The smallest first, and the same order whatever else is there."""
    offered, size = key.offered, key.size
    large = (size.cpu is None, size.cpu or 0.0, size.memory is None, size.memory or 0)
    labels = (len(offered.labels), sorted(offered.labels), sorted(offered.mandatory))
    return (*labels, offered.default, key.event, large)


def can_serve(item: Supply, now: int) -> bool:
    """Nothing stands in its way: it is idle, or on its way and not late."""
    if item.cordon is not None or item.held or item.failed or item.ended or item.lost or item.assigned:
        return False
    if item.state is ProvisionState.REQUESTED:
        return item.deadline_at is None or now < item.deadline_at
    return item.state is ProvisionState.ACTIVE and item.online


def _free(item: Supply, now: int) -> bool:
    """A bound agent whose job went elsewhere serves others after the grace."""
    if item.bound is None:
        return True
    return item.idle_since is not None and now - item.idle_since >= RELEASE_GRACE
