# SPDX-License-Identifier: Apache-2.0
"""The lease on a real server: two transactions against each other, statement by statement, in every order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from corral.decide.leasing import TTL
from corral.model.errors import Conflict
from corral.store.repo import lease as lease_rows
from tests.postgres import driver_url, server
from tests.store.databases import Hand
from tests.waiting import eventually

T = TypeVar("T")
WITHIN = 20


class Party:
    """One transaction in a thread of its own, driven statement by statement; a statement may have to wait."""

    def __init__(self, engine: Engine) -> None:
        self._connection = engine.connect()
        self._thread = ThreadPoolExecutor(1)
        self.pid: int = self.now(lambda c: c.execute(text("SELECT pg_backend_pid()")).scalar_one())

    def begin(self, fn: Callable[[Connection], T]) -> Future[T]:
        return self._thread.submit(fn, self._connection)

    def now(self, fn: Callable[[Connection], T]) -> T:
        return self.begin(fn).result(WITHIN)

    def commit(self) -> None:
        self.now(lambda c: c.commit())

    def close(self) -> None:
        self.now(lambda c: c.rollback())
        self._thread.shutdown()
        self._connection.close()


@pytest.fixture
def parties() -> Iterator[tuple[Party, Party]]:
    engine = create_engine(driver_url(server().database()), poolclass=NullPool, isolation_level="READ COMMITTED")
    pair = Party(engine), Party(engine)
    pair[0].now(lambda c: lease_rows.acquire(c, "leader", "one", ttl=TTL))
    pair[0].commit()
    yield pair
    for party in pair:
        party.close()
    engine.dispose()


def run_out(connection: Connection) -> None:
    """As if the holder had been away for a minute."""
    connection.execute(text("UPDATE lease SET renewed_at = renewed_at - 60000000"))


def waits(party: Party, by: Party) -> bool:
    """The party's statement is held up by a lock, as the server sees it."""
    question = text("SELECT cardinality(pg_blocking_pids(:pid)) > 0")
    return bool(by.now(lambda c: c.execute(question, {"pid": party.pid}).scalar_one()))


def fence(connection: Connection) -> None:
    lease_rows.fence(connection, "leader", "one", (1, 1))


def take(connection: Connection) -> Any:
    return lease_rows.acquire(connection, "leader", "two", ttl=TTL)


def mine(connection: Connection) -> Any:
    return lease_rows.read(connection, "leader")[0]


def test_a_change_of_holder_waits_for_the_fenced_transaction(parties: tuple[Party, Party]) -> None:
    one, two = parties
    one.now(run_out)
    one.commit()
    one.now(fence)
    taking = two.begin(take)
    eventually(lambda: waits(two, by=one))
    one.commit()
    assert taking.result(WITHIN).epoch == (1, 2)
    two.commit()
    with pytest.raises(Conflict):
        one.now(fence)


def test_a_fenced_transaction_after_the_change_finds_its_term_over(parties: tuple[Party, Party]) -> None:
    one, two = parties
    one.now(run_out)
    one.commit()
    two.now(take)
    fencing = one.begin(fence)
    eventually(lambda: waits(one, by=two))
    two.commit()
    with pytest.raises(Conflict, match="term of this leader is over"):
        fencing.result(WITHIN)


def test_a_renewal_passes_a_fenced_transaction(parties: tuple[Party, Party]) -> None:
    one, two = parties
    held = one.now(mine)
    one.now(fence)
    assert two.now(lambda c: lease_rows.renew(c, "leader", held)) is not None
    two.commit()
    one.commit()


def test_a_renewal_that_is_first_keeps_the_lease(parties: tuple[Party, Party]) -> None:
    one, two = parties
    one.now(run_out)
    one.commit()
    held = one.now(mine)
    assert one.now(lambda c: lease_rows.renew(c, "leader", held)) is not None
    taking = two.begin(take)
    eventually(lambda: waits(two, by=one))
    one.commit()
    assert taking.result(WITHIN) is None


def test_a_takeover_that_is_first_ends_the_term(parties: tuple[Party, Party]) -> None:
    one, two = parties
    one.now(run_out)
    one.commit()
    held = one.now(mine)
    assert two.now(take).epoch == (1, 2)
    renewing = one.begin(lambda c: lease_rows.renew(c, "leader", held))
    eventually(lambda: waits(one, by=two))
    two.commit()
    assert renewing.result(WITHIN) is None


def test_two_that_take_it_at_once_are_one_holder(parties: tuple[Party, Party]) -> None:
    one, two = parties
    one.now(run_out)
    one.commit()
    assert one.now(lambda c: lease_rows.acquire(c, "leader", "three", ttl=TTL)).holder == "three"
    taking = two.begin(take)
    eventually(lambda: waits(two, by=one))
    one.commit()
    assert taking.result(WITHIN) is None


def test_the_first_of_all_terms_has_one_holder() -> None:
    engine = create_engine(driver_url(server().database()), poolclass=NullPool, isolation_level="READ COMMITTED")
    ready = threading.Barrier(8, timeout=WITHIN)

    def stand(number: int) -> str | None:
        with engine.connect() as connection, connection.begin():
            connection.execute(text("SELECT 1"))
            ready.wait()
            try:
                found = lease_rows.acquire(connection, "leader", f"c{number}", ttl=TTL)
            except DBAPIError:
                return None
        return found.holder if found is not None else None

    with ThreadPoolExecutor(8) as threads:
        holders = [holder for holder in threads.map(stand, range(8)) if holder is not None]
    assert len(holders) == 1
    engine.dispose()


# --- on every database ---------------------------------------------------------------------------------------


def test_terms_follow_each_other_and_numbers_never_come_back(db: Hand) -> None:
    first = db.write(lease_rows.acquire, "leader", "one", ttl=TTL)
    assert first is not None and first.epoch == (1, 1)
    assert db.write(lease_rows.acquire, "leader", "two", ttl=TTL) is None
    db.clock.pass_time(TTL - 1)
    assert db.write(lease_rows.renew, "leader", first) == db.clock.now()
    db.clock.pass_time(TTL + 1)
    second = db.write(lease_rows.acquire, "leader", "two", ttl=TTL)
    assert second is not None and second.epoch == (1, 2)
    assert db.write(lease_rows.renew, "leader", first) is None
    with pytest.raises(Conflict):
        db.write(lease_rows.fence, "leader", "one", first.epoch)
    db.write(lease_rows.fence, "leader", "two", second.epoch)
    db.write(lease_rows.resign, "leader", first)
    assert db.write(lease_rows.acquire, "leader", "one", ttl=TTL) is None, "only the holder resigns"
    db.write(lease_rows.resign, "leader", second)
    third = db.write(lease_rows.acquire, "leader", "one", ttl=TTL, generation=1_700_000_000)
    assert third is not None and third.epoch == (1_700_000_000, 3)
    fourth = db.write(lease_rows.acquire, "leader", "one", ttl=TTL, generation=1)
    assert fourth is not None and fourth.epoch == (1_700_000_000, 4), "a generation is never lowered"


def test_a_row_seen_dead_is_taken_although_its_time_lies_ahead(db: Hand) -> None:
    held = db.write(lease_rows.acquire, "leader", "one", ttl=TTL)
    assert db.write(lease_rows.acquire, "leader", "two", ttl=TTL, dead=held) is not None
    assert db.write(lease_rows.acquire, "leader", "one", ttl=TTL, dead=held) is None, "it is not that row any more"
