# SPDX-License-Identifier: Apache-2.0
"""How a run goes on, against a second, plain evaluator and a tiny world that applies plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hypothesis import event, given, settings
from hypothesis import strategies as st

from corral.decide import progress
from corral.decide.progress import JobFacts, RunPlan
from corral.model.errors import PermanentError
from corral.model.ids import JobId
from corral.model.spec import JobSpec, NeedResult, NeedSpec, NeedWhen, Reason, Result
from corral.model.states import JOB, RUN, JobEvent, JobState, RunEvent, RunState

ENDS = (JobEvent.SUCCEED, JobEvent.FAIL, JobEvent.END_CANCELLED)


def condition(job: JobFacts, needs: Mapping[str, NeedResult]) -> bool:
    """Stands for the expression language: the text says what it gives."""
    if job.spec.condition == "broken":
        raise PermanentError("it cannot be evaluated")
    return job.spec.condition == "true"


@dataclass(frozen=True, kw_only=True)
class World:
    run: RunState
    jobs: tuple[JobFacts, ...]
    cancelled: Reason = Reason.NONE
    end: RunPlan | None = None

    def plan(self) -> RunPlan:
        return progress.plan(self.run, self.jobs, condition, cancelled=self.cancelled)

    def apply(self, plan: RunPlan) -> World:
        moves: dict[JobId, tuple[JobEvent, str]] = {}
        moves |= dict.fromkeys(plan.ready, (JobEvent.READY, ""))
        moves |= {skip.job_id: (JobEvent.SKIP, skip.reason) for skip in plan.skip}
        moves |= {skip.job_id: (JobEvent.FAIL, skip.reason) for skip in plan.fail}
        moves |= dict.fromkeys(plan.cancel_waiting, (JobEvent.END_CANCELLED, ""))
        moves |= dict.fromkeys(plan.cancel_placed, (JobEvent.CANCEL, ""))
        named = [*plan.ready, *plan.skip, *plan.fail, *plan.cancel_waiting, *plan.cancel_placed]
        assert len(moves) == len(named), "a job is named at most once in a plan"
        world = self
        for job, (happening, reason) in moves.items():
            world = world.move(job, happening, reason)
        if plan.end is not None:
            assert not moves
            world = replace(world, run=RUN.advance(world.run, plan.end), end=plan)
        return world

    def move(self, job_id: JobId, happening: JobEvent, reason: str = "") -> World:
        """:raises AssertionError: the plan asked for something that changes nothing."""
        moved = []
        for job in self.jobs:
            if job.id == job_id:
                assert JOB.changes(job.state, happening), f"{happening} changes nothing in {job.state}"
                job = replace(job, state=JOB.advance(job.state, happening), reason=reason or job.reason)
            moved.append(job)
        return replace(self, jobs=tuple(moved))

    def settle(self) -> World:
        """Carry plans out until nothing follows."""
        world = self
        for _ in range(100):
            plan = world.plan()
            if not plan:
                return world
            world = world.apply(plan)
        raise AssertionError("it never comes to rest")

    def cancel(self, reason: Reason = Reason.CANCELLED) -> World:
        return replace(self, run=RUN.advance(self.run, RunEvent.CANCEL), cancelled=reason)

    def states(self) -> dict[str, str]:
        return {job.id: str(job.state) for job in self.jobs}


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Up to five jobs, each may need earlier ones, some with combinations."""
    jobs: list[JobFacts] = []
    names: list[str] = []
    for index in range(draw(st.sampled_from(range(1, 6)))):
        chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=2)) if names else []
        size = draw(st.sampled_from((1, 1, 2, 3)))
        spec = JobSpec(
            name=f"j{index}",
            steps=(),
            needs=tuple(NeedSpec(job=name, when=draw(st.sampled_from(NeedWhen))) for name in chosen),
            condition=draw(st.sampled_from(("", "", "", "true", "false", "broken"))),
            max_parallel=draw(st.sampled_from((None, None, 1, 2))),
            fail_fast=draw(st.booleans()),
            continue_on_error=draw(st.sampled_from((False, False, True))),
        )
        names.append(spec.name)
        for number in range(size):
            matrix = {"n": number} if size > 1 else {}
            jobs.append(
                JobFacts(
                    id=JobId(f"{spec.name}.{number}"),
                    base=spec.name,
                    state=JOB.initial,
                    spec=spec,
                    matrix=matrix,
                    outputs={},
                )
            )
    return World(run=RunState.QUEUED, jobs=tuple(jobs))


# --- the second evaluator ----------------------------------------------------------------------------------


def came_to(members: list[JobFacts]) -> str:
    """What all combinations of a job came to, as its dependents see it."""
    seen = ["succeeded" if m.state == "failed" and m.spec.continue_on_error else str(m.state) for m in members]
    return next((word for word in ("failed", "cancelled", "succeeded") if word in seen), "skipped")


def verdict(world: World, job: JobFacts) -> str:
    """wait | run | skip | fail: of one waiting job, by the words of the documentation."""
    by_base: dict[str, list[JobFacts]] = {}
    for other in world.jobs:
        by_base.setdefault(other.base, []).append(other)
    upstream = [by_base[need.job] for need in job.spec.needs]
    if any(member.state not in JOB.terminal for members in upstream for member in members):
        return "wait"
    for need, members in zip(job.spec.needs, upstream, strict=True):
        wanted = {"success": "succeeded", "failure": "failed"}.get(need.when)
        if wanted is not None and came_to(members) != wanted:
            return "skip"
    return {"": "run", "true": "run", "false": "skip", "broken": "fail"}[job.spec.condition]


def occupying(world: World, base: str) -> int:
    idle = (*JOB.terminal, JobState.WAITING)
    return sum(1 for job in world.jobs if job.base == base and job.state not in idle)


def walk(data: st.DataObject, world: World, *, cancels: bool) -> list[World]:
    """A whole history: plans carried out, then one job ends or moves on its own, until the run has ended."""
    history = [world]
    for _ in range(200):
        world = world.settle()
        history.append(world)
        if world.run in RUN.terminal:
            return history
        if cancels and world.cancelled is Reason.NONE and data.draw(st.integers(0, 9)) == 9:
            world = world.cancel(data.draw(st.sampled_from((Reason.CANCELLED, Reason.RUN_TIMEOUT))))
            continue
        live = [job for job in world.jobs if job.state not in JOB.terminal and job.state is not JobState.WAITING]
        assert live, f"nothing can happen any more and the run has not ended: {world.states()}"
        job = data.draw(st.sampled_from(live))
        steps = [e for e in (*ENDS, JobEvent.OFFER, JobEvent.START) if JOB.changes(job.state, e)]
        if job.state is JobState.QUEUED:
            steps = [JobEvent.OFFER, JobEvent.FAIL]
        world = world.move(job.id, data.draw(st.sampled_from(steps)))
        history.append(world)
    raise AssertionError("the run never ends")


@given(worlds(), st.data())
@settings(max_examples=60)
def test_every_run_ends_once_its_jobs_end(world: World, data: st.DataObject) -> None:
    last = walk(data, world, cancels=True)[-1]
    event(f"ended: {last.run}")
    assert all(job.state in JOB.terminal for job in last.jobs)
    assert last.plan() == RunPlan(), "an ended run wants nothing"


@given(worlds(), st.data())
@settings(max_examples=60)
def test_each_plan_says_what_the_plain_evaluator_says(world: World, data: st.DataObject) -> None:
    for state in walk(data, world, cancels=False):
        plan = state.plan()
        doomed = set(plan.cancel_waiting)
        skipped = {skip.job_id for skip in plan.skip}
        failed = {skip.job_id for skip in plan.fail}
        free = {
            base: (limit - occupying(state, base)) if (limit := spec.max_parallel) is not None else len(state.jobs)
            for base, spec in {job.base: job.spec for job in state.jobs}.items()
        }
        for job in state.jobs:
            if job.state is not JobState.WAITING or job.id in doomed:
                assert job.id not in {*plan.ready, *skipped, *failed}
                continue
            says = verdict(state, job)
            held_back = says == "run" and free[job.base] <= 0
            if says == "run":
                free[job.base] -= 1
            assert (job.id in skipped) == (says == "skip")
            assert (job.id in failed) == (says == "fail")
            assert (job.id in plan.ready) == (says == "run" and not held_back)


@given(worlds(), st.data())
@settings(max_examples=60)
def test_limits_hold_all_along(world: World, data: st.DataObject) -> None:
    for state in walk(data, world, cancels=True):
        for job in state.jobs:
            if job.spec.max_parallel is not None:
                assert occupying(state, job.base) <= job.spec.max_parallel


@given(worlds(), st.data())
@settings(max_examples=60)
def test_how_a_run_ends(world: World, data: st.DataObject) -> None:
    last = walk(data, world, cancels=True)[-1]
    assert last.end is not None
    stopped = [job for job in last.jobs if job.state is JobState.CANCELLED]
    red = [job for job in last.jobs if job.state is JobState.FAILED and not job.spec.continue_on_error]
    if last.cancelled is not Reason.NONE and stopped:
        expected = RunState.FAILED if last.cancelled is Reason.RUN_TIMEOUT else RunState.CANCELLED
        assert (last.run, last.end.reason) == (expected, last.cancelled)
    else:
        assert last.run is (RunState.FAILED if red or stopped else RunState.SUCCEEDED)


@given(worlds(), st.data())
@settings(max_examples=60)
def test_cancelling_leaves_nothing_that_could_start(world: World, data: st.DataObject) -> None:
    history = walk(data, world, cancels=False)
    state = data.draw(st.sampled_from(history))
    if state.run in RUN.terminal:
        return
    after = state.cancel().settle()
    assert {job.state for job in after.jobs} <= {*JOB.terminal, JobState.CANCELLING}


# --- single facts ------------------------------------------------------------------------------------------


def jobs(*specs: JobSpec, combinations: int = 1) -> World:
    facts = [
        JobFacts(
            id=JobId(f"{spec.name}.{n}" if combinations > 1 else spec.name),
            base=spec.name,
            state=JOB.initial,
            spec=spec,
            matrix={"n": n} if combinations > 1 else {},
            outputs={},
        )
        for spec in specs
        for n in range(combinations)
    ]
    return World(run=RunState.QUEUED, jobs=tuple(facts)).settle()


def a_job(name: str, needs: str = "", when: NeedWhen = NeedWhen.SUCCESS, **more: object) -> JobSpec:
    wanted = tuple(NeedSpec(job=need, when=when) for need in needs.split())
    return JobSpec(name=name, steps=(), needs=wanted, **more)  # type: ignore[arg-type]


def ended(world: World, job: str, how: JobEvent) -> World:
    """The job is placed, runs, and ends so."""
    identity = JobId(job)
    for happening in (JobEvent.OFFER, JobEvent.START, how):
        world = world.move(identity, happening)
    return world.settle()


def test_needs_with_success() -> None:
    world = jobs(a_job("a"), a_job("b", "a"), a_job("c", "b"))
    assert world.states() == {"a": "queued", "b": "waiting", "c": "waiting"}
    assert ended(world, "a", JobEvent.SUCCEED).states()["b"] == "queued"
    failed = ended(world, "a", JobEvent.FAIL)
    assert failed.states() == {"a": "failed", "b": "skipped", "c": "skipped"}
    assert failed.run is RunState.FAILED


def test_needs_with_failure_and_always() -> None:
    world = jobs(a_job("a"), a_job("mend", "a", NeedWhen.FAILURE), a_job("report", "a", NeedWhen.ALWAYS))
    assert ended(world, "a", JobEvent.FAIL).states() == {"a": "failed", "mend": "queued", "report": "queued"}
    assert ended(world, "a", JobEvent.SUCCEED).states() == {"a": "succeeded", "mend": "skipped", "report": "queued"}


def test_a_need_that_was_skipped_satisfies_only_always() -> None:
    world = jobs(a_job("a"), a_job("b", "a", NeedWhen.FAILURE), a_job("c", "b"), a_job("d", "b", NeedWhen.ALWAYS))
    assert ended(world, "a", JobEvent.SUCCEED).states() == {
        "a": "succeeded",
        "b": "skipped",
        "c": "skipped",
        "d": "queued",
    }


def test_continue_on_error_counts_as_success_downstream_and_for_the_run() -> None:
    world = ended(jobs(a_job("a", continue_on_error=True), a_job("b", "a")), "a", JobEvent.FAIL)
    assert world.states() == {"a": "failed", "b": "queued"}
    assert ended(world, "b", JobEvent.SUCCEED).run is RunState.SUCCEEDED


def test_max_parallel_lets_the_next_in_as_one_ends() -> None:
    world = jobs(a_job("m", max_parallel=2), combinations=3)
    assert world.states() == {"m.0": "queued", "m.1": "queued", "m.2": "waiting"}
    assert ended(world, "m.1", JobEvent.FAIL).states()["m.2"] == "queued"


def test_fail_fast_stops_the_siblings_and_only_them() -> None:
    quick = a_job("m", fail_fast=True, max_parallel=2)
    world = jobs(quick, a_job("other"), combinations=3)
    running = world.move(JobId("m.1"), JobEvent.OFFER).move(JobId("m.1"), JobEvent.START)
    states = ended(running, "m.0", JobEvent.FAIL).states()
    assert (states["m.1"], states["m.2"]) == ("cancelling", "cancelled")
    assert all(states[f"other.{n}"] == "queued" for n in range(3))


def test_a_condition_that_cannot_be_evaluated_fails_the_job_with_the_cause() -> None:
    (skip,) = World(run=RunState.QUEUED, jobs=(facts("a", condition="broken"),)).plan().fail
    assert (skip.reason, skip.detail) == (Reason.EXPRESSION_FAILED, "it cannot be evaluated")


def facts(name: str, state: JobState = JobState.WAITING, **more: object) -> JobFacts:
    matrix, outputs = more.pop("matrix", {}), more.pop("outputs", {})
    return JobFacts(
        id=JobId(name),
        base="j",
        state=state,
        spec=a_job("j", **more),
        matrix=matrix,
        outputs=outputs,  # type: ignore[arg-type]
    )


def test_a_matrix_as_its_dependents_see_it() -> None:
    members = [
        facts("a", JobState.SUCCEEDED, matrix={"n": 1}, outputs={"x": "1", "y": "1"}),
        facts("b", JobState.SUCCEEDED, matrix={"n": 2}, outputs={"x": "2"}),
    ]
    result = progress.need_result(members)
    assert (result.result, result.outputs) == (Result.SUCCEEDED, {"x": "2", "y": "1"})
    assert [(c.matrix, c.outputs["x"]) for c in result.combinations] == [({"n": 1}, "1"), ({"n": 2}, "2")]
    assert progress.need_result([members[0], facts("c", JobState.SKIPPED)]).result is Result.SUCCEEDED
    assert progress.need_result([members[0], facts("c", JobState.CANCELLED)]).result is Result.CANCELLED
    assert progress.need_result([facts("c", JobState.CANCELLED), facts("d", JobState.FAILED)]).result is Result.FAILED
    assert progress.need_result([facts("c", JobState.SKIPPED)]).result is Result.SKIPPED


def test_cancelled_too_late_is_what_it_was() -> None:
    world = jobs(a_job("a")).move(JobId("a"), JobEvent.OFFER).move(JobId("a"), JobEvent.START)
    stopping = world.cancel().settle()
    assert stopping.states() == {"a": "cancelling"}
    done = stopping.move(JobId("a"), JobEvent.SUCCEED).settle()
    assert (done.run, done.end and done.end.reason) == (RunState.SUCCEEDED, Reason.NONE)
    stopped = stopping.move(JobId("a"), JobEvent.END_CANCELLED).settle()
    assert (stopped.run, stopped.end and stopped.end.reason) == (RunState.CANCELLED, Reason.CANCELLED)


def test_the_run_names_the_jobs_it_failed_by() -> None:
    world = jobs(a_job("b"), a_job("a"))
    world = world.move(JobId("b"), JobEvent.FAIL, Reason.QUEUE_TIMEOUT).settle()
    world = world.move(JobId("a"), JobEvent.FAIL, Reason.UNROUTABLE).settle()
    assert world.end is not None
    assert (world.end.end, world.end.reason, world.end.detail) == (RunEvent.FAIL, Reason.QUEUE_TIMEOUT, "a, b")
