# SPDX-License-Identifier: Apache-2.0
"""Runs: created with every fault at once, run again, limited."""

from __future__ import annotations

import pytest

from corral.control import runs
from corral.control.settle import Wake
from corral.model.errors import Invalid, Refused
from corral.model.ids import JobId, RunId
from corral.model.spec import JOBS_LIMIT, GitSource, NeedSpec, NeedWhen, Reason, Resources, Result, SourceRef
from corral.model.states import JobState
from corral.model.views import NewRun
from corral.runtime.chance import SeededChance
from corral.store.repo import jobs
from tests.clocks import START
from tests.control.worlds import SECOND, World, new_run
from tests.store.databases import a_spec


def faults(new: NewRun) -> list[str]:
    with pytest.raises(Invalid) as caught:
        runs.check(new)
    return [str(fault) for fault in caught.value.faults]


def test_every_fault_at_once() -> None:
    build = a_spec("build", secrets=("TOKEN", "KEY"), file="ci.py", line=7)
    new = new_run(build, jobs=("nope", "build", "neither"), secrets={"KEY": "v"}, source=SourceRef(hash="h", size=-1))
    found = faults(new)
    assert len(found) == 4
    assert found[0] == "jobs[0]: no job 'nope' (there are: build)"
    assert found[1] == "jobs[2]: no job 'neither' (there are: build)"
    assert found[2] == (
        "ci.py:7: secrets.TOKEN: job 'build' needs the secret 'TOKEN' and it was not given (--secret TOKEN)"
    )
    assert found[3] == "source.size: is negative"


def test_an_unknown_workflow_names_those_there_are() -> None:
    assert faults(NewRun(lock=new_run().lock, workflow="x")) == ["workflow: no workflow 'x' (there are: w)"]


def test_only_the_secrets_of_the_chosen_jobs_are_asked_for() -> None:
    quiet, loud = a_spec("quiet"), a_spec("loud", secrets=("TOKEN",))
    assert runs.check(new_run(quiet, loud, jobs=("quiet",))).name == "w"
    assert len(faults(new_run(quiet, loud))) == 1
    assert faults(new_run(quiet, loud, jobs=("typo",))) == ["jobs[0]: no job 'typo' (there are: loud, quiet)"]


def test_a_secret_that_two_jobs_need_is_one_fault_each_with_its_place() -> None:
    found = faults(new_run(a_spec("a", secrets=("T",)), a_spec("b", secrets=("T",))))
    assert ["'a'" in found[0], "'b'" in found[1], len(found)] == [True, True, 2]


def test_the_number_of_jobs_is_bounded() -> None:
    many = tuple({"n": number} for number in range(256))
    specs = tuple(a_spec(f"j{number}", matrix=many) for number in range(JOBS_LIMIT // 256))
    assert runs.check(new_run(*specs)).name == "w"
    assert faults(new_run(*specs, a_spec("more"))) == [
        f"jobs: {JOBS_LIMIT + 1} jobs after matrix expansion; the limit is {JOBS_LIMIT}"
    ]


def test_chosen_jobs_come_with_all_they_need(world: World) -> None:
    run_id = world.start(
        a_spec("a"),
        a_spec("b", needs=(NeedSpec(job="a"),)),
        a_spec("c", needs=(NeedSpec(job="b"),)),
        a_spec("d"),
        jobs=("c",),
    )
    assert world.states(run_id) == {"a": "queued", "b": "waiting", "c": "waiting"}


def test_rows_as_the_author_meant_them(world: World) -> None:
    spec = a_spec(
        "test",
        matrix=({"py": "3.11", "os": "linux"}, {"py": "3.12", "os": "linux"}),
        runs_on=("Linux", " GPU "),
        excludes=("ARM64",),
        resources=Resources(cpu=2.0, memory=1024),
        max_parallel=1,
    )
    run_id = world.start(spec, title="a title")
    first, second = world.jobs(run_id).values()
    assert [first.name, second.name] == ["test (3.11, linux)", "test (3.12, linux)"]
    assert (first.labels, first.excludes) == ({"linux", "gpu"}, {"arm64"})
    assert (first.matrix, first.spec.matrix) == ({"py": "3.11", "os": "linux"}, ())
    assert [first.state, second.state] == [JobState.QUEUED, JobState.WAITING], "max_parallel"
    assert world.run(run_id).title == "a title"


def test_a_run_in_which_nothing_starts_ends_at_once(world: World) -> None:
    run_id = world.start(a_spec("a", condition="1 == 2"))
    assert world.states(run_id) == {"a": "skipped"}
    run = world.run(run_id)
    assert (run.state, run.jobs_finished, run.finished_at) == ("succeeded", 1, START)


def test_a_run_has_the_deadline_of_its_workflow(world: World) -> None:
    run_id = world.start(workflow={"timeout": 60.0})
    assert world.run(run_id).deadline_at == START + 60 * SECOND
    assert world.run(world.start()).deadline_at is None


# --- again -------------------------------------------------------------------------------------------------


def again(world: World, run_id: RunId, new: NewRun, *, failed_only: bool) -> RunId:
    run, before = world.run(run_id), world.read(jobs.of_run, run_id)
    prepared = runs.prepare(
        new,
        SeededChance(str(run_id) + str(failed_only)),
        lambda name, value, run: b"",
        world.clock.now(),
        original=run_id,
    )
    prepared = runs.again(run, before, prepared, failed_only=failed_only)
    world.write(runs.add, prepared, Wake())
    return prepared.id


def finish(world: World, run_id: RunId, name: str, result: Result, **more: object) -> None:
    job = world.jobs(run_id)[name]
    agent = f"agent_for_{job.id}"
    world.agent_up(agent)
    world.running(job, agent)
    world.finish(job, result, Reason.NONE if result is Result.SUCCEEDED else Reason.EXIT_CODE, agent_id=agent, **more)


def three_jobs() -> NewRun:
    return new_run(
        a_spec("build"),
        a_spec("test", needs=(NeedSpec(job="build"),), env={"WHEEL": "${{ needs.build.outputs.wheel }}"}),
        a_spec("report", needs=(NeedSpec(job="test", when=NeedWhen.ALWAYS),)),
    )


def test_failed_only_keeps_what_succeeded_with_its_outputs(world: World) -> None:
    new = three_jobs()
    run_id = world.submit(new)
    finish(world, run_id, "build", Result.SUCCEEDED, outputs={"wheel": "a.whl"})
    finish(world, run_id, "test", Result.FAILED)
    finish(world, run_id, "report", Result.SUCCEEDED)
    second = again(world, run_id, new, failed_only=True)
    assert world.states(second) == {"build": "succeeded", "test": "queued", "report": "succeeded"}
    build = world.jobs(second)["build"]
    assert (build.outputs, build.detail) == ({"wheel": "a.whl"}, f"kept from {run_id}")
    run = world.run(second)
    assert (run.jobs_total, run.jobs_finished, run.original) == (3, 2, run_id)
    world.agent_up("agent_again")
    made = world.offer(world.jobs(second)["test"], "agent_again")
    assert made is not None and made.order.spec.env == {"WHEEL": "a.whl"}
    world.accept(JobId(made.order.job_id), agent_id="agent_again")
    world.finish(world.jobs(second)["test"], agent_id="agent_again")
    assert world.run(second).state == "succeeded"


def test_all_of_it_again(world: World) -> None:
    new = three_jobs()
    run_id = world.submit(new)
    finish(world, run_id, "build", Result.SUCCEEDED)
    second = again(world, run_id, new, failed_only=False)
    assert world.states(second) == {"build": "queued", "test": "waiting", "report": "waiting"}


def test_there_must_be_something_to_do_again(world: World) -> None:
    new = new_run(a_spec("a"))
    run_id = world.submit(new)
    finish(world, run_id, "a", Result.SUCCEEDED)
    with pytest.raises(Refused, match="no job that did not succeed"):
        again(world, run_id, new, failed_only=True)


def test_combinations_that_read_alike_are_not_taken_for_each_other(world: World) -> None:
    new = new_run(a_spec("m", matrix=({"v": 1}, {"v": "1"})))
    run_id = world.submit(new)
    number, text = world.read(jobs.of_run, run_id)
    for job, result in ((number, Result.SUCCEEDED), (text, Result.FAILED)):
        agent = f"agent_{job.ordinal}"
        world.agent_up(agent)
        world.running(job, agent)
        world.finish(job, result, agent_id=agent)
    second = again(world, run_id, new, failed_only=True)
    assert [job.state for job in world.read(jobs.of_run, second)] == [JobState.SUCCEEDED, JobState.QUEUED]


def test_kept_jobs_stand_for_max_parallel_too(world: World) -> None:
    matrix = ({"n": 1}, {"n": 2}, {"n": 3})
    new = new_run(a_spec("m", matrix=matrix, max_parallel=1))
    run_id = world.submit(new)
    finish(world, run_id, "m (1)", Result.SUCCEEDED)
    finish(world, run_id, "m (2)", Result.FAILED)
    finish(world, run_id, "m (3)", Result.FAILED)
    second = again(world, run_id, new, failed_only=True)
    assert world.states(second) == {"m (1)": "succeeded", "m (2)": "queued", "m (3)": "waiting"}


# --- git sources -------------------------------------------------------------------------------------------

COMMIT = GitSource(url="https://host/r.git", commit="0" * 40, credential="KEY")


def test_what_is_wrong_with_a_git_source_is_said_with_everything_else() -> None:
    wrong = GitSource(url="https://user:pw@host/r", commit="main", credential="KEY")
    found = faults(new_run(a_spec("a"), git=wrong, source=SourceRef(hash="h", size=1)))
    assert [fault.partition(":")[0] for fault in found] == ["git", "git.credential", "git.url", "git.commit"]
    assert not any("pw" in fault for fault in found)


def test_a_git_source_goes_to_every_job_that_checks_out_and_its_credential_is_kept_for_them() -> None:
    sealed: list[str] = []

    def seal(name: str, value: str, run: RunId) -> bytes:
        sealed.append(name)
        return b""

    new = new_run(a_spec("a"), a_spec("b", checkout=False), git=COMMIT, secrets={"KEY": "v", "OTHER": "w"})
    prepared = runs.prepare(new, SeededChance(1), seal, START)
    specs = {row["base"]: row["spec"] for row in prepared.rows}
    assert (specs["a"].git, specs["b"].git) == (COMMIT, None)
    assert [job.git for job in prepared.workflow.jobs] == [COMMIT, None], "a rerun fetches the same"
    assert sealed == ["KEY"], "what no job uses is not kept"
    assert specs["a"].needed_secrets() == ("KEY",) and specs["a"].secrets == ()
    assert specs["b"].needed_secrets() == ()
