# SPDX-License-Identifier: Apache-2.0
"""Whether a workflow may be a provisioner, and what the end of its run answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from corral.decide.matching import Offered
from corral.decide.provisioning import JobEnd, RunEnd, answer, begins_anew, pool_faults, users_of, workflow_faults
from corral.model.events import EventKind, Listing, Verdict, WorkflowTarget
from corral.model.labels import labels
from corral.model.pools import Pool
from corral.model.spec import JobSpec, StepSpec, WorkflowSpec
from corral.model.states import JobState, RunState
from corral.model.triggers import CLAIM_SECRET, KNOWN_EVENTS

UP, DOWN = EventKind.SCALE_UP.value, EventKind.SCALE_DOWN.value


def pool(name: str, backend: str, *names: str, **more: Any) -> Pool:
    return Pool(name=name, backend=backend, labels=labels(names), max_agents=5, **more)


CLOUD = pool("cloud", "event", "cloud", target=WorkflowTarget(workflow="machines"))
LOCAL = pool("local", "process", "local", "linux")


def spec(*runs_on: str, events: tuple[str, ...] = KNOWN_EVENTS, **more: Any) -> WorkflowSpec:
    job = JobSpec(name="create", steps=(StepSpec(name="s", script="true"),), runs_on=runs_on, line=7, **more)
    return WorkflowSpec(name="machines", jobs=(job,), events=events, file="w.py", line=2)


def texts(*found: Any) -> list[tuple[int, str, str]]:
    return [(fault.line, fault.path, fault.message) for fault in found]


def test_its_jobs_fit_a_pool_that_makes_instances_itself_or_a_static_agent() -> None:
    assert workflow_faults(spec("local"), [CLOUD, LOCAL], []) == ()
    assert workflow_faults(spec("mac"), [CLOUD, LOCAL], [Offered(labels=labels(["mac", "m1"]))]) == ()


def test_a_job_that_only_an_event_pool_fits_would_wait_for_itself() -> None:
    """Reference 11.1.3: what has to be there before an event can be served is checked, not met by a failure."""
    (fault,) = workflow_faults(spec("cloud"), [CLOUD, LOCAL], [])
    assert (fault.file, fault.line, fault.path) == ("w.py", 7, "machines.create.runs_on")
    assert fault.message == (
        "job 'create' fits only pool cloud, whose instances an event brings up: it would wait for itself"
    )


def test_a_job_that_nothing_fits_is_told_what_is_nearest() -> None:
    (fault,) = workflow_faults(spec("local", "gpu"), [CLOUD, LOCAL], [])
    assert "pool local lacks 'gpu'" in fault.message
    (drained,) = workflow_faults(spec("local"), [msgspec.structs.replace(LOCAL, draining=True)], [])
    assert "neither a static agent nor a pool" in drained.message
    (unlabelled,) = workflow_faults(spec(), [LOCAL], [])
    assert "is not the default pool" in unlabelled.message


def test_what_makes_must_destroy_and_brings_no_other_secret() -> None:
    (fault,) = workflow_faults(spec("local", events=(UP,)), [LOCAL], [])
    assert texts(fault) == [
        (2, "machines.on", f"a provisioner needs {DOWN} too: what makes instances has to destroy them")
    ]
    assert workflow_faults(spec("local", events=(UP, DOWN), secrets=(CLAIM_SECRET,)), [LOCAL], []) == ()
    (secret,) = workflow_faults(spec("local", secrets=("CLOUD_KEY", CLAIM_SECRET)), [LOCAL], [])
    assert "job 'create' asks for CLOUD_KEY: an event brings no secret but CORRAL_CLAIM_CODE" in secret.message


def test_a_configuration_is_checked_with_the_workflows_its_pools_name() -> None:
    assert pool_faults([CLOUD, LOCAL], {}, []) == (), "it cannot be registered before the server runs"
    assert pool_faults([CLOUD, LOCAL], {"machines": spec("local"), "other": spec("nowhere")}, []) == ()
    assert len(pool_faults([CLOUD, CLOUD, LOCAL], {"machines": spec("cloud")}, [])) == 1
    assert users_of("machines", [CLOUD, LOCAL]) == ("cloud",)
    assert users_of("other", [CLOUD, LOCAL]) == ()


# --- what a run's end answers ------------------------------------------------------------------------------


def ended(state: RunState, *jobs: JobEnd, reason: str = "", detail: str = "") -> RunEnd:
    return RunEnd(id="run_1", state=state, reason=reason, detail=detail, jobs=jobs)


def job(name: str, state: JobState, reason: str = "", detail: str = "", **outputs: str) -> JobEnd:
    return JobEnd(name=name, state=state, reason=reason, detail=detail, outputs=outputs)


@pytest.mark.parametrize(
    ("run", "verdict", "detail"),
    [
        (
            ended(RunState.SUCCEEDED, job("create", JobState.SUCCEEDED), job("destroy", JobState.SKIPPED)),
            Verdict.DONE,
            "run run_1 succeeded",
        ),
        (
            ended(RunState.SUCCEEDED, job("create", JobState.SKIPPED), job("tried", JobState.FAILED)),
            Verdict.REFUSED,
            "run run_1 did nothing: no job of it is for this event, or none succeeded",
        ),
        (ended(RunState.CANCELLED), Verdict.LATER, "run run_1 was cancelled"),
        (
            ended(
                RunState.FAILED,
                job("first", JobState.SUCCEEDED),
                job("create", JobState.FAILED, "exit_code", "step s exited with 3"),
                job("after", JobState.FAILED, "need_not_met"),
                reason="job_failed",
            ),
            Verdict.REFUSED,
            "run run_1 failed: job create: exit_code: step s exited with 3",
        ),
        (ended(RunState.FAILED, detail="odd"), Verdict.REFUSED, "run run_1 failed: odd"),
        (
            ended(RunState.FAILED, reason="run_timeout"),
            Verdict.UNANSWERED,
            "run run_1 had not ended in its time: run_timeout",
        ),
        (
            ended(RunState.CANCELLED, reason="run_timeout"),
            Verdict.UNANSWERED,
            "run run_1 had not ended in its time: run_timeout",
        ),
    ],
)
def test_how_it_ended_is_the_verdict(run: RunEnd, verdict: Verdict, detail: str) -> None:
    given = answer(run, UP)
    assert (given.verdict, given.detail) == (verdict, detail)


def test_the_provider_id_comes_from_any_job_also_of_a_failure() -> None:
    jobs = (job("a", JobState.SUCCEEDED), job("b", JobState.FAILED, provider_id=" i-7 \n"))
    assert answer(ended(RunState.FAILED, *jobs), UP).provider_id == "i-7"
    long = job("a", JobState.SUCCEEDED, provider_id="x" * 9999)
    assert len(answer(ended(RunState.SUCCEEDED, long), UP).provider_id) == 512


def test_the_sentence_is_short_and_holds_no_secret() -> None:
    run = ended(RunState.FAILED, job("create", JobState.FAILED, "exit_code", "claim_x\nand ü" + "ü" * 2000))
    given = answer(run, UP, "claim_x")
    assert len(given.detail.encode()) <= 1024
    assert "***" in given.detail and "claim_x" not in given.detail and "\n" not in given.detail


def test_only_a_run_for_an_inventory_has_a_body() -> None:
    listing = '{"instances": [], "request": "r", "complete": false}'
    run = ended(RunState.SUCCEEDED, job("a", JobState.SUCCEEDED, instances=listing))
    assert answer(run, UP).body == b""
    assert msgspec.json.decode(answer(run, EventKind.INVENTORY).body, type=Listing) == Listing(
        instances=(), request="r", complete=False
    )
    for outputs in ({}, {"instances": "[]"}, {"instances": '{"instances": [{}]}'}, {"instances": '{"ok": true}'}):
        wrong = answer(ended(RunState.SUCCEEDED, job("a", JobState.SUCCEEDED, **outputs)), EventKind.INVENTORY)
        assert wrong.verdict is Verdict.REFUSED
        assert "instances" in wrong.detail


def test_only_what_ended_in_vain_begins_anew() -> None:
    """W2: delivered twice is one run, while it goes and when it has done it."""
    assert {state for state in RunState if begins_anew(state)} == {RunState.FAILED, RunState.CANCELLED}
