# SPDX-License-Identifier: Apache-2.0
"""``corral agents`` and ``corral token rotate``: what is asked of the server, and what is printed."""

from __future__ import annotations

import json

from corral.cli.exits import ExitCode
from tests.cli.double import DoubleWiring, corral


def test_the_list_is_there_with_and_without_its_name() -> None:
    wiring = DoubleWiring()
    for words in (["agents"], ["agents", "list"]):
        assert corral(*words, wiring=wiring).stdout.splitlines()[1].split()[0] == "agent_x"
        assert json.loads(corral(*words, "--json", wiring=wiring).stdout)[0]["id"] == "agent_x"


def test_an_agent_is_cordoned_drained_and_taken_back() -> None:
    wiring = DoubleWiring()
    shown = corral("agents", "cordon", "agent_x", wiring=wiring)
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "agent_x" in shown.stderr
    assert wiring.api.held == {"agent_x": "cordon"}
    assert "cordoned" in corral("agents", wiring=wiring).stdout
    drained = corral("agents", "drain", "x", "--hand-back-after", "30", "--json", wiring=wiring)
    assert json.loads(drained.stdout)["hold"] == "drain"
    assert wiring.api.drains == [30.0]
    assert "draining" in corral("agents", wiring=wiring).stdout
    assert corral("agents", "uncordon", "agent_x", wiring=wiring).exit_code == 0
    assert wiring.api.held == {"agent_x": ""}


def test_an_agent_that_is_not_there_is_named() -> None:
    shown = corral("agents", "drain", "agent_q", wiring=DoubleWiring())
    assert shown.exit_code == ExitCode.USAGE
    assert "did you mean 'agent_x'" in shown.stderr


def test_a_rotated_token_is_printed_once_and_alone() -> None:
    wiring = DoubleWiring()
    made = json.loads(corral("token", "create", "ci", "--role", "viewer", "--json", wiring=wiring).stdout)
    shown = corral("token", "rotate", made["view"]["id"], "--grace", "60", wiring=wiring)
    assert shown.stdout.splitlines() == ["fresh-2"]
    assert wiring.api.graces == [60.0]
    assert corral("token", "rotate", "tok_none", wiring=wiring).exit_code == ExitCode.USAGE
