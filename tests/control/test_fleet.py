# SPDX-License-Identifier: Apache-2.0
"""What a reload does to the pools in force."""

from __future__ import annotations

import asyncio

import pytest

from corral.control.fleet import Configured, Fleet
from corral.model.errors import Invalid, Refused
from corral.model.pools import Caps, Pool


def pool(name: str, **more: object) -> Pool:
    return Pool(name=name, backend="process", labels=frozenset({name}), **{"max_agents": 1, **more})  # type: ignore[arg-type]


class File:
    """What stands in it now."""

    def __init__(self, *pools: Pool, caps: Caps | None = None) -> None:
        self.found: Configured | Exception = Configured(pools=pools, caps=caps or Caps())

    async def load(self, fleet: Fleet) -> Configured:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def names(fleet: Fleet) -> list[tuple[str, bool]]:
    return [(each.name, each.draining) for each in fleet.pools()]


def test_pools_come_change_and_go() -> None:
    file = File(pool("b", max_agents=9), pool("c"), caps=Caps(max_agents=7))
    fleet = Fleet((pool("a"), pool("b")), Caps(), file.load)
    view = asyncio.run(fleet.reload())
    assert (view.added, view.changed, view.removed, view.caps_changed) == (("c",), ("b",), ("a",), True)
    assert names(fleet) == [("b", False), ("c", False), ("a", True)]
    assert fleet.caps() == Caps(max_agents=7)
    # Nothing new: nothing changes, and what drains goes on draining.
    view = asyncio.run(fleet.reload())
    assert (view.added, view.changed, view.removed, view.caps_changed) == ((), (), (), False)
    assert names(fleet) == [("b", False), ("c", False), ("a", True)]
    # It may come back before it is empty.
    file.found = Configured(pools=(pool("a"), pool("b")), caps=Caps())
    asyncio.run(fleet.reload())
    assert names(fleet) == [("a", False), ("b", False), ("c", True)]


def test_a_fault_changes_nothing() -> None:
    file = File()
    file.found = Invalid("corral.yaml", [])
    fleet = Fleet((pool("a"),), Caps(), file.load)
    with pytest.raises(Invalid):
        asyncio.run(fleet.reload())
    assert names(fleet) == [("a", False)]


def test_without_a_file_there_is_nothing_to_reload() -> None:
    with pytest.raises(Refused, match="--config"):
        asyncio.run(Fleet((pool("a"),), Caps()).reload())
