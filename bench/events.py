# SPDX-License-Identifier: Apache-2.0
"""From a queue to instances of a user's provisioner, on the real database, with a provisioner in memory."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from bench.harness import BenchFailed, Figure, new_run
from corral.backends.event.fake import Cloud, FakeProvisioner
from corral.control.coordinator import Coordinator, CoordinatorSettings, Stores, identify
from corral.control.fleet import Fleet
from corral.model.events import Webhook
from corral.model.labels import labels
from corral.model.pools import EVENT, Caps, Pool
from corral.runtime.chance import SystemChance
from corral.runtime.clock import SystemClock
from corral.runtime.sealing import Sealer
from corral.store.logmemory import MemoryLogs
from corral.store.sourcememory import MemorySources
from corral.store.sqlite import SqliteDatabase

JOBS = 1000
PATIENCE = 120.0
"""Seconds after which the case has failed."""


async def bound(runs: int) -> list[Figure]:
    """1,000 jobs submitted at once, until the provisioner has an instance for each of them."""
    return [
        Figure(
            name="1,000 queued jobs bound to instances",
            unit="s",
            values=tuple([await _bound() for _ in range(runs)]),
            target=20,
        )
    ]


async def _bound() -> float:
    clock, chance, cloud = SystemClock(), SystemChance(), Cloud()
    pool = Pool(
        name="cloud",
        backend=EVENT,
        labels=labels(("cloud",)),
        max_agents=JOBS,
        target=Webhook(url="http://provisioner.invalid/", secret="none"),
    )
    with tempfile.TemporaryDirectory() as directory:
        database = SqliteDatabase.open(Path(directory) / "corral.db", clock)
        try:
            identity = await identify(database, chance, take_lease=True)
            coordinator = Coordinator(
                clock=clock,
                chance=chance,
                stores=Stores(database=database, logs=MemoryLogs(), sources=MemorySources()),
                sealer=Sealer(chance.token_bytes(32), chance),
                identity=identity,
                backends={},
                fleet=Fleet((pool,), Caps(concurrent_creates=JOBS)),
                settings=CoordinatorSettings(),
                deliverer=FakeProvisioner(clock, cloud),
            )
            await coordinator.start()
            began = time.perf_counter()
            await coordinator.create_run(new_run("cloud", jobs=JOBS))
            while len(cloud.instances) < JOBS:
                if time.perf_counter() - began > PATIENCE:
                    raise BenchFailed(f"{len(cloud.instances)} of {JOBS} instances after {PATIENCE:g} s")
                await asyncio.sleep(0.02)
            took = time.perf_counter() - began
            await coordinator.stop(5.0)
        finally:
            await database.close()
    if len(set(cloud.created)) != JOBS or len(cloud.created) != JOBS:
        raise BenchFailed(f"{len(cloud.created)} creations for {JOBS} jobs")
    return took


EVENT_CASES = {"bound": bound}
