# SPDX-License-Identifier: Apache-2.0
"""The example `examples/workflow-provisioner`: registered by the command, run by events, down to real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import Connection, select

from corral.backends.process.backend import ProcessBackend
from corral.client import Client
from corral.control.coordinator import Coordinator, CoordinatorSettings, Stores, identify
from corral.control.fleet import Fleet
from corral.model.events import (
    Answer,
    CloudEvent,
    EventKind,
    Inventory,
    Listing,
    Resources,
    ScaleDown,
    ScaleUp,
    Verdict,
    WorkflowTarget,
)
from corral.model.ids import AgentId, ClusterId, JobId, RunId
from corral.model.pools import Caps, Pool
from corral.model.records import Provision
from corral.model.states import ProvisionState
from corral.model.views import NewToken
from corral.runtime.chance import SystemChance
from corral.runtime.clock import SystemClock
from corral.runtime.sealing import Sealer, load_key
from corral.store.logdir import LogDirectory
from corral.store.repo import deliveries
from corral.store.repo import provisions as provisions_rows
from corral.store.sourcedir import SourceDirectory
from corral.store.sqlite import SqliteDatabase
from corral.store.tables import provisions as provisions_table
from corral.web.app import create_app
from corral.web.listen import bind
from corral.web.serve import WebServer
from tests.cli.double import git
from tests.e2e.support import alive, job, run_of
from tests.waiting import eventually_async

EXAMPLE = Path(__file__).parents[2] / "examples" / "workflow-provisioner"
TARGET = WorkflowTarget(workflow="machines", timeout=60.0)

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")


@dataclass(kw_only=True)
class Here:
    """A coordinator in this process, so that events can be delivered by hand."""

    coordinator: Coordinator
    database: SqliteDatabase
    sealer: Sealer
    client: Client
    url: str
    token: str

    async def deliver(self, kind: EventKind, data: ScaleUp | ScaleDown | Inventory, number: int) -> Answer:
        event = CloudEvent(
            specversion="1.0",
            id=f"evt_{number}",
            source=f"/corral/{data.cluster_id}",
            type=kind,
            time="2026-01-01T00:00:00Z",
            subject="" if isinstance(data, Inventory) else data.agent_id,
            datacontenttype="application/json",
            data=data,
        )
        deliverer = self.coordinator.workflow_targets
        return await deliverer.deliver(TARGET, msgspec.json.encode(event), event_id=event.id, timeout=60.0)


POOLS = (
    Pool(name="provisioner", backend="process", labels=frozenset({"provisioner"}), max_agents=1),
    Pool(name="cloud", backend="event", labels=frozenset({"cloud"}), max_agents=1, target=TARGET),
)


@contextlib.asynccontextmanager
async def here(directory: Path) -> AsyncIterator[Here]:
    directory.mkdir(mode=0o700)
    listener = bind("127.0.0.1", 0)
    url = "http://{}:{}".format(*listener.getsockname()[:2])
    clock, chance = SystemClock(), SystemChance()
    database = await asyncio.to_thread(SqliteDatabase.open, directory / "corral.db", clock)
    logs = LogDirectory(directory / "logs")
    sealer = Sealer(load_key(directory / "key", chance), chance)
    identity = await identify(database, chance, take_lease=True)
    backend = ProcessBackend(
        cluster_id=identity.cluster_id, root=directory / "work", cache_root=directory / "cache", tied=True
    )
    coordinator = Coordinator(
        clock=clock,
        chance=chance,
        stores=Stores(database=database, logs=logs, sources=SourceDirectory(directory / "sources")),
        sealer=sealer,
        identity=identity,
        backends={"process": backend},
        fleet=Fleet(POOLS, Caps(max_agents=1)),
        settings=CoordinatorSettings(urls=(url,)),
    )
    web = WebServer(create_app(coordinator), [listener])
    try:
        await web.start()
        await coordinator.start()
        token = (await coordinator.create_token(NewToken(name="first", role="admin"))).token
        async with Client(url, token) as client:
            yield Here(coordinator=coordinator, database=database, sealer=sealer, client=client, url=url, token=token)
    finally:
        await coordinator.release_all(1.0)
        await coordinator.stop(2.0)
        await web.stop()
        await logs.close()
        await database.close()


@contextlib.contextmanager
def cloud(place: Path) -> Iterator[str]:
    command = [sys.executable, str(EXAMPLE / "cloud.py"), str(place), "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        process.stdout.close()


def tree(place: Path, url: str) -> Path:
    """The example as a user has it, with another port, and careless with its secret."""
    shutil.copytree(EXAMPLE, place, ignore=shutil.ignore_patterns("__pycache__"))
    file = place / ".corral" / "workflows" / "machines.py"
    careless = 'print("claim", os.environ["CORRAL_CLAIM_CODE"])\n    made = call('
    file.write_text(file.read_text().replace("http://127.0.0.1:8093", url).replace("made = call(", careless))
    git(place, "init", "-q", "-b", "main")
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "Machines")
    return place


async def registered(running: Here, place: Path) -> str:
    """What the command printed."""
    command = [sys.executable, "-m", "corral.cli", "workflows", "register", str(place), "--url", running.url]
    environment = {**os.environ, "CORRAL_TOKEN": running.token}
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return (out + err).decode()


async def requested(running: Here) -> tuple[Provision, str]:
    """The provision that admission wrote, once it waits for its event; and its claim code."""

    def look(connection: Connection) -> tuple[Provision, bytes] | None:
        row = next((row for row in provisions_rows.live(connection) if row.pool == "cloud"), None)
        if row is None or not deliveries.unsent(connection, row.agent_id):
            return None
        column = provisions_table.c.claim_sealed
        sealed = connection.execute(select(column).where(provisions_table.c.agent_id == row.agent_id)).scalar_one()
        return row, sealed

    async def there() -> tuple[Provision, bytes] | None:
        return await running.database.read(look)

    found = await eventually_async(there, "a provision of the event pool")
    assert found is not None
    return found[0], running.sealer.open(found[1], found[0].agent_id).reveal()


async def released(running: Here, agent_id: AgentId) -> None:
    async def look() -> bool:
        row = await running.database.read(lambda c: provisions_rows.get(c, agent_id))
        return row is not None and row.state is ProvisionState.RELEASING

    await eventually_async(look, "the provision is released")


def test_an_instance_is_made_for_a_job_listed_and_destroyed(tmp_path: Path) -> None:
    """W2: and the same event once more makes no second instance. The cluster's only slot is the instance's: the jobs
    that make and destroy it do not wait for one."""

    async def scenario(url: str) -> None:
        async with here(tmp_path / "state") as running:
            said = await registered(running, tree(tmp_path / "machines", url))
            assert "workflow machines is registered: corral.scaler.scale-up.v1" in said
            waiting = await running.client.create_run(run_of(job("wanted", "echo here", label="cloud")))
            row, claim = await requested(running)
            cluster = ClusterId((await running.client.server()).cluster_id)
            up = ScaleUp(
                cluster_id=cluster,
                agent_id=row.agent_id,
                sequence=row.sequence,
                epoch="1.1",
                pool="cloud",
                labels=("cloud",),
                mandatory_labels=(),
                resources=Resources(),
                coordinator_urls=(running.url,),
                claim_code=claim,
            )
            made = await running.deliver(EventKind.SCALE_UP, up, 1)
            assert (made.verdict, made.provider_id) == (Verdict.DONE, "i-0"), made
            assert (await running.deliver(EventKind.SCALE_UP, up, 1)).provider_id == "i-0"
            *_, done = [view async for view in running.client.watch_run(RunId(waiting.id))]
            assert (done.state, done.jobs[0].agent_id) == ("succeeded", row.agent_id)
            ask = Inventory(cluster_id=cluster, epoch="1.1", request="req_1")
            listed = msgspec.json.decode((await running.deliver(EventKind.INVENTORY, ask, 2)).body, type=Listing)
            assert [(each.agent_id, each.provider_id, each.pool) for each in listed.instances] == [
                (row.agent_id, "i-0", "cloud")
            ]
            await released(running, row.agent_id)
            down = ScaleDown(
                cluster_id=cluster,
                agent_id=row.agent_id,
                sequence=row.sequence + 1,
                epoch="1.1",
                pool="cloud",
                reason="job-complete",
                evidence={},
            )
            gone = await running.deliver(EventKind.SCALE_DOWN, down, 3)
            assert gone.verdict is Verdict.DONE, gone
            await eventually_async(lambda: nobody(f"{row.agent_id}/agent.json"), "the instance's process ends")
            late = await running.deliver(EventKind.SCALE_UP, up, 4)
            assert late.verdict is Verdict.REFUSED, "a create that comes after the delete makes nothing"
            assert "job create: " in late.detail
            runs = (await running.client.runs(provisioning=True)).items
            titles = [run.title.split()[0] for run in reversed(runs)]
            assert titles == ["scale-up", "inventory", "scale-down", "scale-up"]
            assert [run.workflow for run in (await running.client.runs()).items] == ["ci"]
            first = await running.client.run(RunId(runs[-1].id))
            create = next(each for each in first.jobs if each.name == "create")
            log = b"".join([data async for data in running.client.read_log(JobId(create.id), step=0)])
            assert b"claim ***" in log and claim.encode() not in log
            no_trace_of(claim, tmp_path)

    with cloud(tmp_path / "cloud") as url:
        asyncio.run(scenario(url))


async def nobody(marker: str) -> bool:
    return not alive(marker)


def no_trace_of(claim: str, place: Path) -> None:
    """Reference 11.1.16: neither in the database nor in a log, of whatever run."""
    files = [file for file in place.rglob("*") if file.is_file()]
    assert len(files) > 10
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # agents come and go beside this
            assert claim.encode() not in file.read_bytes(), file
