# SPDX-License-Identifier: Apache-2.0
"""Registered workflows and the runs of their events, on every engine."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from corral.model.errors import CorralError
from corral.model.events import WorkflowTarget, target_key
from corral.model.ids import AgentId, RunId
from corral.model.spec import SourceRef, WorkflowSpec
from corral.model.states import ProvisionEvent
from corral.store.repo import agents, runs, workflows
from corral.store.repo import provisions as provisions_rows
from corral.store.tables import runs as runs_table
from tests.clocks import START
from tests.store.databases import Hand, a_spec, add_run

SPEC = WorkflowSpec(name="machines", jobs=(a_spec(),), events=("corral.scaler.scale-up.v1",))
TARGET = WorkflowTarget(workflow="machines")


def register(db: Hand, spec: WorkflowSpec = SPEC, *, project: str = "local", source: str = "", by: str = "me") -> None:
    ref = SourceRef(hash=source, size=7) if source else None
    db.write(workflows.put, spec, project=project, lock_hash="h", source=ref, by=by)


def test_a_registration_replaces_the_one_before_whole(db: Hand) -> None:
    register(db, source="s1")
    db.clock.pass_time(5)
    other = WorkflowSpec(name="machines", jobs=(a_spec("other"),), events=SPEC.events)
    register(db, other, by="you")
    (row,) = db.read(workflows.every)
    assert row == db.read(workflows.get, "machines")
    assert (row.spec, row.version, row.registered_by, row.source_hash) == (other, 2, "you", None)
    assert row.registered_at == START + 5_000_000
    assert db.read(workflows.sources) == frozenset()


def test_they_are_listed_by_name_and_project_and_removed_once(db: Hand) -> None:
    register(db, source="s1")
    register(db, WorkflowSpec(name="a", jobs=(), events=()), project="other", source="s2")
    assert [row.name for row in db.read(workflows.every)] == ["a", "machines"]
    assert [row.name for row in db.read(workflows.every, "other")] == ["a"]
    assert db.read(workflows.sources) == {"s1", "s2"}
    assert db.write(workflows.remove, "a") and not db.write(workflows.remove, "a")
    assert db.read(workflows.get, "a") is None


def test_what_is_not_gone_needs_its_workflow(db: Hand) -> None:
    key = target_key(TARGET)
    names = [AgentId(f"agent_{n}") for n in range(3)]
    for name in names:
        db.write(agents.add, id=name, pool="cloud", kind="provisioned", labels=frozenset(), project="local")
        db.write(
            provisions_rows.add,
            agent_id=name,
            pool="cloud",
            backend="event",
            host_id=None,
            labels=frozenset(),
            cause="warm",
            target=TARGET,
            target_key=key,
        )
        db.clock.pass_time(1)
    assert db.read(workflows.needed_by, [key], 2) == tuple(names[:2])
    row = db.read(provisions_rows.get, names[0])
    assert row is not None
    for event in (ProvisionEvent.RELEASE, ProvisionEvent.GONE):
        row = db.read(provisions_rows.get, names[0])
        assert db.write(provisions_rows.advance, row, event)
    assert db.read(workflows.needed_by, [key], 9) == tuple(names[1:])
    assert db.read(workflows.needed_by, ["workflow:other"], 9) == ()


def test_two_runs_of_one_event_cannot_both_be_written(db: Hand) -> None:
    """W1: the key that tells a repeat from a new event is unique in the database, not in a process."""
    db.write(add_run)
    db.write(add_run, RunId("run_2"))
    keyed = update(runs_table).values(dedupe="agent_1.1", provisioning=True)
    db.write(lambda c: c.execute(keyed.where(runs_table.c.id != "run_2")))
    (first,) = (run for run in db.read(runs.live_provisioning))
    assert db.read(runs.by_dedupe, "agent_1.1") == first
    with pytest.raises(CorralError):
        db.write(lambda c: c.execute(keyed.where(runs_table.c.id == "run_2")))
    db.write(runs.give_up_dedupe, first.id)
    assert db.read(runs.by_dedupe, "agent_1.1") is None
    db.write(lambda c: c.execute(keyed.where(runs_table.c.id == "run_2")))


def test_runs_for_provisioners_are_a_list_of_their_own(db: Hand) -> None:
    db.write(add_run)
    db.write(add_run, RunId("run_2"))
    db.write(lambda c: c.execute(update(runs_table).where(runs_table.c.id == "run_2").values(provisioning=True)))
    assert [run.id for run in db.read(runs.page, "local", None, 9, provisioning=True)] == ["run_2"]
    assert "run_2" not in [run.id for run in db.read(runs.page, "local", None, 9)]
