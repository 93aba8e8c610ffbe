# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

from typer.testing import CliRunner

from corral.cli.commands.sim import app

runner = CliRunner()


def test_run_prints_one_line_of_json_per_seed_and_nothing_else() -> None:
    done = runner.invoke(app, ["run", "--seeds", "2", "--first-seed", "7", "--minutes", "0.3", "--json"])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["seed"] for line in lines] == [7, 8]
    assert all(line["violation"] == "" and line["virtual"] >= 18 for line in lines)


def test_run_says_what_it_covered() -> None:
    done = runner.invoke(app, ["run", "--seeds", "1", "--first-seed", "7", "--minutes", "0.3"])
    assert done.exit_code == 0
    assert "1 seeds" in done.stdout and "virtual hours" in done.stdout


def test_replay_prints_a_timeline_in_order() -> None:
    done = runner.invoke(app, ["replay", "7", "--minutes", "0.3"])
    assert done.exit_code == 0
    first = done.stdout.splitlines()[0]
    assert first.split() == ["0:00.000000", "coordinator-1", "starts"]
    assert "faults         are over" in done.stdout


def test_replay_as_json_holds_the_outcome_and_every_event() -> None:
    done = runner.invoke(app, ["replay", "7", "--minutes", "0.3", "--json"])
    told = json.loads(done.stdout)
    assert told["outcome"]["events"] == len(told["events"])
    assert set(told["events"][0]) == {"at", "actor", "text"}
