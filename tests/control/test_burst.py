# SPDX-License-Identifier: Apache-2.0
"""1,000 jobs at once on an event pool whose provisioner fails a tenth of what it is asked for."""

from __future__ import annotations

import asyncio
import contextlib

from corral.backends.event.fake import Made
from corral.model.pools import Caps
from tests.control.events import EventRig, pool, with_events
from tests.control.rig import job

JOBS, EACH, CAP = 1000, 25, 200
BOUND = 60.0
"""Virtual seconds from the end of an agent's job to the end of its instance, whatever else is going on."""


def test_a_thousand_jobs_on_two_hundred_instances_with_failures() -> None:
    """L9, D5: all done, never above the cap, nothing is left, no finished agent waits for a budget."""
    most = 0
    finished: dict[str, float] = {}
    waits: list[float] = []

    async def work(rig: EventRig, made: Made) -> None:
        with contextlib.suppress(Exception):
            await asyncio.sleep(1.0)
            puppet = await rig.agent_of(made.agent_id)
            await puppet.finish(await puppet.take(timeout=600.0))
            finished[made.agent_id] = rig.loop.time()
            await puppet.closed(timeout=600.0)

    def prepare(rig: EventRig) -> None:
        tasks = set()

        def created(made: Made) -> None:
            nonlocal most
            most = max(most, len(rig.cloud.instances))
            task = rig.loop.create_task(work(rig, made))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def destroyed(agent_id: str) -> None:
            if agent_id in finished:
                waits.append(rig.loop.time() - finished[agent_id])

        rig.cloud.refuse = 0.1
        rig.cloud.on_create = created
        rig.cloud.on_destroy = destroyed

    async def scenario(rig: EventRig) -> None:
        runs = [await rig.run(*(job(f"j{number}") for number in range(EACH))) for _ in range(JOBS // EACH)]

        async def ended() -> bool:
            return all([await rig.state(run) not in ("queued", "running") for run in runs])

        while not await ended():
            assert rig.loop.time() < 7200, "not in time"
            await asyncio.sleep(10)
        assert {await rig.state(run) for run in runs} == {"succeeded"}
        await rig.so(lambda: not rig.provisions(), timeout=900)
        assert not rig.cloud.instances
        assert most <= CAP
        assert len(waits) == JOBS
        assert max(waits) < BOUND

    caps = Caps(concurrent_creates=CAP, creates_per_job=20, backoff_base=0.5, backoff_max=2.0)
    with_events(scenario, pools=(pool(CAP),), caps=caps, prepare=prepare)
