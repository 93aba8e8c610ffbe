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
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from corral.cli.config import PoolConfig, ServerConfig
from corral.cli.wiring import Assembly, assemble, publish
from corral.client import Client
from corral.control.registration import digest
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
from corral.model.ids import AgentId, RunId
from corral.store.repo import agents
from corral.store.repo import claims as claims_rows
from corral.store.repo import provisions as provisions_rows
from corral.web.app import create_app
from corral.web.listen import bind
from corral.web.serve import WebServer
from tests.cli.double import git
from tests.e2e.support import alive, job, run_of
from tests.waiting import eventually_async

EXAMPLE = Path(__file__).parents[2] / "examples" / "workflow-provisioner"
CLAIM = "claim_c4n4ry" + "0" * 52
AGENT = AgentId("agent_of-the-example")
TARGET = WorkflowTarget(workflow="machines", timeout=60.0)

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")


@dataclass(kw_only=True)
class Here:
    """A coordinator in this process, so that events can be delivered by hand."""

    assembly: Assembly
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
        deliverer = self.assembly.coordinator.workflow_targets
        return await deliverer.deliver(TARGET, msgspec.json.encode(event), event_id=event.id, timeout=60.0)


@contextlib.asynccontextmanager
async def here(directory: Path) -> AsyncIterator[Here]:
    directory.mkdir(mode=0o700)
    listener = bind("127.0.0.1", 0)
    url = "http://{}:{}".format(*listener.getsockname()[:2])
    pools = (PoolConfig(name="provisioner", backend="process", labels=("provisioner",), max_agents=2),)
    assembly = await assemble(directory, ServerConfig(version=1, pools=pools), urls=(url,), tied=True)
    web = WebServer(create_app(assembly.coordinator), [listener])
    try:
        await web.start()
        await assembly.coordinator.start()
        token = await publish(assembly, url)
        async with Client(url, token) as client:
            yield Here(assembly=assembly, client=client, url=url, token=token)
    finally:
        await assembly.coordinator.release_all(10.0)
        await assembly.coordinator.stop(2.0)
        await web.stop()
        await assembly.close()


@contextlib.contextmanager
def cloud(place: Path) -> contextlib.AbstractContextManager[str]:  # type: ignore[misc]
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
    """The example as a user has it, with another port."""
    shutil.copytree(EXAMPLE, place, ignore=shutil.ignore_patterns("__pycache__"))
    file = place / ".corral" / "workflows" / "machines.py"
    file.write_text(file.read_text().replace("http://127.0.0.1:8093", url))
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


async def provision(running: Here, job_id: str, run_id: str) -> None:
    """What admission writes for a job of an event pool."""
    labels = frozenset({"cloud"})

    def write(connection: object) -> None:
        agents.add(connection, id=AGENT, pool="cloud", kind="provisioned", labels=labels, project="local")  # type: ignore[arg-type]
        provisions_rows.add(
            connection,  # type: ignore[arg-type]
            agent_id=AGENT,
            pool="cloud",
            backend="event",
            host_id=None,
            labels=labels,
            cause="job",
            job_id=job_id,
            run_id=run_id,
        )
        claims_rows.add(connection, digest=digest(CLAIM), agent_id=AGENT, prefix=CLAIM[:12])  # type: ignore[arg-type]

    await running.assembly.coordinator._db.write(write)


def test_an_instance_is_made_for_a_job_listed_and_destroyed(tmp_path: Path) -> None:
    """W2: and the same event once more makes no second instance."""

    async def scenario(url: str) -> None:
        async with here(tmp_path / "state") as running:
            said = await registered(running, tree(tmp_path / "machines", url))
            assert "workflow machines is registered: corral.scaler.scale-up.v1" in said
            waiting = await running.client.create_run(run_of(job("wanted", "echo here", label="cloud")))
            await provision(running, waiting.jobs[0].id, waiting.id)
            cluster = (await running.client.server()).cluster_id
            common = {"cluster_id": cluster, "agent_id": AGENT, "epoch": "1.1", "pool": "cloud"}
            up = ScaleUp(
                **common,  # type: ignore[arg-type]
                sequence=1,
                labels=("cloud",),
                mandatory_labels=(),
                resources=Resources(),
                coordinator_urls=(running.url,),
                claim_code=CLAIM,
            )
            made = await running.deliver(EventKind.SCALE_UP, up, 1)
            assert (made.verdict, made.provider_id) == (Verdict.DONE, "i-0"), made
            again = await running.deliver(EventKind.SCALE_UP, up, 1)
            assert again.provider_id == "i-0"
            async for view in running.client.watch_run(RunId(waiting.id)):
                done = view
            assert (done.state, done.jobs[0].agent_id) == ("succeeded", AGENT)
            ask = Inventory(cluster_id=cluster, epoch="1.1", request="req_1")  # type: ignore[arg-type]
            listed = msgspec.json.decode((await running.deliver(EventKind.INVENTORY, ask, 2)).body, type=Listing)
            assert [(each.agent_id, each.provider_id, each.pool) for each in listed.instances] == [
                (AGENT, "i-0", "cloud")
            ]
            down = ScaleDown(**common, sequence=2, reason="job-complete", evidence={})  # type: ignore[arg-type]
            gone = await running.deliver(EventKind.SCALE_DOWN, down, 3)
            assert gone.verdict is Verdict.DONE, gone
            await eventually_async(lambda: nobody(f"{AGENT}/agent.json"), "the instance's process ends")
            late = await running.deliver(EventKind.SCALE_UP, up, 4)
            assert late.verdict is Verdict.REFUSED, "a create that comes after the delete makes nothing"
            assert "410" in late.detail or "create" in late.detail
            runs = (await running.client.runs(provisioning=True)).items
            assert [run.title.split()[0] for run in runs] == ["scale-up", "scale-down", "inventory", "scale-up"]
            assert [run.workflow for run in (await running.client.runs()).items] == ["ci"]
            await no_trace_of_the_claim(running, tmp_path)

    with cloud(tmp_path / "cloud") as url:
        asyncio.run(scenario(url))


async def nobody(marker: str) -> bool:
    return not alive(marker)


async def no_trace_of_the_claim(running: Here, place: Path) -> None:
    """Reference 11.1.16: neither in the database nor in a log, of whatever run."""
    files = [file for file in place.rglob("*") if file.is_file()]
    assert len(files) > 10
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # agents come and go beside this
            assert CLAIM.encode() not in file.read_bytes(), file
