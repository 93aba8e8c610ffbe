# SPDX-License-Identifier: Apache-2.0
"""The published rule: fences, sequences, one instance per agent, over crashes, threads and processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.provisioner import Event, Later, Outcome, Provisioner, Refused, Result
from corral.provisioner.book import Book, Damaged, _lock, name_of
from tests.provisioner.cloud import Cloud
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]


def message(
    kind: str, agent: str = "a", *, cluster: str = "c", epoch: str = "1.1", sequence: int = 1, **data: object
) -> bytes:
    usual = {"cluster_id": cluster, "epoch": epoch, "agent_id": agent, "sequence": sequence, "claim_code": "claim_x"}
    return json.dumps({"id": "e", "type": f"corral.scaler.{kind}.v1", "data": usual | data}).encode()


class World:
    """A cloud and a provisioner on the kit."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.cloud = Cloud(place)
        self.provisioner = self.restarted()

    def restarted(self) -> Provisioner:
        return Provisioner(
            self.place / "state", create=self.cloud.create, destroy=self.cloud.destroy, list=self.cloud.list
        )

    def say(self, kind: str, agent: str = "a", **data: object) -> Outcome:
        return self.provisioner.handle(message(kind, agent, **data)).outcome  # type: ignore[arg-type]

    def agents(self) -> list[str]:
        return sorted(json.loads(path.read_text())["agent"] for path in self.cloud.instances.iterdir())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_D_one_instance_however_often_it_is_asked_for(world: World) -> None:
    first = world.provisioner.handle(message("scale-up"))
    again = world.restarted().handle(message("scale-up"))
    assert (first.outcome, again.outcome) == (Outcome.DONE, Outcome.ALREADY)
    assert again.provider_id == first.provider_id != ""
    assert world.agents() == ["a"]


def test_what_was_destroyed_is_never_made_again(world: World) -> None:
    world.say("scale-up")
    assert world.say("scale-down", sequence=2) is Outcome.DONE
    assert world.say("scale-up") is Outcome.GONE
    assert world.say("scale-up", sequence=9) is Outcome.GONE
    assert world.agents() == []


def test_a_delete_that_overtakes_its_create_is_remembered(world: World) -> None:
    assert world.say("scale-down", sequence=2) is Outcome.DONE
    world.provisioner = world.restarted()
    assert world.say("scale-up", sequence=1) is Outcome.GONE
    assert world.agents() == []


def test_destroying_twice_is_done_twice(world: World) -> None:
    world.say("scale-up")
    assert [world.say("scale-down", sequence=2) for _ in range(2)] == [Outcome.DONE] * 2


def test_an_epoch_below_the_highest_is_stale_for_good(world: World) -> None:
    """Per cluster, by number and not by text, over restarts, whatever kind of event raised it."""
    world.say("scale-up", epoch="1.9")
    assert world.say("inventory", epoch="1.10") is Outcome.DONE
    world.provisioner = world.restarted()
    assert world.say("scale-down", epoch="1.9", sequence=2) is Outcome.STALE
    assert world.say("scale-up", "b", epoch="0.99") is Outcome.STALE
    assert world.agents() == ["a"]
    assert world.say("scale-up", "b", cluster="other", epoch="0.1") is Outcome.DONE
    assert world.say("scale-down", epoch="2.0", sequence=2) is Outcome.DONE
    assert world.say("scale-up", "c", epoch="1.99") is Outcome.STALE


def test_a_lower_sequence_is_ignored(world: World) -> None:
    world.say("scale-up", sequence=5)
    assert world.say("scale-down", sequence=4) is Outcome.IGNORED
    assert world.agents() == ["a"]
    assert world.say("scale-down", sequence=6) is Outcome.DONE


def test_the_agents_of_another_cluster_are_not_touched(world: World) -> None:
    world.say("scale-up")
    world.say("scale-down", cluster="other", sequence=2)
    assert world.agents() == ["a"]
    assert world.provisioner.handle(message("inventory", cluster="other")).json()["instances"] == []


def test_an_inventory_lists_what_is_there(world: World) -> None:
    made = world.provisioner.handle(message("scale-up"))
    listed = world.provisioner.handle(message("inventory", request="r-1")).json()
    instance = {"agent_id": "a", "cluster_id": "c", "provider_id": made.provider_id}
    assert listed == {"instances": [instance], "request": "r-1", "complete": True}


def test_without_a_list_it_says_so(tmp_path: Path) -> None:
    provisioner = Provisioner(tmp_path, create=lambda event: "i", destroy=lambda event: None)
    assert provisioner.handle(message("inventory")).json()["unsupported"] is True


def test_without_a_list_it_may_list_what_it_remembers(tmp_path: Path) -> None:
    provisioner = Provisioner(tmp_path, create=lambda event: "i", destroy=lambda event: None, remembered=True)
    provisioner.handle(message("scale-up"))
    provisioner.handle(message("scale-up", "b"))
    provisioner.handle(message("scale-down", "b", sequence=2))
    assert [each["agent_id"] for each in provisioner.handle(message("inventory")).json()["instances"]] == ["a"]  # type: ignore[union-attr, index]


def test_L15_an_id_in_a_failure_is_kept_and_given_to_destroy(tmp_path: Path) -> None:
    """L15."""
    destroyed: list[str] = []

    def create(event: Event) -> str:
        raise Refused("quota", provider_id="i-half")

    provisioner = Provisioner(tmp_path, create=create, destroy=lambda event: destroyed.append(event.provider_id))
    failed = provisioner.handle(message("scale-up"))
    assert (failed.outcome, failed.json()["provider_id"]) == (Outcome.REFUSED, "i-half")
    provisioner.handle(message("scale-down", sequence=2))
    assert destroyed == ["i-half"]


def test_how_a_failure_is_answered(tmp_path: Path) -> None:
    def failing(error: Exception) -> Result:
        def create(event: Event) -> str:
            raise error

        return Provisioner(tmp_path, create=create, destroy=lambda event: None).handle(message("scale-up"))

    assert [failing(error).outcome for error in (Refused("no"), Later("busy"), ValueError("bug"))] == [
        Outcome.REFUSED,
        Outcome.LATER,
        Outcome.FAILED,
    ]


def test_a_failed_destroy_is_asked_again_and_makes_nothing(world: World) -> None:
    world.say("scale-up")
    good, world.cloud.destroy = world.cloud.destroy, _refuse  # type: ignore[method-assign]
    world.provisioner = world.restarted()
    assert world.say("scale-down", sequence=2) is Outcome.LATER
    assert world.say("scale-up") is Outcome.GONE
    world.cloud.destroy = good  # type: ignore[method-assign]
    world.provisioner = world.restarted()
    assert world.say("scale-down", sequence=2) is Outcome.DONE
    assert world.agents() == []


def _refuse(event: Event) -> None:
    raise Later("not now")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b"\xff",
        b"x" * 300_000,
        message("scale-sideways"),
        message("scale-up", epoch="1"),
        message("scale-up", epoch="1.-1"),
        message("scale-up", sequence="1"),  # type: ignore[arg-type]
        message("scale-up", ""),
        message("scale-up", "a\nb"),
        message("scale-up", "a" * 300),
        message("scale-up", cluster=""),
    ],
)
def test_what_is_no_event_does_nothing(world: World, raw: bytes) -> None:
    assert world.provisioner.handle(raw).outcome is Outcome.MALFORMED
    assert not list((world.place / "state" / "epochs").iterdir())
    assert world.agents() == []


def test_ids_are_never_paths(world: World) -> None:
    for agent in ("../../x", "a/b", "..", "a\0b" if False else "ä", "A" * 200):
        assert world.say("scale-up", agent) is Outcome.DONE
        assert world.say("scale-up", agent) is Outcome.ALREADY
    assert {path.parent for path in world.place.rglob("*.json")} == {
        world.place / "state" / "agents",
        world.place / "state" / "epochs",
    }


def test_the_claim_code_is_kept_nowhere(world: World) -> None:
    world.say("scale-up", claim_code="claim_5eed5eed5eed")
    assert "5eed5eed" not in "".join(path.read_text() for path in world.place.rglob("*") if path.is_file())
    assert "5eed5eed" not in repr(Event("e", "t", "c", (1, 1), claim_code="claim_5eed5eed5eed"))


def test_a_damaged_file_stops_instead_of_forgetting(world: World) -> None:
    world.say("scale-up")
    (record,) = (world.place / "state" / "agents").iterdir()
    record.write_text('{"agent')
    with pytest.raises(Damaged):
        Book(world.place / "state").read("c", "a")
    assert world.say("scale-up") is Outcome.LATER
    (epoch,) = (world.place / "state" / "epochs").iterdir()
    epoch.write_text("")
    assert world.say("scale-up", "b") is Outcome.LATER
    assert world.agents() == ["a"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["scale-up", "scale-down", "inventory", "restart"]),
            st.sampled_from("ab"),
            st.sampled_from("cd"),
            st.integers(0, 3),
            st.integers(0, 3),
        ),
        max_size=20,
    )
)
def test_any_order_of_events(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str, int, int]]
) -> None:
    """Never two instances of one agent, nothing done under an old epoch, nothing made after a destroy."""
    world = World(tmp_path_factory.mktemp("order"))
    highest: dict[str, int] = {}
    ended: set[tuple[str, str]] = set()
    for kind, agent, cluster, epoch, sequence in steps:
        if kind == "restart":
            world.provisioner = world.restarted()
            continue
        before = sorted(path.name for path in world.cloud.instances.iterdir())
        outcome = world.say(kind, agent, cluster=cluster, epoch=f"0.{epoch}", sequence=sequence)
        assert (outcome is Outcome.STALE) == (epoch < highest.get(cluster, 0))
        if outcome is Outcome.STALE:
            assert sorted(path.name for path in world.cloud.instances.iterdir()) == before
        highest[cluster] = max(highest.get(cluster, 0), epoch)
        if kind == "scale-down" and outcome is Outcome.DONE:
            ended.add((cluster, agent))
        there = [json.loads(path.read_text()) for path in world.cloud.instances.iterdir()]
        pairs = [(each["cluster"], each["agent"]) for each in there]
        assert len(pairs) == len(set(pairs))
        assert not ended & set(pairs)


# --- crashes and company -------------------------------------------------------------------------------------------


def program(place: Path, event: bytes, crash: str = "") -> subprocess.CompletedProcess[bytes]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "tests.provisioner.cloud", str(place), *filter(None, [crash])]
    return subprocess.run(command, input=event, capture_output=True, env={**os.environ, "PYTHONPATH": paths}, cwd=ROOT)


@pytest.mark.parametrize("crash", ["before-create", "after-create", "before-destroy", "after-destroy"])
def test_L3_killed_at_any_point_it_goes_on(tmp_path: Path, crash: str) -> None:
    """L3: the same event again makes no second instance, and what was to be destroyed is."""
    world = World(tmp_path)
    up, down = message("scale-up"), message("scale-down", sequence=2)
    if "destroy" in crash:
        assert program(tmp_path, up).returncode == 0
    assert program(tmp_path, down if "destroy" in crash else up, crash).returncode == -9
    if "destroy" in crash:
        assert program(tmp_path, up).returncode == 1
        assert program(tmp_path, down).returncode == 0
        assert world.agents() == []
    else:
        assert program(tmp_path, up).returncode == 0
        assert world.agents() == ["a"]


def test_the_program_answers_by_exit_code_and_json(tmp_path: Path) -> None:
    done = program(tmp_path, message("scale-up", epoch="1.2"))
    assert (done.returncode, json.loads(done.stdout)["outcome"], done.stderr) == (0, "done", b"")
    stale = program(tmp_path, message("scale-down", sequence=2))
    assert (stale.returncode, stale.stderr.startswith(b"stale: ")) == (77, True)
    assert program(tmp_path, b"nonsense").returncode == 1


def test_what_is_gone_for_long_is_forgotten_and_nothing_else(world: World) -> None:
    """Records of a month ago, their locks, and what a crash left half written; but no lock that is held."""
    state = world.place / "state"
    for agent in ("a", "b", "c"):
        world.say("scale-up", agent)
    world.say("scale-down", "a", sequence=2)
    (state / "agents" / ".half.1").write_text("{")
    month_ago = time.time() - 31 * 86400
    for path in (*(state / "agents").iterdir(), *(state / "locks").iterdir()):
        os.utime(path, (month_ago, month_ago))
    world.say("scale-down", "c", sequence=2)
    book = Book(state)
    with book.agent("c", "b"):
        os.utime(book.directory / "locks" / lock_of("b"), (month_ago, month_ago))
        assert world.say("inventory") is Outcome.DONE
    assert {path.name for path in (state / "agents").iterdir()} == {"c.b.json", "c.c.json"}
    assert {path.name for path in (state / "locks").iterdir()} == {"epochs", lock_of("b"), lock_of("c")}
    assert world.say("scale-up", "b") is Outcome.ALREADY


def lock_of(agent: str) -> str:
    return "agent-" + name_of(f"c\0{agent}")[:16]


def test_a_lock_that_is_purged_under_its_waiters_is_no_lock_any_more(world: World) -> None:
    book = Book(world.place / "state")
    path = book.directory / "locks" / lock_of("a")
    entered: list[str] = []

    def wait() -> None:
        with book.agent("c", "a"):
            entered.append("waiter")

    old = _lock(path)
    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: opened(os.fstat(old).st_ino) == 2, "the waiter has opened the file")
    path.unlink()
    with book.agent("c", "a"):
        os.close(old)
        eventually(lambda: entered or opened(path.stat().st_ino) == 2, "the waiter has gone on to the new file")
        assert entered == []
    thread.join()
    assert entered == ["waiter"]


def opened(inode: int) -> int:
    """How many descriptors of this process are open on the file."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.fstat(int(entry.name)).st_ino == inode
    return found


def test_many_threads_make_one_instance(world: World) -> None:
    outcomes: list[Outcome] = []
    threads = [threading.Thread(target=lambda: outcomes.append(world.say("scale-up"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome.name for outcome in outcomes) == ["ALREADY"] * 7 + ["DONE"]
    assert world.agents() == ["a"]


def test_it_loads_nothing_but_the_standard_library() -> None:
    code = "import sys, corral.provisioner, corral.provisioner.web; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True
    )
    ours = {name for name in loaded.stdout.split() if name.startswith("corral")}
    assert loaded.returncode == 0, loaded.stderr
    assert all(name == "corral" or name.startswith("corral.provisioner") for name in ours)
