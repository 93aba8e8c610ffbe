# SPDX-License-Identifier: Apache-2.0
"""What must hold. Safety is looked at with every commit and every start of a job, in the order of the history;
the rest at rest, when all faults are over and nothing is left to do."""

from __future__ import annotations

from collections import Counter
from contextvars import Context
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from corral.control import settle
from corral.control.host import ABSENT_AFTER, LIST_EVERY, WANTED
from corral.control.scaler import look
from corral.decide import progress, scaling
from corral.model.ids import AgentId, JobId, RunId
from corral.model.machine import Machine
from corral.model.records import Job, Step
from corral.model.spec import OnLost, Result
from corral.model.states import (
    AGENT,
    ATTEMPT,
    JOB,
    PROVISION,
    RUN,
    STEP,
    AttemptState,
    JobState,
    ProvisionState,
    StepState,
)
from corral.sim.stores import Change
from corral.sim.truth import Execution, Violation
from corral.store import tables
from corral.store.interface import LogKey
from corral.store.repo import agents, jobs, runs
from corral.store.repo import provisions as provisions_rows

if TYPE_CHECKING:
    from corral.sim.world import World

_MACHINES: dict[str, Machine] = {  # type: ignore[type-arg]
    "runs": RUN,
    "jobs": JOB,
    "attempts": ATTEMPT,
    "steps": STEP,
    "agents": AGENT,
    "provisions": PROVISION,
}
VANISHED_WITHIN = ABSENT_AFTER + 3 * LIST_EVERY
"""Seconds after a start within which an instance that is nowhere has ended: two looks that are far enough apart."""
_ABSORBING = ("runs", "jobs", "attempts", "steps", "agents")
"""A provision leaves ``gone`` when its instance turns out to exist."""


def _moves(machine: Machine) -> frozenset[tuple[str, str]]:  # type: ignore[type-arg]
    """Pairs of neighbouring states, and those that two events of one transaction pass through."""
    single = {(str(before), str(after)) for (before, _), after in machine.transitions.items()}
    return frozenset(single)


class Watch:
    """Safety. Violations go to the world's report."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._moves = {table: _moves(machine) for table, machine in _MACHINES.items()}
        self._terminal = {table: {str(s) for s in machine.terminal} for table, machine in _MACHINES.items()}
        self._cordoned: dict[str, str] = {}
        self._live: dict[str, str] = {}
        """Provisions that hold a slot, with their pool."""
        self._vanished: set[str] = set()
        """Instances that ended with every trace and that still count as wanted."""
        self._terms = 0

    def committed(self, changes: list[Change]) -> None:
        for change in changes:
            if change.column == "state":
                self._state(change)
            elif change.table == "agents":
                self._agent(change)
            elif change.table == "claims":
                self._claim(change)

    def vanishes(self, agent_id: str) -> None:
        """An instance ended and left no trace; no coordinator runs."""
        self._vanished.add(agent_id)

    def takes_over(self) -> None:
        """A coordinator is up, or can write again: what cannot be found holds no slot for longer than finding out
        takes."""
        self._terms += 1
        patience = 0.0 if self._world.settings.tied else VANISHED_WITHIN
        self._world.loop.call_later(patience, self._slots_of_vanished, self._terms, context=Context())

    def _slots_of_vanished(self, term: int) -> None:
        if term != self._terms or self._world.site is None or not self._vanished:
            return
        for row in self._world.query(lambda c: provisions_rows.some(c, map(AgentId, self._vanished))):
            if row.ended_at is None and row.state in WANTED and row.created_at is not None:
                self._violated("vanished-holds-no-slot", f"{row.agent_id} is {row.state} and its instance is nowhere")
        self._vanished.clear()

    def _violated(self, name: str, message: str) -> None:
        self._world.report(Violation(name, message))

    def _state(self, change: Change) -> None:
        if change.table == "provisions":
            self._provision(change)
        if change.old is None or change.new is None:
            return
        if change.table in _ABSORBING and change.old in self._terminal[change.table]:
            self._violated("terminal-absorbs", f"{change.table} {change.key} leaves {change.old} for {change.new}")
        elif (change.old, change.new) not in self._moves[change.table]:
            self._violated("only-tabled-moves", f"{change.table} {change.key} goes from {change.old} to {change.new}")

    def _agent(self, change: Change) -> None:
        if change.column == "cordon_reason":
            if change.new is None:
                self._cordoned.pop(change.key, None)
            else:
                self._cordoned[change.key] = change.new
        elif change.old is None and change.key in self._cordoned:
            reason = self._cordoned[change.key]
            self._violated("no-offer-to-cordoned", f"{change.key}, cordoned ({reason}), is given {change.new}")
        elif change.old is not None and change.new is not None:
            self._violated("one-job-per-agent", f"{change.key} is given {change.new} while it has {change.old}")

    def _claim(self, change: Change) -> None:
        if change.old is not None and change.old != change.new:
            self._violated("claim-binds-one-key", f"claim {change.key} is bound to a second key")

    def _provision(self, change: Change) -> None:
        if change.new == ProvisionState.GONE:
            self._live.pop(change.key, None)
            return
        returned = change.old == ProvisionState.GONE
        if change.key not in self._live:
            self._live[change.key] = self._pool_of(change.key)
            # An instance that turned out to exist counts, and may exceed the cap: nothing admitted it.
            if not returned:
                self._caps(self._live[change.key])

    def _pool_of(self, agent_id: str) -> str:
        return self._world.query(
            lambda c: str(c.execute(select(tables.provisions.c.pool).filter_by(agent_id=agent_id)).scalar_one())
        )

    def _caps(self, pool_name: str) -> None:
        pool = next(pool for pool in self._world.pools if pool.name == pool_name)
        held = Counter(self._live.values())
        if held[pool_name] > pool.max_agents:
            self._violated("caps-hold", f"pool {pool_name} has {held[pool_name]} of {pool.max_agents} agents")
        total = self._world.settings.caps.max_agents
        if len(self._live) > total:
            self._violated("caps-hold", f"the cluster has {len(self._live)} of {total} agents")

    def begins(self, execution: Execution) -> None:
        """A host begins a job: its start must have been committed before."""
        row = self._world.query(lambda c: jobs.attempt(c, execution.job_id, execution.attempt))  # type: ignore[arg-type]
        if row is None or row.started_at is None or row.agent_id != execution.agent_id:
            self._violated(
                "start-is-committed",
                f"{execution.job_id}#{execution.attempt} runs on {execution.agent_id} without a committed start",
            )

    def destroys(self, agent_id: str) -> None:
        """An instance is torn down: nobody may be waiting for what runs on it."""
        for execution in self._world.truth.running.values():
            if execution.agent_id != agent_id:
                continue
            row = self._world.query(
                lambda c, one=execution: jobs.attempt(c, one.job_id, one.attempt)  # type: ignore[misc]
            )
            if row is None or row.state not in ATTEMPT.terminal:
                self._violated("never-kill-working", f"{agent_id} is destroyed while {execution.job_id} runs on it")


# --- at rest -----------------------------------------------------------------------------------------------


def resting(world: World) -> str:
    """What is still going on, empty: nothing."""
    return world.query(_unfinished) or ("instances are left" if world.host.instances or world.cloud.instances else "")


def _unfinished(connection: Connection) -> str:
    live = runs.live(connection)
    if live:
        return f"{len(live)} runs have not ended"
    left = provisions_rows.live(connection)
    if left:
        return f"{len(left)} provisions are not gone"
    return ""


def at_rest(world: World) -> list[Violation]:
    """Everything that must hold when nothing is left to do."""
    found = [Violation(name, message) for name, message in world.query(_at_rest(world))]
    return found + _logs(world) + _instances(world)


def _at_rest(world: World):  # type: ignore[no-untyped-def]
    def read(connection: Connection) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for run_id in world.query_all(connection, tables.runs.c.id):
            found += _run(world, connection, run_id)
        for agent in agents.live(connection):
            if agent.kind == "static":
                continue
            found.append(("agents-end", f"{agent.id} is {agent.state} without an instance"))
        query = select(tables.agents.c.id, tables.agents.c.assignment).where(tables.agents.c.assignment.is_not(None))
        for row in connection.execute(query):
            found.append(("no-ended-job-assigned", f"{row.id} still has {row.assignment}"))
        caps = world.settings.caps
        world_view = look(connection, world.pools, caps)
        plan = scaling.plan(
            world_view.demand,
            world_view.supply,
            world.pools,
            caps,
            world_view.health,
            world_view.now,
            world_view.tokens,
        )
        if plan:
            found.append(("planning-again-is-empty", f"the scaler still wants {plan}"))
        return found

    return read


def _run(world: World, connection: Connection, run_id: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    run = runs.get(connection, run_id)  # type: ignore[arg-type]
    assert run is not None
    rows = jobs.of_run(connection, run.id)
    ended = sum(1 for job in rows if job.state in JOB.terminal)
    if run.state not in RUN.terminal:
        found.append(("runs-end", f"{run_id} is {run.state}"))
    if ended != len(rows) or run.jobs_finished != len(rows):
        found.append(("jobs-end", f"{run_id}: {ended} of {len(rows)} jobs ended, {run.jobs_finished} counted"))
    plan = progress.plan(run.state, [settle.job_facts(job) for job in rows], settle.condition_of(run))
    if plan:
        found.append(("planning-again-is-empty", f"run {run_id} still wants {plan}"))
    for job in rows:
        found += _job(world, connection, job)
    return found


def _job(world: World, connection: Connection, job: Job) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    attempts = jobs.attempts_of(connection, job.id)
    executions = world.truth.of_job(job.id)
    for row in attempts:
        if row.state not in ATTEMPT.terminal:
            found.append(("attempts-end", f"{job.id}#{row.number} is {row.state}"))
    won = [row.number for row in attempts if row.state is AttemptState.SUCCEEDED]
    kept = job.state is JobState.SUCCEEDED and job.detail.startswith("kept from")
    if job.state is JobState.SUCCEEDED and won != [job.attempt] and not kept:
        found.append(("succeeded-once", f"{job.id} succeeded by the attempts {won}"))
    if job.state is not JobState.SUCCEEDED and won:
        found.append(("succeeded-once", f"{job.id} is {job.state}; attempt {won} succeeded"))
    states = {row.number: row.state for row in attempts}
    for one in executions:
        found += _execution(job, one, states.get(one.attempt))
    started = {row.number for row in attempts if row.began_at is not None}
    for number in started - {one.attempt for one in executions}:
        found.append(("began-is-true", f"{job.id}#{number} is said to have begun and no host ran it"))
    if job.spec.retry is None and job.spec.on_lost is not OnLost.RETRY and len(executions) > 1:
        found.append(("run-at-most-once", f"{job.id} has no retries and was run {len(executions)} times"))
    return found


def _execution(job: Job, one: Execution, state: AttemptState | None) -> list[tuple[str, str]]:
    where = f"{job.id}#{one.attempt} on {one.agent_id}"
    if one.ended is None:
        return [("nothing-runs-on", f"{where} still runs")]
    if state is AttemptState.SUCCEEDED and one.result is not Result.SUCCEEDED:
        return [("results-are-true", f"{where} is succeeded; the host saw {one.result}")]
    if state is AttemptState.FAILED and one.result is Result.SUCCEEDED:
        return [("results-are-true", f"{where} is failed; the host saw it succeed")]
    if state in (None, AttemptState.WITHDRAWN):
        return [("withdrawn-never-ran", f"{where} is {state} and was run")]
    return []


def _logs(world: World) -> list[Violation]:
    """The log of every ended step is what was printed. Where its attempt was settled without its agent, or the host
    was killed, it may be a beginning of it, and the loss is stated."""
    found: list[Violation] = []
    for one in world.truth.executions.values():
        for step, attempt in world.query(lambda c, one=one: _ended_steps(c, one)):  # type: ignore[misc]
            found += _log(world, one, step, reported=attempt in (AttemptState.SUCCEEDED, AttemptState.FAILED))
    return found


def _ended_steps(connection: Connection, one: Execution) -> list[tuple[Step, AttemptState]]:
    row = jobs.attempt(connection, JobId(one.job_id), one.attempt)
    assert row is not None, "a host runs only what the database knows"
    steps = jobs.steps_of(connection, row.job_id, row.number)
    return [(step, row.state) for step in steps if step.state in (StepState.SUCCEEDED, StepState.FAILED)]


def _log(world: World, one: Execution, step: Step, *, reported: bool) -> list[Violation]:
    run = world.query(lambda c: runs.get(c, jobs.run_of(c, step.job_id) or RunId("")))
    assert run is not None
    log = world.logs.logs.get(LogKey(run_id=run.id, job_id=step.job_id, attempt=one.attempt, step=step.number))
    stored = bytes(log.data) if log is not None else b""
    whole = bytes(one.logs.get(step.number, b""))
    where = f"{one.job_id}#{one.attempt}/{step.number}"
    lost = len(whole) - len(stored)
    if not whole.startswith(stored):
        return [Violation("logs-are-true", f"{where}: what is stored was never printed")]
    if lost and reported and not world.lost_host(one.agent_id):
        return [Violation("logs-are-complete", f"{where}: {len(stored)} of {len(whole)} bytes, and its host lived")]
    if lost and step.log_missing != lost and not run.log_incomplete:
        return [Violation("loss-is-stated", f"{where}: {lost} bytes are lost and nothing says so")]
    if reported and len(stored) < (step.log_size or 0):
        return [Violation("log-size-is-true", f"{where}: readers wait for {step.log_size} bytes of {len(stored)}")]
    return []


def _instances(world: World) -> list[Violation]:
    alive = [agent for agent in world.agents.values() if agent.actor.alive and not agent.destroyed and not agent.static]
    return [Violation("instances-are-destroyed", f"{agent.name} still exists") for agent in alive]
