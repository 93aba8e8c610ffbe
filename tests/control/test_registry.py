# SPDX-License-Identifier: Apache-2.0
"""Registered workflows: all or none, replaced whole, kept with their source, and not removed while needed."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from corral.model.errors import Invalid, NotFound, Refused
from corral.model.events import WorkflowTarget, target_key
from corral.model.ids import AgentId, SourceHash
from corral.model.pools import Pool
from corral.model.spec import SourceRef, WorkflowSpec
from corral.model.states import ProvisionEvent
from corral.model.triggers import KNOWN_EVENTS
from corral.model.views import Clean, RegisterWorkflows, WorkflowView
from corral.store.repo import agents
from corral.store.repo import provisions as provisions_rows
from corral.workflow.lock import make_lock
from tests.control.rig import Rig, job, virtual

DATA = b"an archive"
SOURCE = SourceRef(hash=hashlib.sha256(DATA).hexdigest(), size=len(DATA))
POOL = Pool(
    name="cloud",
    backend="event",
    labels=frozenset({"cloud"}),
    max_agents=5,
    target=WorkflowTarget(workflow="machines"),
)


def spec(name: str = "machines", **more: Any) -> WorkflowSpec:
    return WorkflowSpec(**{"name": name, "jobs": (job(),), "events": KNOWN_EVENTS, "file": "w.py", "line": 3, **more})


async def register(
    rig: Rig, *specs: WorkflowSpec, names: tuple[str, ...] = (), source: SourceRef | None = None, **more: Any
) -> tuple[WorkflowView, ...]:
    wanted = RegisterWorkflows(lock=make_lock(specs or [spec()], {}), workflows=names, source=source, **more)
    return await rig.coordinator.register_workflows(wanted, by="tok_me")


async def _chunks() -> AsyncIterator[bytes]:
    yield DATA


async def upload(rig: Rig) -> None:
    await rig.coordinator.put_source(SourceHash(SOURCE.hash), _chunks())


def test_what_is_registered_says_what_by_whom_and_when() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.token("x")
        await upload(rig)
        plain = spec("ci", events=())
        (view,) = await register(rig, spec(), plain, source=SOURCE)
        assert (view.name, view.events, view.jobs, view.pools) == ("machines", KNOWN_EVENTS, ("j",), ("cloud",))
        assert (view.registered_by, view.version, view.source_hash, view.source_size) == ("tok_me", 1, SOURCE.hash, 10)
        assert view.registered_at.startswith("20") and (view.file, view.line) == ("w.py", 3)
        assert await rig.coordinator.workflows() == (view,)
        assert await rig.coordinator.workflows(project="other") == ()
        assert await rig.coordinator.workflow("machines") == view
        with pytest.raises(NotFound, match="did you mean 'machines'"):
            await rig.coordinator.workflow("machine")

    virtual(scenario, pools=(POOL,))


def test_a_new_registration_replaces_the_old_one_whole() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.token("x")
        await upload(rig)
        await register(rig, spec(), source=SOURCE)
        (view,) = await register(rig, spec(jobs=(job("other"),)))
        assert (view.jobs, view.version, view.source_hash) == (("other",), 2, "")

    virtual(scenario)


def test_all_are_registered_or_none() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.token("x")
        with pytest.raises(Invalid) as caught:
            await register(rig, spec("good"), spec("bad", jobs=(job("b", label="nowhere"),)))
        (fault,) = caught.value.faults
        assert fault.path == "bad.b.runs_on"
        assert await rig.coordinator.workflows() == ()

    virtual(scenario)


@pytest.mark.parametrize(
    ("specs", "names", "message"),
    [
        ((spec(),), ("machine",), "no workflow 'machine'; did you mean 'machines'?"),
        ((spec(events=()),), (), "no workflow here declares an event"),
        ((spec(events=()),), ("machines",), "workflow 'machines' declares no event"),
    ],
)
def test_what_there_is_not_to_register(specs: tuple[WorkflowSpec, ...], names: tuple[str, ...], message: str) -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(Invalid) as caught:
            await register(rig, *specs, names=names)
        assert [message in fault.message for fault in caught.value.faults] == [True]

    virtual(scenario)


def test_a_source_that_is_not_here_and_another_projects_name_are_refused() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.token("x")
        with pytest.raises(Invalid, match="upload it first"):
            await register(rig, source=SOURCE)
        await register(rig)
        with pytest.raises(Refused, match="registered in project local"):
            await register(rig, project="other")

    virtual(scenario)


def test_the_source_is_kept_while_it_is_registered() -> None:
    """Whatever retention removes of runs: an event may come in a year."""

    async def scenario(rig: Rig) -> None:
        await rig.token("x")
        await upload(rig)
        await register(rig, spec(), source=SOURCE)
        await rig.coordinator.clean(Clean(keep_runs=0, keep_bytes=0))
        assert await rig.coordinator.source_size(SourceHash(SOURCE.hash)) == SOURCE.size
        await rig.coordinator.remove_workflow("machines")
        await rig.coordinator.clean(Clean())
        assert await rig.coordinator.source_size(SourceHash(SOURCE.hash)) is None

    virtual(scenario)


def test_what_a_pool_or_an_instance_needs_is_not_removed() -> None:
    """Without its provisioner an instance could never be given back."""
    identity = AgentId("agent_1")

    async def scenario(rig: Rig) -> None:
        await rig.token("x")
        await register(rig)
        with pytest.raises(Refused, match="provisioner of pool cloud"):
            await rig.coordinator.remove_workflow("machines")
        rig.pools = ()
        await rig.coordinator.reload_config()
        target = WorkflowTarget(workflow="machines")
        key = target_key(target)
        rig.look(
            lambda c: agents.add(c, id=identity, pool="cloud", kind="provisioned", labels=POOL.labels, project="p")
        )
        values = {"pool": "cloud", "backend": "event", "host_id": None, "labels": POOL.labels, "cause": "warm"}
        rig.look(lambda c: provisions_rows.add(c, agent_id=identity, target=target, target_key=key, **values))
        with pytest.raises(Refused, match="agent_1, and only it can destroy them"):
            await rig.coordinator.remove_workflow("machines")
        for event in (ProvisionEvent.RELEASE, ProvisionEvent.GONE):
            rig.look(lambda c, event=event: provisions_rows.advance(c, _row(c, identity), event))  # type: ignore[misc]
        assert (await rig.coordinator.remove_workflow("machines")).name == "machines"
        with pytest.raises(NotFound):
            await rig.coordinator.remove_workflow("machines")

    virtual(scenario, pools=(POOL,))


def _row(connection: Any, identity: AgentId) -> Any:
    return provisions_rows.get(connection, identity)
