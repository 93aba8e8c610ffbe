# SPDX-License-Identifier: Apache-2.0
"""Deciding and admitting: no server, no processes, the functions and the database file alone."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from bench.harness import BenchFailed, Figure
from corral.control import admission, registration, runs
from corral.control.admission import Request, Term
from corral.control.registration import Registered
from corral.control.scaler import GROUP
from corral.control.settle import Wake
from corral.decide import scaling
from corral.decide.matching import Wanted, pool_offer
from corral.decide.scaling import Creation, Demand, Supply
from corral.model.events import Webhook
from corral.model.ids import AgentId, CoordinatorId, JobId, RunId
from corral.model.pools import Caps, Pool
from corral.model.secret import Secret
from corral.model.spec import JobSpec, StepSpec, WorkflowSpec
from corral.model.states import ProvisionState
from corral.model.views import NewRun
from corral.runtime.chance import SystemChance, agent_id, secret_token
from corral.runtime.clock import SystemClock
from corral.runtime.sealing import Sealer
from corral.store.repo import jobs
from corral.store.repo import lease as lease_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.lease import LEASE
from corral.store.sqlite import SqliteDatabase
from corral.wire.messages import PROTOCOL, Facts, Hello
from corral.workflow.lock import make_lock

JOBS = 10_000
POOLS = 200
PROVISIONS = 2_000
ADMITTED = 2_000
NOW = 1_000_000_000_000


async def plan(count: int) -> list[Figure]:
    """One plan for 10,000 queued jobs, 200 pools and 2,000 provisions, each with the label of a host of its own."""
    pools = [
        Pool(name=f"p{n}", backend="process", labels=frozenset({f"l{n}", "linux"}), max_agents=20, min_idle=n % 3)
        for n in range(POOLS)
    ]
    demand = [
        Demand(job_id=JobId(f"j{n}"), run_id=RunId("r"), wanted=Wanted(labels=frozenset({f"l{n % POOLS}", "linux"})))
        for n in range(JOBS)
    ]
    supply = [_provision(n, pools[n % POOLS]) for n in range(PROVISIONS)]
    caps = Caps(max_agents=PROVISIONS + 100, concurrent_creates=1000)
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        made = scaling.plan(demand, supply, pools, caps, {}, NOW)
        seconds.append((time.perf_counter() - began) * 1000)
        if len(made.unplaced) + len(made.covered) + sum(c.job_id is not None for c in made.creations) != JOBS:
            raise BenchFailed("a job was not answered")
    name = f"plan, {JOBS} jobs, {POOLS} pools, {PROVISIONS} provisions"
    return [Figure(name=name, unit="ms", values=tuple(seconds), target=100)]


def _provision(number: int, pool: Pool) -> Supply:
    state = (ProvisionState.ACTIVE, ProvisionState.ACTIVE, ProvisionState.REQUESTED, ProvisionState.RELEASING)[
        number % 4
    ]
    offered = pool_offer(pool)
    return Supply(
        agent_id=AgentId(f"a{number}"),
        pool=pool.name,
        state=state,
        offered=type(offered)(labels=offered.labels | {f"corral:host:h{number}"}),
        online=state is ProvisionState.ACTIVE,
        assigned=state is ProvisionState.ACTIVE and number % 3 > 0,
        idle_since=NOW - 1,
        deadline_at=NOW + 1,
    )


async def admit(count: int) -> list[Figure]:
    """Admissions of an event pool on a database file with full sync, each for a waiting job, in a plan's groups; and
    the redemptions of their claims, 64 agents at the same time."""
    admitted, redeemed = [], []
    for _ in range(count):
        async with _database() as database:
            term, requests = await _wanted(database)
            admitted.append(await _admit(database, term, requests))
            redeemed.append(await _redeem(database, requests))
            if await database.read(provisions_rows.count_live) != ADMITTED:
                raise BenchFailed("not every provision is there")
    return [
        Figure(name="admissions", unit="/s", values=tuple(admitted), target=500, better="higher"),
        Figure(name="claims redeemed", unit="/s", values=tuple(redeemed), target=500, better="higher"),
    ]


async def _admit(database: SqliteDatabase, term: Term, requests: list[Request]) -> float:
    """Admissions a second."""
    caps = Caps(max_agents=ADMITTED, concurrent_creates=ADMITTED)
    began = time.perf_counter()
    for start in range(0, ADMITTED, GROUP):
        group = requests[start : start + GROUP]
        answers = await database.write(partial(admission.admit, term=term, requests=group, caps=caps))
        if any(answers):
            raise BenchFailed(f"refused: {answers}")
    return ADMITTED / (time.perf_counter() - began)


@asynccontextmanager
async def _database() -> AsyncIterator[SqliteDatabase]:
    with tempfile.TemporaryDirectory() as directory:
        database = SqliteDatabase.open(Path(directory) / "corral.db", SystemClock())
        try:
            yield database
        finally:
            await database.close()


async def _wanted(database: SqliteDatabase) -> tuple[Term, list[Request]]:
    """Waiting jobs and a request for each."""
    chance = SystemChance()
    sealer = Sealer(b"k" * 32, chance)
    holder = CoordinatorId("coord_bench")
    epoch = await database.write(lambda c: lease_rows.take(c, LEASE, holder))
    target = Webhook(url="https://provisioner.example", secret="p")
    pool = Pool(name="p", backend="event", labels=frozenset({"linux"}), max_agents=ADMITTED, target=target)
    requests = []
    for _ in range(ADMITTED // 500):
        prepared = runs.prepare(_new_run(500), chance, lambda name, value, run: b"", SystemClock().now())
        await database.write(partial(runs.add, prepared=prepared, wake=Wake()))
        for job in await database.read(partial(jobs.listed, run_id=prepared.id)):
            creation = Creation(pool="p", labels=pool.labels, job_id=job.id, run_id=job.run_id)
            identity, claim = agent_id(chance), Secret(secret_token(chance, "claim_"))
            sealed = sealer.seal(claim, identity)
            requests.append(Request(creation=creation, pool=pool, identity=identity, claim=claim, sealed=sealed))
    return Term(holder=holder, epoch=epoch), requests


def _new_run(count: int) -> NewRun:
    step = StepSpec(name="run", script="true")
    specs = tuple(JobSpec(name=f"j{n}", steps=(step,), runs_on=("linux",)) for n in range(count))
    return NewRun(lock=make_lock((WorkflowSpec(name="w", jobs=specs),), {}), workflow="w")


async def _redeem(database: SqliteDatabase, requests: list[Request]) -> float:
    """Redemptions a second."""
    facts = Facts(os="linux", arch="x86_64", host="bench", version="0")
    gate = asyncio.Semaphore(64)

    async def one(request: Request) -> None:
        hello = Hello(
            protocol=PROTOCOL,
            agent_id=request.identity,
            key=f"key_{request.identity}",
            boot_id="boot",
            facts=facts,
            claim_code=request.claim.reveal(),
        )
        async with gate:
            answer = await database.write(lambda c: registration.register(c, hello, "coord_bench"))
        if not isinstance(answer, Registered):
            raise BenchFailed(f"{request.identity} was refused: {answer}")

    began = time.perf_counter()
    await asyncio.gather(*(one(request) for request in requests))
    return len(requests) / (time.perf_counter() - began)


SCALER_CASES = {"plan": plan, "admission": admit}
