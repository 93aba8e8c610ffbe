# SPDX-License-Identifier: Apache-2.0
"""Admission over real SQL: every cap counted in the transaction that writes, each creation by itself."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import Connection, select

from corral.control import admission, queries, scaler
from corral.control.host import enforced
from corral.decide.scaling import NotDone, Refusal, Release, ReleaseReason
from corral.model.errors import Conflict, CorralError
from corral.model.events import EventKind
from corral.model.ids import AgentId
from corral.model.pools import Backoff, Caps, Machine
from corral.model.records import Provision
from corral.model.spec import Resources
from corral.model.states import AgentState, DeliveryState, JobState, ProvisionEvent, ProvisionState
from corral.store.repo import agents, jobs
from corral.store.repo import claims as claims_rows
from corral.store.repo import pool_health as pool_health_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.tables import deliveries as deliveries_table
from corral.store.tables import jobs as jobs_table
from corral.store.tables import runs as runs_table
from tests.control.leading import TARGET, Leader, creation, event_pool, mark_sent, pool
from tests.control.worlds import COORDINATOR, World
from tests.store.databases import a_spec

GIB = 1024**3


def events(connection: Connection) -> list[tuple[str, int, EventKind, DeliveryState]]:
    table = deliveries_table
    query = select(table.c.agent_id, table.c.sequence, table.c.kind, table.c.state)
    return [tuple(row) for row in connection.execute(query.order_by(table.c.agent_id, table.c.sequence))]


def provisioning(connection: Connection, run_id: str) -> None:
    connection.execute(runs_table.update().where(runs_table.c.id == run_id).values(provisioning=True))
    connection.execute(jobs_table.update().where(jobs_table.c.run_id == run_id).values(provisioning=True))


def reason(refused: Refusal | None) -> NotDone | None:
    return refused.reason if refused is not None else None


# --- every cap ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "caps", "why"),
    [
        ({"max_cpu": 3.0}, {}, NotDone.AT_CPU_CAP),
        ({"max_memory": 3 * GIB}, {}, NotDone.AT_MEMORY_CAP),
        ({}, {"max_cpu": 3.0}, NotDone.AT_CPU_CAP),
        ({}, {"max_memory": 3 * GIB}, NotDone.AT_MEMORY_CAP),
        ({}, {"max_cost_per_hour": 1.5}, NotDone.AT_SPEND_CAP),
        ({"machine": "m"}, {"machines": (Machine(name="m", max_cpu=3.0),)}, NotDone.AT_MACHINE_CAP),
        ({"machine": "m"}, {"machines": (Machine(name="m", max_memory=3 * GIB),)}, NotDone.AT_MACHINE_CAP),
        ({}, {"creates_per_second": 0.1, "creates_burst": 1}, NotDone.AT_RATE),
    ],
)
def test_each_cap_is_counted_again_in_the_transaction(
    world: World, own: dict[str, object], caps: dict[str, object], why: NotDone
) -> None:
    leader = Leader(world, pool(most=9, cost_per_hour=1.0, **own), caps=Caps(**caps))  # type: ignore[arg-type]
    wanted = creation(cpu=2.0, memory=2 * GIB)
    assert leader.admit(wanted, "agent_a") is None
    assert reason(leader.admit(wanted, "agent_b")) is why
    row = world.provision("agent_a")
    assert (row.cpu, row.memory, row.cost_per_hour, row.machine) == (2.0, 2 * GIB, 1.0, str(own.get("machine", "")))
    assert (row.cause, row.job_id, row.state) == ("warm", None, ProvisionState.REQUESTED)


def test_d1_two_at_the_same_time_are_let_in_once(world: World) -> None:
    """D1: cap 1, two transactions of one group: the second counts what the first wrote."""
    leader = Leader(world, pool(most=1))

    async def both() -> list[tuple[Refusal | None, ...]]:
        requests = [leader.request(creation(), name) for name in ("agent_a", "agent_b")]
        writes = [
            world.database.write(lambda c, one=one: admission.admit(c, leader.term, [one], leader.caps))  # type: ignore[misc]
            for one in requests
        ]
        return await asyncio.gather(*writes)

    answers = world.runner.run(both())
    assert [reason(answer[0]) for answer in answers] == [None, NotDone.AT_POOL_MAX]


def test_one_refusal_undoes_no_other(world: World) -> None:
    leader = Leader(world, pool("p", most=1), pool("q", "mac", most=1))
    wanted = [("p", "agent_a"), ("p", "agent_b"), ("q", "agent_c")]
    requests = [leader.request(creation(pool=name), agent) for name, agent in wanted]
    answers = world.write(admission.admit, leader.term, requests, leader.caps)
    assert [reason(answer) for answer in answers] == [None, NotDone.AT_POOL_MAX, None]
    assert {row.agent_id for row in leader.live()} == {"agent_a", "agent_c"}
    assert world.read(agents.get, AgentId("agent_b")) is None
    assert world.read(claims_rows.owner, "code-agent_b") is None


def test_the_bucket_fills_by_the_databases_clock(world: World) -> None:
    leader = Leader(world, pool(most=99), caps=Caps(creates_per_second=0.5, creates_burst=2))
    made = [reason(leader.admit(creation(), f"agent_{n}")) for n in range(3)]
    assert made == [None, None, NotDone.AT_RATE]
    world.clock.pass_time(1.9)
    assert reason(leader.admit(creation(), "agent_3")) is NotDone.AT_RATE
    world.clock.pass_time(0.2)
    assert reason(leader.admit(creation(), "agent_4")) is None
    world.clock.pass_time(3600)
    more = [reason(leader.admit(creation(), f"agent_x{n}")) for n in range(3)]
    assert more == [None, None, NotDone.AT_RATE], "it never holds more than its burst"


def test_a_refused_creation_takes_nothing_from_the_rate(world: World) -> None:
    leader = Leader(world, pool(most=1), caps=Caps(creates_per_second=1.0, creates_burst=2))
    leader.admit(creation(), "agent_a")
    leader.admit(creation(), "agent_b")
    assert world.read(admission.tokens, leader.caps) == 1.0


def test_q1_a_job_that_does_not_wait_any_more_gets_nothing(world: World) -> None:
    """Q1, D12: the plan was made from a look; by now the job has an agent, or has ended."""
    leader = Leader(world, pool(most=9))
    world.agent_up()
    job = world.only(world.start())
    world.offer(job)
    assert reason(leader.admit(creation(job.id), "agent_a")) is NotDone.NOT_WAITING
    other = world.start()
    world.cancel(other)
    assert reason(leader.admit(creation(world.only(other).id), "agent_b")) is NotDone.NOT_WAITING
    assert len(leader.live()) == 1


def test_p3_creates_per_job_are_counted_in_the_transaction(world: World) -> None:
    """P3: churn has a breaker."""
    leader = Leader(world, pool(most=9), caps=Caps(creates_per_job=2))
    job = world.only(world.start())
    made = [reason(leader.admit(creation(job.id), f"agent_{n}")) for n in range(3)]
    assert made == [None, None, NotDone.CREATES_EXHAUSTED]
    assert world.only(job.run_id).creates == 2


def test_a_pool_that_backs_off_drains_or_leaks_is_refused_too(world: World) -> None:
    leader = Leader(world, event_pool(most=3))
    world.write(pool_health_rows.failed, "p", "no such image", 30_000_000)
    assert reason(leader.admit(creation(), "agent_a")) is NotDone.BACKING_OFF
    world.clock.pass_time(30)
    assert leader.admit(creation(), "agent_a") is None
    world.write(scaler.let_go, leader.term, _spent("agent_a"), sent(world, "agent_a"), Backoff())
    world.write(provisions_rows.advance, world.provision("agent_a"), ProvisionEvent.EXHAUSTED)
    assert reason(leader.admit(creation(), "agent_b")) is NotDone.LEAKING
    leader.pools = (event_pool(most=3, draining=True),)
    assert reason(leader.admit(creation(), "agent_b")) is NotDone.DRAINING


def test_l10_an_abandoned_event_row_frees_its_slot_and_keeps_its_money(world: World) -> None:
    """L10, L20."""
    leader = Leader(world, event_pool(most=20, cost_per_hour=1.0), caps=Caps(max_agents=1))
    leader.admit(creation(), "agent_a")
    world.write(provisions_rows.advance, sent(world, "agent_a"), ProvisionEvent.RELEASE)
    world.write(provisions_rows.advance, world.provision("agent_a"), ProvisionEvent.EXHAUSTED)
    leader.caps = Caps(max_agents=1, max_cost_per_hour=1.5)
    assert reason(leader.admit(creation(), "agent_b")) is NotDone.AT_SPEND_CAP
    leader.caps = Caps(max_agents=1)
    assert leader.admit(creation(), "agent_b") is None


def test_rows_that_return_from_gone_count_and_may_exceed_a_cap(world: World) -> None:
    leader = Leader(world, pool(most=1))
    leader.admit(creation(), "agent_a")
    for event in (ProvisionEvent.RELEASE, ProvisionEvent.GONE):
        world.write(provisions_rows.advance, world.provision("agent_a"), event)
    assert leader.admit(creation(), "agent_b") is None
    world.write(provisions_rows.advance, world.provision("agent_a"), ProvisionEvent.REAPPEARED, gone_at=None)
    assert world.read(provisions_rows.count_live) == 2
    assert reason(leader.admit(creation(), "agent_c")) is NotDone.AT_POOL_MAX
    leader.run()
    assert world.provision("agent_b").state is ProvisionState.REQUESTED, "and nothing is released for it"


# --- provisioning runs -------------------------------------------------------------------------------------


def test_instances_for_provisioning_runs_have_slots_of_their_own(world: World) -> None:
    leader = Leader(world, event_pool("e", "linux"), pool("p", "linux big", most=0), caps=Caps(max_agents=0))
    for _ in range(3):
        world.write(provisioning, world.start())
    leader.run()
    rows = leader.live()
    assert [(row.pool, row.provisioning, row.cause) for row in rows] == [("p", True, "job")] * 2
    reasons = [item.reason for item in leader.scaler.reasons.unplaced.values()]
    assert reasons == [NotDone.AT_PROVISIONER_SLOTS]
    leader.caps = Caps(max_agents=1)
    leader.pools = (pool("p", "linux big", most=1),)
    world.start()
    leader.run()
    assert [row.provisioning for row in leader.live()] == [True, True, False], "they take no slot of the others"


# --- event pools -------------------------------------------------------------------------------------------


def test_an_event_pools_provision_commits_with_its_event(world: World) -> None:
    leader = Leader(world, event_pool())
    job = world.only(world.start())
    leader.run()
    (row,) = leader.live()
    assert (row.backend, row.host_id, row.job_id, row.owner_id) == ("event", None, job.id, COORDINATOR)
    assert (row.target, row.target_key) == (TARGET, "webhook:https://provisioner.example/events")
    assert world.read(events) == [(row.agent_id, 1, EventKind.SCALE_UP, DeliveryState.PENDING)]
    leader.run()
    assert len(world.read(events)) == 1, "one event for one instance, whatever the number of passes"


def test_l13_what_is_refused_leaves_no_event_and_no_row(world: World) -> None:
    """L13: checked and reserved before anything outside is touched."""
    leader = Leader(world, event_pool(most=0))
    leader.admit(creation(), "agent_a")
    assert (world.read(events), leader.live()) == ([], [])


def test_l12_a_store_that_fails_half_way_leaves_nothing_and_asks_for_nothing(world: World) -> None:
    """L12: without the row there is no event, so nothing outside is asked for."""
    leader = Leader(world, event_pool(most=9))
    leader.admit(creation(), "agent_a")
    request = leader.request(creation(), "agent_b")
    same_code = admission.Request(
        creation=request.creation,
        pool=request.pool,
        identity=request.identity,
        claim=leader.request(creation(), "agent_a").claim,
        sealed=b"sealed",
    )
    with pytest.raises(CorralError):
        world.write(admission.admit, leader.term, [same_code], leader.caps)
    assert [row.agent_id for row in leader.live()] == ["agent_a"]
    assert [event[0] for event in world.read(events)] == ["agent_a"]
    assert world.read(agents.get, AgentId("agent_b")) is None


def test_a_scale_down_follows_with_the_next_sequence_and_its_evidence(world: World) -> None:
    leader = Leader(world, event_pool())
    run_id = world.start()
    leader.run()
    (row,) = leader.live()
    sent(world, row.agent_id)
    world.cancel(run_id)
    leader.run()
    after = world.provision(row.agent_id)
    assert (after.state, after.release_reason, after.sequence) == (ProvisionState.RELEASING, "job-cancelled", 2)
    assert world.read(events)[1] == (row.agent_id, 2, EventKind.SCALE_DOWN, DeliveryState.PENDING)
    table = deliveries_table
    told = world.read(lambda c: c.execute(select(table.c.reason, table.c.evidence).where(table.c.sequence == 2)).one())
    assert told.reason == "job-cancelled"
    assert told.evidence["agent"] == "expected" and "requested_at" in told.evidence
    assert world.read(pool_health_rows.every) == (), "11.1.15: a cancelled job's instance is no failure"


def test_what_was_never_sent_is_gone_without_a_word(world: World) -> None:
    leader = Leader(world, event_pool())
    run_id = world.start()
    leader.run()
    (row,) = leader.live()
    world.cancel(run_id)
    leader.run()
    after = world.provision(row.agent_id)
    assert (after.state, after.release_reason, after.gone_at) == (
        ProvisionState.GONE,
        "job-cancelled",
        world.clock.now(),
    )
    assert world.read(events) == [(row.agent_id, 1, EventKind.SCALE_UP, DeliveryState.DROPPED)]
    assert world.agent(row.agent_id).state is AgentState.ENDED


def test_what_is_sent_meanwhile_is_not_taken_for_unsent(world: World) -> None:
    """The event is on its way although the provision's row does not say so yet: it cannot be gone."""
    leader = Leader(world, event_pool())
    leader.admit(creation(), "agent_a")
    mark_sent(world, "agent_a")
    with pytest.raises(Conflict):
        world.write(provisions_rows.advance, world.provision("agent_a"), ProvisionEvent.UNSENT)
    assert world.provision("agent_a").state is ProvisionState.REQUESTED


def test_every_way_into_releasing_tells_the_provisioner(world: World) -> None:
    leader = Leader(world, event_pool())
    leader.admit(creation(), "agent_a")
    steps = [
        ProvisionEvent.RELEASE,
        ProvisionEvent.EXHAUSTED,
        ProvisionEvent.RETRY,
        ProvisionEvent.GONE,
        ProvisionEvent.REAPPEARED,
        ProvisionEvent.EXHAUSTED,
        ProvisionEvent.REAPPEARED,
    ]
    for step in steps:
        assert world.write(provisions_rows.advance, world.provision("agent_a"), step)
    downs = [sequence for _, sequence, kind, _ in world.read(events) if kind is EventKind.SCALE_DOWN]
    assert downs == [2, 3, 4, 5]


def test_an_event_that_cannot_be_delivered_is_a_failure_of_its_pool(world: World) -> None:
    """Q6: no capacity, a failure with a pause that grows."""
    leader = Leader(world, event_pool())
    world.start()
    leader.run()
    world.clock.pass_time(599)
    leader.run()
    assert leader.live() and world.read(pool_health_rows.every) == ()
    world.clock.pass_time(1)
    leader.run()
    (health,) = world.read(pool_health_rows.every)
    assert (health.failures, health.last_error) == (1, "the provisioner could not be reached in time")
    assert leader.live() == []


# --- the scaler's passes -----------------------------------------------------------------------------------


def test_l3_a_restart_asks_with_the_same_identity(world: World) -> None:
    """L3, 11.1.5: what was asked for before the crash is what serves after it; nothing is asked for twice."""
    leader = Leader(world, event_pool())
    world.start()
    leader.run()
    before = leader.live()
    leader.begin()
    leader.run()
    assert leader.live() == before
    assert len(world.read(events)) == 1


def test_p5_a_warm_pool_is_filled_at_start_and_after_a_new_term(world: World) -> None:
    """P5, 11.1.3: and a start is no failure."""
    leader = Leader(world, event_pool(most=5, min_idle=2, cpu=1.0))
    leader.run()
    assert [(row.cause, row.cpu) for row in leader.live()] == [("warm", 1.0)] * 2
    assert world.read(pool_health_rows.every) == ()
    for row in leader.live():
        world.write(provisions_rows.advance, sent(world, row.agent_id), ProvisionEvent.RELEASE)
        world.write(provisions_rows.advance, world.provision(row.agent_id), ProvisionEvent.GONE)
    leader.begin()
    leader.run()
    assert len(leader.live()) == 2


def test_q3_an_edited_pool_with_warm_agents_still_serves(world: World) -> None:
    """Q3: nothing waits for the pool to be empty."""
    leader = Leader(world, pool(most=5, min_idle=1))
    leader.run()
    (row,) = leader.live()
    world.hello(row.agent_id, claim=leader.claim_of(row.agent_id))
    leader.pools = (pool(most=6, min_idle=2),)
    job = world.only(world.start())
    leader.run()
    assert job.id in leader.scaler.reasons.covered
    assert len(leader.live()) == 3, "one serves the job, two are to be warm"


def test_backing_off_doubles_only_for_what_was_asked_for_after_it_began(world: World) -> None:
    leader = Leader(world, pool(most=9), caps=Caps(backoff_base=10.0, backoff_max=25.0))
    pauses = []
    for number in range(3):
        leader.admit(creation(), f"agent_{number}")
        world.clock.pass_time(1)
        row = world.provision(f"agent_{number}")
        world.write(scaler.note_failure, row, "broken", leader.caps.backoff)
        (health,) = world.read(pool_health_rows.every)
        pauses.append(((health.backoff_until or 0) - world.clock.now()) // 1_000_000)
        world.write(scaler.note_failure, row, "again", leader.caps.backoff)
        assert world.read(pool_health_rows.every)[0].failures == number + 1
        world.clock.pass_time(60)
    assert pauses == [10, 20, 25]


def test_one_success_resets_it(world: World) -> None:
    leader = Leader(world, pool(most=9))
    leader.admit(creation(), "agent_a")
    world.write(pool_health_rows.failed, "p", "broken", 30_000_000)
    assert world.hello("agent_a", claim="code-agent_a").__class__.__name__ == "Registered"
    assert world.read(pool_health_rows.every) == ()


def test_11_1_2_a_queue_at_the_host_is_no_timeout(world: World) -> None:
    """11.1.2: the deadline counts from the first sending."""
    leader = Leader(world, pool(most=9))
    leader.admit(creation(), "agent_a")
    world.clock.pass_time(50)
    leader.begun(seconds=60)
    world.clock.pass_time(59)
    leader.run()
    assert world.provision("agent_a").state is ProvisionState.REQUESTED
    world.clock.pass_time(1)
    leader.run()
    assert world.provision("agent_a").release_reason == "spawn-timeout"


def test_q16_an_exhausted_job_says_why(world: World) -> None:
    """Q16: no instance came up, the tries are used up: the job ends with the cause."""
    leader = Leader(world, pool(most=9), caps=Caps(creates_per_job=1))
    run_id = world.start()
    leader.run()
    (row,) = leader.live()
    world.write(provisions_rows.write, row, failed_at=world.clock.now(), error="quota")
    world.write(scaler.note_failure, row, "quota", Backoff())
    world.clock.pass_time(40)
    leader.run()
    job = world.only(run_id)
    assert (job.state, job.detail.split(";")[1]) == (JobState.FAILED, " last error of pool p: quota")


def test_a_bound_agents_job_is_seen_however_many_wait_before_it(world: World) -> None:
    """Else its agent would seem free, and another job would be counted on it."""
    leader = Leader(world)
    for _ in range(2):
        world.start(*(a_spec(f"j{number}") for number in range(scaler.DEMAND_LIMIT // 2)))
    world.clock.pass_time(1)
    last = world.only(world.start())
    world.claim(job_id=last.id, run_id=last.run_id)
    seen = world.read(scaler.look, leader.pools, leader.caps)
    assert len(seen.demand) == scaler.DEMAND_LIMIT + 1
    assert seen.demand[-1].job_id == last.id == seen.supply[0].bound


def test_b1_a_provisions_labels_are_its_own(world: World) -> None:
    """B1: what the third is made with is what the first was made with."""
    leader = Leader(world, pool(most=9, labels="linux big", mandatory=frozenset({"big"})))
    world.start(*(a_spec(f"j{n}", runs_on=("linux", "big")) for n in range(3)))
    leader.run()
    assert {row.labels for row in leader.live()} == {frozenset({"linux", "big"})}
    assert {row.mandatory for row in leader.live()} == {frozenset({"big"})}


def test_b2_no_labels_fit_no_pool_but_the_default_one(world: World) -> None:
    """B2: empty labels do not match the first pool."""
    leader = Leader(world, pool("a", "linux"), pool("z", "mac", default=True))
    world.start(a_spec(runs_on=()))
    leader.run()
    assert [row.pool for row in leader.live()] == ["z"]


def test_a_jobs_own_resources_come_before_the_pools(world: World) -> None:
    leader = Leader(world, pool(most=9, cpu=1.0, memory=GIB, max_cpu=4.0))
    world.start(a_spec("a", resources=Resources(cpu=3.0)), a_spec("b"), a_spec("c"))
    leader.run()
    assert sorted((row.cpu, row.memory) for row in leader.live()) == [(1.0, GIB), (3.0, GIB)]


def test_a_lowered_cap_gives_back_idle_agents_and_no_busy_one(world: World) -> None:
    """D3."""
    leader = Leader(world, pool(most=3))
    for number in range(3):
        world.agent_up(f"agent_{number}", cause="warm")
    world.running(world.only(world.start()), "agent_0")
    leader.pools = (pool(most=1),)
    leader.run()
    states = {row.agent_id: (row.state, row.release_reason) for row in leader.live()}
    assert states["agent_0"] == (ProvisionState.ACTIVE, "")
    assert {states["agent_1"], states["agent_2"]} == {(ProvisionState.RELEASING, "cap-cut")}


def test_the_scalers_own_cordon_is_taken_back_at_a_cap(world: World) -> None:
    leader = Leader(world, pool(most=1))
    world.agent_up()
    world.write(agents.cordon, AgentId("agent_1"), "idle")
    job = world.only(world.start())
    leader.run()
    assert (world.agent().cordon_reason, world.provision().state) == (None, ProvisionState.ACTIVE)
    assert leader.scaler.reasons.covered == {job.id}
    world.write(agents.cordon, AgentId("agent_1"), "drain")
    with pytest.raises(Conflict):
        world.write(scaler.take_back, leader.term, AgentId("agent_1"))


# --- parts -------------------------------------------------------------------------------------------------


def _spent(agent_id: str) -> Release:
    return Release(agent_id=AgentId(agent_id), reason=ReleaseReason.OPERATOR)


def sent(world: World, agent_id: str) -> Provision:
    """The provision, its scale-up being on its way."""
    mark_sent(world, agent_id)
    deadline = world.clock.now() + 60_000_000
    world.write(provisions_rows.write, world.provision(agent_id), sent_at=world.clock.now(), deadline_at=deadline)
    return world.provision(agent_id)


@pytest.mark.parametrize(
    ("asked", "usual", "limit", "held_to"),
    [
        (2.0, 2.0, 4.0, 4.0),
        (2.0, 2.0, None, 2.0),
        (3.0, 2.0, 4.0, 3.0),
        (None, None, 4.0, 4.0),
        (None, None, None, None),
    ],
)
def test_caps_count_requests_and_the_kernel_holds_to_limits(
    asked: float | None, usual: float | None, limit: float | None, held_to: float | None
) -> None:
    assert enforced(asked, usual, limit) == held_to


def test_a_coordinator_that_stops_says_so(world: World) -> None:
    leader = Leader(world)
    job = world.only(world.start())
    leader.scaler.draining = True
    leader.run()
    assert leader.live() == []
    assert leader.why(job.id)[-1] == "it waits: this coordinator is stopping and makes no new instances"


def test_large_jobs_stand_in_no_small_ones_way(world: World) -> None:
    """An idle agent that is too small for the first hundred may be right for the next."""
    large = Resources(cpu=4.0)
    run_id = world.start(*(a_spec(f"large{n}", resources=large) for n in range(3)), a_spec("small"))
    heads = world.read(jobs.queued_heads, 1)
    assert {head.id for head in heads} == {world.jobs(run_id)[name].id for name in ("large0", "small")}


def test_a_pool_says_why_it_is_not_warm(world: World) -> None:
    leader = Leader(world, pool(most=1, min_idle=3))
    leader.run()
    (view,) = world.read(queries.pool_views, leader.pools, leader.scaler.reasons, {})
    assert view.waiting_reason == "2 warm agents are missing: pool p has its 1 agents"
