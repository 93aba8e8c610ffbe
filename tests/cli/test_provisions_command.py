# SPDX-License-Identifier: Apache-2.0
"""``corral provisions``: what is asked of the server, and what is printed."""

from __future__ import annotations

import json

from corral.cli.exits import ExitCode
from tests.cli.double import DoubleWiring, corral


def test_the_list_shows_state_cause_age_and_cost() -> None:
    wiring = DoubleWiring()
    for words in (["provisions"], ["provisions", "list"]):
        head, first, second = corral(*words, wiring=wiring).stdout.splitlines()
        assert head.split() == ["PROVISION", "POOL", "STATE", "CAUSE", "JOB", "AGE", "COST", "WHY"]
        assert first.split() == ["agent_x", "cloud", "active", "warm", "-", "2h30m", "1.25", "-"]
        assert second.split()[0] == "agent_y"
    assert [each["id"] for each in json.loads(corral("provisions", "--json", wiring=wiring).stdout)] == [
        "agent_x",
        "agent_y",
    ]
    assert corral("provisions", "list", "--pool", "other", wiring=wiring).stdout.count("agent_") == 0


def test_the_leak_ledger_adds_up() -> None:
    shown = corral("provisions", "list", "--abandoned", wiring=DoubleWiring())
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == ["agent_y"]
    assert "1 could not be confirmed gone: 2.5 instance-hours, 1.25 so far and 0.50 more each hour" in shown.stderr


def test_a_state_that_there_is_not_is_refused() -> None:
    shown = corral("provisions", "list", "--state", "lost", wiring=DoubleWiring())
    assert shown.exit_code == ExitCode.USAGE
    assert "state" in shown.stderr


def test_one_is_shown_with_its_story_and_events() -> None:
    shown = corral("provisions", "show", "x", wiring=DoubleWiring()).stdout
    assert "provision agent_x of pool cloud (event) is active" in shown
    assert "cost: 1.25 at 0.5 an hour" in shown
    assert "2026-01-01T00:00:00Z instance was asked for" in shown
    assert "corral.scaler.scale-up.v1" in shown and "delivered" in shown


def test_an_abandoned_one_is_retried() -> None:
    wiring = DoubleWiring()
    shown = corral("provisions", "retry", "y", wiring=wiring)
    assert (shown.exit_code, wiring.api.said) == (0, {"agent_y": "releasing"})
    refused = corral("provisions", "retry", "agent_x", wiring=wiring)
    assert refused.exit_code == ExitCode.USAGE


def test_forgetting_needs_a_yes() -> None:
    wiring = DoubleWiring()
    refused = corral("provisions", "forget", "y", wiring=wiring)
    assert (refused.exit_code, wiring.api.said) == (ExitCode.USAGE, {})
    assert "--yes" in refused.stderr
    assert corral("provisions", "forget", "y", "--yes", wiring=wiring).exit_code == 0
    assert wiring.api.said == {"agent_y": "gone"}
