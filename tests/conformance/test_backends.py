# SPDX-License-Identifier: Apache-2.0
"""What every kind of backend does. A rig knows how to make one, and how to make its instances misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from corral.backends.fake import FakeBackend, FakeHost, Hang
from corral.backends.interface import Backend, Ending, InstanceSpec, Misconfigured, NoCapacity, Transient
from corral.backends.process import procfs
from corral.backends.process.backend import ProcessBackend
from corral.model.ids import AgentId, ClusterId
from corral.model.secret import Secret
from corral.runtime.clock import SystemClock
from tests.waiting import eventually_async

RUN = secrets.token_hex(4)
"""Two runs of these tests at once on one host must not take each other's instances for their own."""
A, B, THEIR_AGENT = (AgentId(f"agent_{name}_{RUN}") for name in "abt")
OURS = ClusterId("corral-ours")
THEIRS = ClusterId("corral-theirs")
DEADLINE = 20.0
STANDIN = str(Path(__file__).parents[1] / "backends" / "process" / "standin.py")


def spec(name: str = A, cluster: ClusterId = OURS, pool: str = "small") -> InstanceSpec:
    return InstanceSpec(
        cluster_id=cluster,
        agent_id=AgentId(name),
        pool=pool,
        labels=frozenset({"linux"}),
        claim_code=Secret("claim"),
        coordinator_urls=("http://127.0.0.1:1",),
    )


class Rig(Protocol):
    """One host."""

    def backend(self, cluster: ClusterId = OURS) -> Backend: ...

    def full(self) -> Backend:
        """One that has no room for another instance."""
        ...

    def hanging(self) -> Backend:
        """One whose creations never come to an end."""
        ...

    def end(self, backend: Backend, agent_id: AgentId) -> None:
        """Let the agent of a running instance end by itself."""
        ...

    def clean(self) -> None: ...


class FakeRig:
    def __init__(self) -> None:
        self.host = FakeHost()

    def backend(self, cluster: ClusterId = OURS) -> FakeBackend:
        return FakeBackend(cluster_id=cluster, clock=SystemClock(), host=self.host)

    def full(self) -> Backend:
        return FakeBackend(cluster_id=OURS, clock=SystemClock(), capacity=0)

    def hanging(self) -> Backend:
        backend = self.backend()
        backend.next_create.append(Hang())
        return backend

    def end(self, backend: Backend, agent_id: AgentId) -> None:
        # Through a backend that is there: an ending is news only to who watches.
        assert isinstance(backend, FakeBackend)
        backend.end(agent_id)

    def clean(self) -> None: ...


class ProcessRig:
    def __init__(self, root: Path) -> None:
        self.root = root

    def backend(self, cluster: ClusterId = OURS) -> ProcessBackend:
        return ProcessBackend(
            cluster_id=cluster,
            root=self.root / "instances",
            agent_command=(sys.executable, "-I", "-S", STANDIN, "idle"),
            kill_grace=1.0,
            min_free=0,
        )

    def full(self) -> Backend:
        return ProcessBackend(cluster_id=OURS, root=self.root / "instances", min_free=1 << 62)

    def hanging(self) -> Backend:
        slow = self.root / "python"
        slow.write_text("#!/bin/sh\nexec sleep 1000\n")
        slow.chmod(0o755)
        return ProcessBackend(
            cluster_id=OURS, root=self.root / "instances", python=str(slow), kill_grace=1.0, min_free=0
        )

    def end(self, backend: Backend, agent_id: AgentId) -> None:
        text = (self.root / "instances" / agent_id / "warden").read_text()
        (agent,) = procfs.children(int(text.split()[0]))
        os.kill(agent, signal.SIGKILL)

    def clean(self) -> None:
        async def go() -> None:
            for cluster in (OURS, THEIRS):
                async with opened(self.backend(cluster)) as backend:
                    for instance in await backend.list():
                        await backend.destroy(instance.agent_id, DEADLINE)

        asyncio.run(go())


@pytest.fixture(params=["fake", "process"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made: Rig = FakeRig() if request.param == "fake" else ProcessRig(tmp_path)
    yield made
    made.clean()


@contextlib.asynccontextmanager
async def opened(backend: Backend) -> AsyncIterator[Backend]:
    try:
        yield backend
    finally:
        await backend.close()


async def names(backend: Backend) -> dict[str, bool]:
    """Agent id → ended."""
    return {instance.agent_id: instance.ended for instance in await backend.list()}


def test_what_is_created_is_listed_until_it_is_destroyed(rig: Rig) -> None:
    async def go() -> None:
        async with opened(rig.backend()) as backend:
            assert await backend.list() == ()
            created = await backend.create(spec(), DEADLINE)
            (instance,) = await backend.list()
            assert (instance.agent_id, instance.pool, instance.ended) == (A, "small", False)
            assert instance.provider_id == created.provider_id != ""
            await backend.destroy(A, DEADLINE)
            assert await backend.list() == ()

    asyncio.run(go())


def test_creating_again_finds_the_same_instance(rig: Rig) -> None:
    async def go() -> None:
        async with opened(rig.backend()) as backend:
            first = await backend.create(spec(), DEADLINE)
            together = await asyncio.gather(*(backend.create(spec(), DEADLINE) for _ in range(4)))
            assert set(together) == {first}
            assert len(await backend.list()) == 1

    asyncio.run(go())


def test_an_agent_id_is_not_started_again_after_its_instance_ended(rig: Rig) -> None:
    async def go() -> None:
        async with opened(rig.backend()) as backend:
            first = await backend.create(spec(), DEADLINE)
            rig.end(backend, A)

            async def over() -> bool:
                return await names(backend) == {A: True}

            await eventually_async(over)
            assert await backend.create(spec(), DEADLINE) == first
            assert await names(backend) == {A: True}

    asyncio.run(go())


def test_destroying_is_legal_at_any_time(rig: Rig) -> None:
    async def go() -> None:
        async with opened(rig.backend()) as backend:
            await backend.destroy(A, DEADLINE)
            await backend.create(spec(), DEADLINE)
            await asyncio.gather(*(backend.destroy(A, DEADLINE) for _ in range(3)))
            await backend.destroy(A, DEADLINE)
            assert await backend.list() == ()
            await backend.create(spec(), DEADLINE)
            assert await names(backend) == {A: False}

    asyncio.run(go())


def test_destroying_while_it_is_created_leaves_nothing(rig: Rig) -> None:
    async def go() -> None:
        async with opened(rig.backend()) as backend:
            creating = asyncio.create_task(backend.create(spec(), DEADLINE))
            await asyncio.sleep(0)
            await backend.destroy(A, DEADLINE)
            await creating
            assert await backend.list() == ()

    asyncio.run(go())


def test_an_ending_is_reported_within_a_second(rig: Rig) -> None:
    async def go() -> None:
        endings: list[Ending] = []
        async with opened(rig.backend()) as backend:
            backend.watch(endings.append)
            await backend.create(spec(A), DEADLINE)
            await backend.create(spec(B), DEADLINE)
            began = time.monotonic()
            rig.end(backend, A)
            await eventually_async(lambda: endings)
            assert time.monotonic() - began < 1.0
            assert [ending.agent_id for ending in endings] == [A]
            assert endings[0].detail
            assert await names(backend) == {A: True, B: False}
            await backend.destroy(A, DEADLINE)
            await backend.destroy(B, DEADLINE)
            assert await backend.list() == ()
            assert len(endings) == 1, "what was destroyed did not end by itself"

    asyncio.run(go())


def test_instances_outlive_the_backend_object(rig: Rig) -> None:
    async def go() -> None:
        async with opened(rig.backend()) as first:
            created = await first.create(spec(), DEADLINE)
        endings: list[Ending] = []
        async with opened(rig.backend()) as second:
            second.watch(endings.append)
            (instance,) = await second.list()
            assert (instance.provider_id, instance.ended) == (created.provider_id, False)
            assert await second.create(spec(), DEADLINE) == created
            rig.end(second, A)
            await eventually_async(lambda: endings)
            assert [ending.agent_id for ending in endings] == [A]
            await second.destroy(A, DEADLINE)
            assert await second.list() == ()

    asyncio.run(go())


def test_what_ended_unwatched_is_listed_and_reported(rig: Rig) -> None:
    async def go() -> None:
        first = rig.backend()
        await first.create(spec(), DEADLINE)
        rig.end(first, A)

        async def over() -> bool:
            return await names(first) == {A: True}

        await eventually_async(over)
        await first.close()
        endings: list[Ending] = []
        async with opened(rig.backend()) as second:
            assert await names(second) == {A: True}
            second.watch(endings.append)
            await eventually_async(lambda: endings)
            assert endings[0].agent_id == A
            await second.destroy(A, DEADLINE)
            assert await second.list() == ()

    asyncio.run(go())


def test_nothing_of_another_installation_is_touched(rig: Rig) -> None:
    async def go() -> None:
        async with opened(rig.backend(THEIRS)) as theirs, opened(rig.backend(OURS)) as ours:
            await theirs.create(spec(THEIR_AGENT, THEIRS), DEADLINE)
            await ours.create(spec(A), DEADLINE)
            assert await names(ours) == {A: False}
            await ours.destroy(THEIR_AGENT, DEADLINE)
            with pytest.raises(Misconfigured):
                await ours.create(spec(THEIR_AGENT), DEADLINE)
            assert await names(theirs) == {THEIR_AGENT: False}

    asyncio.run(go())


def test_a_creation_that_hangs_ends_at_its_deadline_and_leaves_nothing(rig: Rig) -> None:
    async def go() -> None:
        async with opened(rig.hanging()) as backend:
            began = time.monotonic()
            with pytest.raises(Transient, match=r"was not up within 0\.3 s"):
                await backend.create(spec(), 0.3)
            assert time.monotonic() - began < 2.0
            await backend.destroy(A, DEADLINE)
            assert await backend.list() == ()
        async with opened(rig.backend()) as backend:
            await backend.create(spec(), DEADLINE)
            assert await names(backend) == {A: False}

    asyncio.run(go())


def test_a_caller_that_is_cancelled_leaves_nothing_that_destroy_does_not_find(rig: Rig) -> None:
    async def go() -> None:
        async with opened(rig.backend()) as backend:
            for turns in range(1, 12):
                creating = asyncio.create_task(backend.create(spec(), DEADLINE))
                for _ in range(turns):
                    await asyncio.sleep(0)
                creating.cancel()
                await asyncio.gather(creating, return_exceptions=True)
                await backend.destroy(A, DEADLINE)
                assert await backend.list() == ()

    asyncio.run(go())


def test_no_room_is_said(rig: Rig) -> None:
    async def go() -> None:
        async with opened(rig.full()) as backend:
            with pytest.raises(NoCapacity):
                await backend.create(spec(), DEADLINE)
            assert await backend.list() == ()

    asyncio.run(go())


def test_many_at_once(rig: Rig) -> None:
    wanted = [f"agent_{n}_{RUN}" for n in range(12)]

    async def go() -> None:
        async with opened(rig.backend()) as backend:
            await asyncio.gather(*(backend.create(spec(name), DEADLINE) for name in wanted))
            assert await names(backend) == dict.fromkeys(wanted, False)
            await asyncio.gather(*(backend.destroy(AgentId(name), DEADLINE) for name in wanted))
            assert await backend.list() == ()

    asyncio.run(go())


def test_check_says_how_far_instances_are_apart(rig: Rig) -> None:
    async def go() -> None:
        async with opened(rig.backend()) as backend:
            findings = await asyncio.wait_for(backend.check(), 10)
            assert {finding.level for finding in findings} <= {"ok", "warning", "failed"}
            assert all(finding.message for finding in findings)
            assert any(finding.level == "warning" for finding in findings)

    asyncio.run(go())


def test_the_claim_can_be_forgotten(rig: Rig) -> None:
    async def go() -> None:
        async with opened(rig.backend()) as backend:
            assert isinstance(backend, FakeBackend | ProcessBackend)
            await backend.create(spec(), DEADLINE)
            await backend.forget_claim(A)
            await backend.forget_claim(A)
            await backend.forget_claim(AgentId("agent_absent"))

    asyncio.run(go())


def test_close_twice(rig: Rig) -> None:
    async def go() -> None:
        backend = rig.backend()
        await backend.create(spec(), DEADLINE)
        await backend.close()
        await backend.close()

    asyncio.run(go())
