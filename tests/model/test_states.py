# SPDX-License-Identifier: Apache-2.0
"""Every machine, every state, every event."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import CheckConstraint

from corral.model.machine import IllegalTransition, Machine
from corral.model.states import MACHINES
from corral.store.tables import metadata

ROOT = Path(__file__).resolve().parents[2]
PAIRS = [
    pytest.param(machine, state, event, id=f"{machine.name}-{state}-{event}")
    for machine in MACHINES
    for state in machine.states
    for event in machine.events
]
EACH = pytest.mark.parametrize("machine", [pytest.param(machine, id=machine.name) for machine in MACHINES])

FORBIDDEN = {
    "run": {
        # Only a run that is being cancelled ends cancelled.
        ("queued", "end-cancelled"),
        ("running", "end-cancelled"),
    },
    "job": {
        ("waiting", "offer"),
        ("waiting", "withdraw"),
        ("waiting", "start"),
        ("waiting", "retry"),
        ("waiting", "cancel"),
        ("waiting", "succeed"),
        ("queued", "skip"),
        ("queued", "start"),
        ("queued", "retry"),
        ("queued", "cancel"),
        ("queued", "succeed"),
        ("offered", "skip"),
        ("offered", "offer"),
        ("offered", "retry"),
        ("offered", "cancel"),
        ("offered", "succeed"),
        ("running", "skip"),
        ("running", "offer"),
        ("cancelling", "skip"),
        ("cancelling", "offer"),
        ("cancelling", "retry"),
    },
    "attempt": {
        ("offered", "began"),
        ("offered", "succeed"),
        ("offered", "fail"),
        ("running", "withdraw"),
    },
    "step": {("running", "skip")},
    "agent": set(),
    "provision": set(),
    "delivery": set(),
}
"""A bug in the caller: what neither moves the machine nor is news that can honestly come late or twice."""


@pytest.mark.parametrize(("machine", "state", "event"), PAIRS)
def test_each_pair_moves_or_is_ignored_or_is_refused(machine: Machine[Any, Any], state: Any, event: Any) -> None:
    """Total: exactly one of the three, and `advance` does what the table says."""
    moves, ignored = machine.changes(state, event), machine.ignores(state, event)
    assert not (moves and ignored)
    if (str(state), str(event)) in FORBIDDEN[machine.name]:
        assert not moves and not ignored
        with pytest.raises(IllegalTransition, match=f"{machine.name}: {event} is not possible in state {state}"):
            machine.advance(state, event)
        return
    assert moves or ignored, "neither a transition nor ignored, and not listed as forbidden"
    after = machine.advance(state, event)
    assert after == (machine.transitions[(state, event)] if moves else state)
    assert (state in machine.sources(event)) == moves


@EACH
def test_terminal_states_absorb(machine: Machine[Any, Any]) -> None:
    """Nothing leads out of them; a provision that was gone may be seen again."""
    out = {(str(s), str(e)) for (s, e) in machine.transitions if s in machine.terminal}
    assert out == ({("gone", "reappeared")} if machine.name == "provision" else set())


@EACH
def test_every_state_is_reached_and_every_end_is_reachable(machine: Machine[Any, Any]) -> None:
    assert reachable(machine, machine.initial) == set(machine.states)
    for state in machine.states:
        assert reachable(machine, state) & machine.terminal, f"{state} has no way to an end"


def reachable(machine: Machine[Any, Any], start: Any) -> set[Any]:
    seen, pending = {start}, [start]
    while pending:
        here = pending.pop()
        for (state, _), after in machine.transitions.items():
            if state == here and after not in seen:
                seen.add(after)
                pending.append(after)
    return seen


@EACH
def test_ignored_pairs_are_of_the_machine_and_move_nothing(machine: Machine[Any, Any]) -> None:
    for state, event in machine.ignored:
        assert isinstance(state, machine.states) and isinstance(event, machine.events)
        assert not machine.changes(state, event)
        assert state not in machine.terminal, "terminal states ignore by themselves"


@EACH
def test_the_schema_checks_just_these_states(machine: Machine[Any, Any]) -> None:
    table = metadata.tables["deliveries" if machine.name == "delivery" else f"{machine.name}s"]
    (check,) = [c for c in table.constraints if isinstance(c, CheckConstraint)]
    assert set(re.findall(r"'([^']+)'", str(check.sqltext))) == {str(state) for state in machine.states}


def test_the_diagrams_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "tools/state_diagrams.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
