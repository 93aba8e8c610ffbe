# SPDX-License-Identifier: Apache-2.0
"""Events that start a workflow: declared, kept in the lock file, checked where the author wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.model.triggers import CLAIM_SECRET, KNOWN_EVENTS
from corral.workflow.lock import lock_bytes, read_lock
from tests.compile.trees import compiled, faults_of

PROVISIONER = """
    from corral.workflow import Workflow, event

    w = Workflow(
        "machines",
        on=event("corral.scaler.scale-up.v1", "corral.scaler.scale-down.v1", "corral.scaler.inventory.v1"),
    )
    w.job(
        "create",
        if_='event.type == "corral.scaler.scale-up.v1"',
        env={"AGENT": "${{ event.agent_id }}", "MEMORY": "${{ event.resources_memory }}"},
        secrets=["CORRAL_CLAIM_CODE"],
        steps=["./create"],
    )
    w.job("destroy", if_='event.evidence_heartbeat != "fresh"', steps=["./destroy"])
"""


def test_the_events_are_in_the_lock_file_and_read_again(tmp_path: Path) -> None:
    lock = compiled(tmp_path, machines=PROVISIONER)
    assert lock.workflows[0].events == KNOWN_EVENTS
    assert lock.workflows[0].jobs[0].secrets == (CLAIM_SECRET,)
    assert read_lock(lock_bytes(lock)) == lock


def test_a_workflow_without_events_says_nothing_of_them(tmp_path: Path) -> None:
    """So that its lock file is what an older Corral wrote, and that one reads ours."""
    lock = compiled(tmp_path, ci='from corral.workflow import Workflow\nWorkflow("ci").job("a", steps=["true"])\n')
    assert lock.workflows[0].events == ()
    assert b"events" not in lock_bytes(lock)


def one(on: str, **job: str) -> str:
    options = "".join(f", {name}={value}" for name, value in job.items())
    return (
        f'from corral.workflow import Workflow, event\nw = Workflow("w", on={on})\n'
        f'w.job("a", steps=["true"]{options})\n'
    )


@pytest.mark.parametrize(
    ("on", "line", "message"),
    [
        (
            'event("corral.scaler.scaleup.v1")',
            2,
            "event 'corral.scaler.scaleup.v1' is not one of Corral's; did you mean 'corral.scaler.scale-up.v1'?",
        ),
        ('event("deploy.finished")', 2, "event 'deploy.finished' is sent by nobody"),
        ("event()", 2, "event() names no event"),
        ("event(7)", 2, "7 is an int, not a text"),
        ('"corral.scaler.scale-up.v1"', 2, "'corral.scaler.scale-up.v1' is a text, not an event"),
        ("7", 2, "7 is an int, not event("),
        ("[7]", 2, "7 is an int, not event("),
    ],
)
def test_what_is_no_event(tmp_path: Path, on: str, line: int, message: str) -> None:
    (fault,) = faults_of(tmp_path, w=one(on))
    assert (fault.file, fault.line, fault.path) == (".corral/workflows/w.py", line, "w.on")
    assert message in fault.message


def test_a_key_that_no_event_has_is_named_with_the_nearest(tmp_path: Path) -> None:
    up = 'event("corral.scaler.scale-up.v1")'
    (fault,) = faults_of(tmp_path, w=one(up, env='{"A": "${{ event.agentid }}"}'))
    assert "event has no 'agentid'; did you mean 'agent_id'?" in fault.message
    (secret,) = faults_of(tmp_path, w=one(up, env='{"A": "${{ event.claim_code }}"}'))
    assert "event has no 'claim_code'" in secret.message


def test_the_claim_code_is_a_secret_of_workflows_with_an_event_only(tmp_path: Path) -> None:
    text = (
        'from corral.workflow import Workflow\nWorkflow("w").job("a", steps=["true"], secrets=["CORRAL_CLAIM_CODE"])\n'
    )
    (fault,) = faults_of(tmp_path, w=text)
    assert "names that start with CORRAL_ are Corral's own" in fault.message
    (other,) = faults_of(tmp_path, w=one('event("corral.scaler.scale-up.v1")', secrets='["CORRAL_OTHER"]'))
    assert "CORRAL_OTHER" in other.message
