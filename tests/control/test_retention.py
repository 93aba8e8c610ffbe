# SPDX-License-Identifier: Apache-2.0
"""What is removed: ended runs, oldest first, until both bounds hold."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import update

from corral.control.retention import PROVISIONING_KEPT, clean
from corral.model.ids import RunId, SourceHash
from corral.model.spec import SourceRef
from corral.model.views import Clean, Cleaned
from corral.store.repo import runs
from corral.store.tables import runs as runs_table
from tests.control.worlds import World, new_run
from tests.store.databases import a_spec

PLENTY = 10**12


class Logs:
    """Remembers sizes only; the real stores have their own conformance suite."""

    def __init__(self) -> None:
        self.sizes: dict[RunId, int] = {}

    async def usage(self) -> dict[RunId, int]:
        return dict(self.sizes)

    async def delete_run(self, run_id: RunId) -> int:
        return self.sizes.pop(run_id, 0)


class Sources:
    def __init__(self) -> None:
        self.sizes: dict[SourceHash, int] = {}
        self.stored: dict[SourceHash, int] = {}

    async def stored_at(self, hash: SourceHash) -> int | None:
        return self.stored.get(hash, 0)

    async def list(self) -> dict[SourceHash, int]:
        return dict(self.sizes)

    async def delete(self, hash: SourceHash) -> None:
        self.sizes.pop(hash, None)

    def read(self, hash: SourceHash) -> AsyncIterator[bytes]:
        raise AssertionError("nobody reads here")


class Shelf:
    def __init__(self, world: World) -> None:
        self.world = world
        self.logs, self.sources = Logs(), Sources()

    def ended(self, source: str = "", size: int = 100) -> RunId:
        self.world.clock.pass_time(1)
        run_id = self.live(source, size)
        self.world.cancel(run_id)
        return run_id

    def live(self, source: str = "", size: int = 100) -> RunId:
        ref = SourceRef(hash=source, size=1000) if source else None
        run_id = self.world.submit(new_run(a_spec(), source=ref))
        self.logs.sizes[run_id] = size
        if source:
            self.sources.sizes[SourceHash(source)] = 1000
        return run_id

    def clean(self, keep_runs: int = 10**6, keep_bytes: int = PLENTY) -> Cleaned:
        how = Clean(keep_runs=keep_runs, keep_bytes=keep_bytes)
        return self.world.runner.run(
            clean(self.world.database, self.logs, self.sources, how)  # type: ignore[arg-type]
        )

    def left(self) -> set[RunId]:
        return {RunId(run.id) for run in self.world.read(runs.page, "local", None, 100)}


@pytest.fixture
def shelf(world: World) -> Shelf:
    return Shelf(world)


def test_the_oldest_go_until_the_number_holds(shelf: Shelf) -> None:
    made = [shelf.ended() for _ in range(5)]
    assert shelf.clean(keep_runs=2) == Cleaned(runs=3, bytes=300)
    assert shelf.left() == set(made[3:]) == set(shelf.logs.sizes)
    assert shelf.clean(keep_runs=2) == Cleaned(runs=0, bytes=0), "nothing the second time"


def test_the_oldest_go_until_the_bytes_hold(shelf: Shelf) -> None:
    made = [shelf.ended(size=size) for size in (10, 500, 100, 100)]
    assert shelf.clean(keep_bytes=200) == Cleaned(runs=2, bytes=510)
    assert shelf.left() == set(made[2:])
    assert shelf.clean(keep_bytes=199).runs == 1


def test_a_source_counts_once_with_the_newest_run_that_uses_it(shelf: Shelf) -> None:
    made = [shelf.ended("s1"), shelf.ended("s1"), shelf.ended("s1")]
    assert shelf.clean(keep_bytes=1300).runs == 0
    assert shelf.clean(keep_bytes=1299) == Cleaned(runs=1, bytes=100)
    assert shelf.left() == set(made[1:])
    assert set(shelf.sources.sizes) == {"s1"}


def test_a_source_goes_with_its_last_run(shelf: Shelf) -> None:
    shelf.ended("old")
    shelf.ended("new")
    assert shelf.clean(keep_runs=1) == Cleaned(runs=1, bytes=1100)
    assert set(shelf.sources.sizes) == {"new"}


def test_a_source_uploaded_before_its_run_exists_is_kept_for_an_hour(shelf: Shelf) -> None:
    fresh = SourceHash("fresh")
    shelf.sources.sizes[fresh] = 1000
    shelf.sources.stored[fresh] = shelf.world.clock.now()
    shelf.world.clock.pass_time(3599)
    assert shelf.clean(keep_runs=0, keep_bytes=0).bytes == 0
    assert set(shelf.sources.sizes) == {fresh}
    shelf.world.clock.pass_time(1)
    assert shelf.clean(keep_runs=0, keep_bytes=0).bytes == 1000
    assert shelf.sources.sizes == {}


def test_what_goes_on_is_never_touched(shelf: Shelf) -> None:
    live = shelf.live("s1")
    shelf.ended("s1")
    assert shelf.clean(keep_runs=0, keep_bytes=0).runs == 1
    assert shelf.left() == {live} == set(shelf.logs.sizes)
    assert set(shelf.sources.sizes) == {"s1"}


def test_logs_without_a_run_are_what_an_interrupted_removal_left(shelf: Shelf) -> None:
    shelf.logs.sizes[RunId("run_gone")] = 7
    kept = shelf.ended()
    assert shelf.clean() == Cleaned(runs=0, bytes=7)
    assert set(shelf.logs.sizes) == {kept}


def test_many_at_once(shelf: Shelf) -> None:
    for _ in range(205):
        shelf.ended()
    assert shelf.clean(keep_runs=1).runs == 204
    assert len(shelf.left()) == 1


def test_runs_for_provisioners_are_few_and_take_no_place_from_users(shelf: Shelf) -> None:
    users = [shelf.ended() for _ in range(3)]
    own = [shelf.ended() for _ in range(PROVISIONING_KEPT + 3)]
    shelf.world.write(lambda c: c.execute(update(runs_table).where(runs_table.c.id.in_(own)).values(provisioning=True)))
    assert shelf.clean().runs == 3
    assert set(shelf.logs.sizes) == {*users, *own[3:]}
    assert shelf.clean(keep_runs=2).runs == PROVISIONING_KEPT - 2 + 1
    assert set(shelf.logs.sizes) == {*users[1:], *own[-2:]}
    assert shelf.clean(keep_bytes=299).runs == 2, "a tenth of the bytes holds none of them"
    assert shelf.left() == set(users[1:])
