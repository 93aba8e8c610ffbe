# SPDX-License-Identifier: Apache-2.0
"""Any interleaving of passes, registrations, failures, restarts and configuration changes, over real SQL.

What must hold: nothing commits above a cap, planning after committing is empty, a record is in one state that its agent
agrees with, a claim binds one key, and no event instance starts to end without its provisioner being told.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from corral.backends.interface import Ending
from corral.control import ledger, scaler
from corral.control.host import _record_failed, _record_gone, _settle_ending
from corral.control.registration import Registered, digest
from corral.control.settle import Wake
from corral.decide import scaling
from corral.decide.scaling.room import close
from corral.model.errors import Refused
from corral.model.events import EventKind
from corral.model.ids import AgentId, RunId
from corral.model.pools import Caps, Machine, Pool
from corral.model.records import Provision
from corral.model.spec import Resources
from corral.model.states import AgentState, DeliveryState, ProvisionEvent, ProvisionState
from corral.store.inline import InlineDatabase
from corral.store.repo import agents, deliveries
from corral.store.repo import pool_health as pool_health_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.tables import provisions as provisions_table
from tests.clocks import ManualClock
from tests.control.leading import Leader, event_pool, mark_sent, pool
from tests.control.worlds import World
from tests.store.databases import a_spec

LABELS = ("linux", "mac", "linux big")
CAPS = (
    Caps(),
    Caps(max_agents=2),
    Caps(max_agents=4, max_cpu=3.0),
    Caps(max_memory=250, concurrent_creates=2),
    Caps(max_cost_per_hour=0.5),
    Caps(creates_per_second=0.2, creates_burst=2, creates_per_job=2),
    Caps(machines=(Machine(name="m", max_cpu=2.0),), backoff_base=1.0, backoff_max=5.0),
)
SHAPES = st.fixed_dictionaries(
    {
        "most": st.integers(0, 4),
        "min_idle": st.sampled_from((0, 0, 1, 2)),
        "cpu": st.sampled_from((None, 1.0)),
        "memory": st.sampled_from((None, 100)),
        "cost_per_hour": st.sampled_from((0.0, 0.1, 0.2)),
        "max_cpu": st.sampled_from((None, None, 2.0)),
        "machine": st.sampled_from(("", "m")),
        "draining": st.sampled_from((False, False, False, True)),
        "idle_timeout": st.sampled_from((5.0, 60.0)),
    }
)


class Interleavings(RuleBasedStateMachine):
    @initialize(caps=st.sampled_from(CAPS), shapes=st.tuples(SHAPES, SHAPES, SHAPES))
    def begin(self, caps: Caps, shapes: tuple[dict[str, object], ...]) -> None:
        self.runner = asyncio.Runner()
        clock = ManualClock()
        self.world = World(InlineDatabase(clock), clock, self.runner)
        self.leader = Leader(self.world, *_pools(shapes), caps=caps)
        self.runs: list[RunId] = []
        self.keys: dict[AgentId, str] = {}
        self.seen: dict[AgentId, ProvisionState] = {}
        self.ended: Counter[AgentId] = Counter()

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.close()

    # --- what happens ---

    @rule(labels=st.sampled_from(LABELS), cpu=st.sampled_from((None, None, 2.0)))
    def submit(self, labels: str, cpu: float | None) -> None:
        spec = a_spec(runs_on=tuple(labels.split()), resources=Resources(cpu=cpu))
        self.runs.append(self.world.start(spec))

    @rule(seconds=st.sampled_from((0.5, 3.0, 31.0, 61.0, 700.0)))
    def pass_time(self, seconds: float) -> None:
        self.world.clock.pass_time(seconds)

    @rule()
    def tick(self) -> None:
        """One pass of the scaler, and nothing is left to do after it at the same moment."""
        before = {row.agent_id for row in self.rows()}
        self.leader.run()
        made = [row for row in self.rows() if row.agent_id not in before]
        self.within_caps(made)
        world = self.world.read(scaler.look, self.leader.pools, self.leader.caps)
        plan = scaling.plan(
            world.demand, world.supply, self.leader.pools, self.leader.caps, world.health, world.now, world.tokens
        )
        assert not plan, f"planning after committing is not empty: {plan}"

    @rule()
    def begun(self) -> None:
        """Hosts and outbox record their sends."""
        self.leader.begun()
        for row in self.rows(ProvisionState.REQUESTED):
            if row.backend == "event":
                _mark_sent(self.world, row.agent_id)

    @rule(number=st.integers(0, 9), boot=st.sampled_from(("one", "two")))
    def register(self, number: int, boot: str) -> None:
        """An agent redeems its claim with a key of its own; which one wins is never changed again."""
        rows = [row for row in self.rows() if row.sent_at is not None]
        if not rows:
            return
        row = rows[number % len(rows)]
        key = f"key-{row.agent_id}-{boot}"
        claim = self.world.read(provisions_rows.sealed_claim, row.agent_id)
        code = self.leader.sealer.open(claim, row.agent_id).reveal() if claim is not None else "none"
        answer = self.world.hello(row.agent_id, key=key, claim=code, boot=boot)
        if isinstance(answer, Registered):
            assert self.keys.setdefault(row.agent_id, key) == key, "two agents won one claim"

    @rule(number=st.integers(0, 9))
    def disconnect(self, number: int) -> None:
        found = [row for row in self.world.read(agents.live) if row.state is AgentState.ONLINE]
        if found:
            row = found[number % len(found)]
            self.world.write(agents.disconnect, row.id, row.session)

    @rule(number=st.integers(0, 9))
    def fail(self, number: int) -> None:
        row = self.pick(number, ProvisionState.REQUESTED)
        if row is not None:
            self.world.write(_record_failed, row.agent_id, "no such image", self.leader.caps.backoff)

    @rule(number=st.integers(0, 9))
    def end(self, number: int) -> None:
        row = self.pick(number, ProvisionState.REQUESTED, ProvisionState.ACTIVE)
        if row is not None:
            ending = Ending(agent_id=row.agent_id, detail="exit 1")
            self.world.write(_settle_ending, ending, Wake(), self.leader.caps.backoff, blamed=True)

    @rule(number=st.integers(0, 9))
    def give_and_finish(self, number: int) -> None:
        """A queued job runs to its end on an idle agent."""
        queued = [job for run in self.runs for job in self.world.jobs(run).values() if job.state == "queued"]
        idle = [
            row
            for row in self.world.read(agents.live)
            if row.state is AgentState.ONLINE and row.cordon_reason is None and row.assignment is None
        ]
        if queued and idle:
            job, agent = queued[number % len(queued)], idle[number % len(idle)]
            if self.world.offer(job, agent.id) is not None:
                attempt = self.world.only(job.run_id).attempt
                self.world.accept(job.id, attempt, agent.id)
                self.world.finish(job, attempt=attempt, agent_id=agent.id)

    @rule(number=st.integers(0, 9))
    def cancel(self, number: int) -> None:
        if self.runs:
            with contextlib.suppress(Refused):  # one that has ended
                self.world.cancel(self.runs[number % len(self.runs)])

    @rule(number=st.integers(0, 9))
    def gone(self, number: int) -> None:
        row = self.pick(number, ProvisionState.RELEASING)
        if row is not None:
            self.world.write(_record_gone, row.agent_id)

    @rule(number=st.integers(0, 9), then=st.sampled_from(("stay", "retry", "forget")))
    def abandon(self, number: int, then: str) -> None:
        row = self.pick(number, ProvisionState.RELEASING)
        if row is None:
            return
        self.world.write(provisions_rows.advance, row, ProvisionEvent.EXHAUSTED)
        if then == "retry":
            self.world.write(ledger.retry, row.agent_id, "tok")
            self.seen[row.agent_id] = ProvisionState.ABANDONED
        elif then == "forget":
            self.world.write(ledger.forget, row.agent_id, "tok")

    @rule(number=st.integers(0, 9))
    def reappear(self, number: int) -> None:
        row = self.pick(number, ProvisionState.GONE, ProvisionState.ABANDONED)
        if row is not None:
            self.world.write(provisions_rows.advance, row, ProvisionEvent.REAPPEARED, gone_at=None)

    @rule()
    def restart(self) -> None:
        self.leader.begin()

    @rule(caps=st.sampled_from(CAPS), shapes=st.tuples(SHAPES, SHAPES, SHAPES), some=st.integers(1, 3))
    def configure(self, caps: Caps, shapes: tuple[dict[str, object], ...], some: int) -> None:
        self.leader.caps, self.leader.pools = caps, _pools(shapes)[:some]

    # --- what must hold ---

    def within_caps(self, made: list[Provision]) -> None:
        """Of what this pass made nothing is above a cap, counted by hand from the rows."""
        caps, by_name = self.leader.caps, {each.name: each for each in self.leader.pools}
        live = [row for row in self.rows() if row.state is not ProvisionState.GONE]
        slots = [row for row in live if not (row.backend == "event" and row.state is ProvisionState.ABANDONED)]
        if made:
            assert len(slots) <= caps.max_agents
            creating = [row for row in live if row.state is ProvisionState.REQUESTED and row.failed_at is None]
            assert len(creating) <= caps.concurrent_creates
            health = {row.pool: row for row in self.world.read(pool_health_rows.every)}
            assert not {row.pool for row in made} & set(close(self.leader.pools, health, self.world.clock.now()))
        if any(row.cpu for row in made):
            assert caps.max_cpu is None or sum(row.cpu or 0 for row in live) <= caps.max_cpu + 1e-9
        if any(row.memory for row in made):
            assert caps.max_memory is None or sum(row.memory or 0 for row in live) <= caps.max_memory
        if any(row.cost_per_hour for row in made):
            spent = sum(row.cost_per_hour for row in live)
            assert caps.max_cost_per_hour is None or spent <= caps.max_cost_per_hour + 1e-9
        for name, count in Counter(row.pool for row in made).items():
            own = by_name[name]
            assert sum(1 for row in slots if row.pool == name) <= own.max_agents, count
            if own.max_cpu is not None and own.cpu:
                assert sum(row.cpu or 0 for row in live if row.pool == name) <= own.max_cpu + 1e-9
        for machine in caps.machines:
            if any(row.machine == machine.name and row.cpu for row in made):
                used = sum(row.cpu or 0 for row in live if row.machine == machine.name)
                assert machine.max_cpu is None or used <= machine.max_cpu + 1e-9

    @invariant()
    def whatever_happened(self) -> None:
        """In this order: what is counted in one is looked at in the next."""
        self.one_state_that_moves_along_its_machine()
        self.a_claim_binds_one_key()
        self.a_provisioner_is_told_of_every_end()

    def one_state_that_moves_along_its_machine(self) -> None:
        rows = self.rows()
        assert len({row.agent_id for row in rows}) == len(rows)
        for row in rows:
            agent = self.world.agent(row.agent_id)
            if row.state is ProvisionState.RELEASING:
                assert agent.assignment is None, "what is being ended has no job"
                self.ended[row.agent_id] += self.seen.get(row.agent_id) is not ProvisionState.RELEASING
            if row.state is ProvisionState.GONE:
                assert row.gone_at is not None
                assert self.world.read(provisions_rows.sealed_claim, row.agent_id) is None
        assert set(self.seen) <= {row.agent_id for row in rows}, "no record is lost"
        self.seen = {row.agent_id: row.state for row in rows}

    def a_claim_binds_one_key(self) -> None:
        for agent_id, key in self.keys.items():
            assert self.world.agent(agent_id).key_digest == digest(key)

    def a_provisioner_is_told_of_every_end(self) -> None:
        for row in self.rows():
            if row.backend != "event":
                continue
            events = self.world.read(deliveries.of_agent, row.agent_id)
            assert [event.sequence for event in events] == list(range(1, row.sequence + 1))
            downs = sum(event.kind is EventKind.SCALE_DOWN for event in events)
            assert downs == self.ended[row.agent_id], "told each time it starts to end, and no other time"
            if row.state in (ProvisionState.RELEASING, ProvisionState.ABANDONED):
                assert events[-1].kind is EventKind.SCALE_DOWN
            if row.state is ProvisionState.GONE and len(events) == 1:
                assert events[0].state is DeliveryState.DROPPED, "nothing was ever asked for"
            if row.state is ProvisionState.REQUESTED:
                assert events[-1].kind is EventKind.SCALE_UP

    # --- parts ---

    def rows(self, state: ProvisionState | None = None) -> list[Provision]:
        ids = self.world.read(lambda c: tuple(c.execute(provisions_table.select()).scalars()))
        found = sorted(self.world.read(provisions_rows.some, ids), key=lambda row: (row.requested_at, row.agent_id))
        return [row for row in found if state is None or row.state is state]

    def pick(self, number: int, *states: ProvisionState) -> Provision | None:
        found = [row for row in self.rows() if row.state in states]
        return found[number % len(found)] if found else None


def _pools(shapes: tuple[dict[str, object], ...]) -> tuple[Pool, ...]:
    made = (pool("p", "linux", **shapes[0]), event_pool("e", "mac", **shapes[1]), pool("q", "linux big", **shapes[2]))  # type: ignore[arg-type]
    return made


def _mark_sent(world: World, agent_id: AgentId) -> None:
    if world.read(deliveries.unsent, agent_id):
        mark_sent(world, agent_id)


Interleavings.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestInterleavings = Interleavings.TestCase
