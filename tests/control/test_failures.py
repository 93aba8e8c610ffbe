# SPDX-License-Identifier: Apache-2.0
"""The failure tracker: what it groups, what it forgets, and that it survives a restart (reference 7.1)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.control import failures
from corral.control.failures import DETAIL_LIMIT, FailureTracker
from corral.control.scaler import note_failure
from corral.model.failures import BackendKind, Failure, PoolFailures, backend_kind
from corral.model.ids import AgentId
from corral.model.pools import Backoff
from corral.store.repo import failures as failure_rows
from corral.store.repo import provisions as provisions_rows
from tests.control.worlds import World

HOUR = 3600.0


def failure(at: int, detail: str = "x", pool: str = "p", *, bound: bool = True, backend: str = "process") -> Failure:
    return Failure(pool=pool, backend=BackendKind(backend), bound=bound, detail=detail, at=at)


def test_what_happened_at_the_edge_of_the_window_counts() -> None:
    tracker = FailureTracker()
    for at in (899, 900, 901):
        tracker.record(failure(at, str(at)))
    assert tracker.recent_by_pool(100, 1000)["p"].bound == 2
    assert tracker.recent_by_pool(99, 1000)["p"].bound == 1
    assert tracker.recent_by_pool(98, 1000) == {}


def test_of_two_at_one_moment_the_later_recorded_is_the_latest() -> None:
    tracker = FailureTracker()
    tracker.record(failure(5, "first", backend="process"))
    tracker.record(failure(5, "second", backend="event", bound=False))
    found = tracker.recent_by_pool(10, 10)["p"]
    assert found == PoolFailures(backend=BackendKind.EVENT, bound=1, unbound=1, detail="second", at=5)


def test_the_latest_is_the_latest_in_time_not_the_last_recorded() -> None:
    tracker = FailureTracker()
    for at, detail in ((7, "newest"), (3, "older"), (5, "middle")):
        tracker.record(failure(at, detail))
    assert (tracker.recent_by_pool(10, 10)["p"].detail, tracker.recent_by_pool(10, 10)["p"].at) == ("newest", 7)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from("abc"), st.booleans()), max_size=60),
    st.integers(0, 50),
    st.integers(0, 50),
)
def test_every_failure_of_the_window_counts_once_for_its_pool(
    events: list[tuple[int, str, bool]], window: int, now: int
) -> None:
    tracker = FailureTracker()
    for at, pool, bound in events:
        tracker.record(failure(at, f"{at}", pool, bound=bound))
    found = tracker.recent_by_pool(window, now)
    recent = [each for each in events if each[0] >= now - window]
    assert set(found) == {pool for _, pool, _ in recent}
    for pool, one in found.items():
        assert one.bound == sum(1 for _, name, bound in recent if name == pool and bound)
        assert one.unbound == sum(1 for _, name, bound in recent if name == pool and not bound)
        assert one.at == max(at for at, name, _ in recent if name == pool)


def test_the_memory_is_bounded_and_what_had_to_go_is_counted() -> None:
    tracker = FailureTracker(limit=3)
    for at in range(5):
        tracker.record(failure(at, pool=str(at)))
    assert set(tracker.recent_by_pool(100, 100)) == {"2", "3", "4"}
    assert tracker.dropped == 2


def test_a_detail_is_masked_before_it_is_cut_and_cut_between_characters() -> None:
    claim = "claim_" + "0123456789abcdef" * 4
    tracker = FailureTracker(known=["hunter2hunter2"])
    tracker.record(failure(1, "é" * (DETAIL_LIMIT // 2 - 10) + claim + "€€€"))
    detail = tracker.recent_by_pool(10, 1)["p"].detail
    assert len(detail.encode()) <= DETAIL_LIMIT
    assert "0123" not in detail
    tracker.record(failure(2, "x" + "é" * DETAIL_LIMIT + "hunter2hunter2"))
    cut = tracker.recent_by_pool(10, 2)["p"].detail
    assert cut == "x" + "é" * ((DETAIL_LIMIT - 1) // 2)
    tracker.record(failure(3, "said hunter2hunter2"))
    assert tracker.recent_by_pool(10, 3)["p"].detail == "said [redacted]"


def test_a_kind_that_is_not_known_is_said_so() -> None:
    assert (backend_kind("container"), backend_kind("teleport")) == (BackendKind.CONTAINER, BackendKind.UNKNOWN)


# --- rows --------------------------------------------------------------------------------------------------


def fail(world: World, agent: str, error: str = "no room", **more: object) -> None:
    identity = AgentId(agent)
    world.claim(agent, f"code-{agent}", **more)
    provision = world.read(provisions_rows.get, identity)
    assert provision is not None
    world.write(note_failure, provision, error, Backoff())


def follow(world: World, tracker: FailureTracker) -> int:
    return len(world.runner.run(tracker.follow(world.database)))


def test_each_counted_failure_is_recorded_also_one_that_does_not_lengthen_the_pause(world: World) -> None:
    fail(world, "agent_1", "first", pool="a", backend="event", job_id="job_1")
    fail(world, "agent_2", "second", pool="a", backend="firecracker", cause="warm")
    tracker = FailureTracker()
    assert follow(world, tracker) == 2
    found = tracker.recent_by_pool(failures.WINDOW, world.clock.now() // 1000)
    assert found["a"].bound == 1
    assert found["a"].unbound == 1
    assert (found["a"].detail, found["a"].backend) == ("second", BackendKind.FIRECRACKER)


def test_a_failure_that_was_rolled_back_is_not_recorded(world: World) -> None:
    world.claim("agent_1", "code")
    provision = world.read(provisions_rows.get, AgentId("agent_1"))
    assert provision is not None

    def halfway(connection: object) -> None:
        note_failure(connection, provision, "never happened", Backoff())  # type: ignore[arg-type]
        raise ValueError

    with pytest.raises(ValueError):
        world.write(halfway)
    assert follow(world, FailureTracker()) == 0


def test_the_tracker_survives_a_restart_and_follows_what_comes(world: World) -> None:
    fail(world, "agent_1", "before")
    first = FailureTracker()
    assert follow(world, first) == 1
    assert follow(world, first) == 0
    again = FailureTracker()
    assert follow(world, again) == 1
    fail(world, "agent_2", "after")
    assert follow(world, again) == 1
    assert again.recent_by_pool(failures.WINDOW, world.clock.now() // 1000)["p"].detail == "after"


def test_old_rows_go_and_their_numbers_are_not_given_out_again(world: World) -> None:
    fail(world, "agent_1")
    fail(world, "agent_2")
    tracker = FailureTracker()
    follow(world, tracker)
    world.clock.pass_time(25 * HOUR)
    assert world.write(failure_rows.purge, failures.RETENTION, failures.LIMIT) == 1
    fail(world, "agent_3", "new")
    assert follow(world, tracker) == 1


def test_rows_are_bounded_in_number(world: World) -> None:
    for number in range(6):
        fail(world, f"agent_{number}")
    assert world.write(failure_rows.purge, failures.RETENTION, 2) == 4
    assert follow(world, FailureTracker()) == 2


def test_two_who_follow_at_once_record_each_row_once(world: World) -> None:
    fail(world, "agent_1")
    tracker = FailureTracker()

    async def both() -> list[int]:
        found = await asyncio.gather(tracker.follow(world.database), tracker.follow(world.database))
        return [len(each) for each in found]

    assert sum(world.runner.run(both())) == 1
    assert (
        tracker.recent_by_pool(failures.WINDOW, world.clock.now() // 1000)["p"].bound
        + tracker.recent_by_pool(failures.WINDOW, world.clock.now() // 1000)["p"].unbound
        == 1
    )
