# SPDX-License-Identifier: Apache-2.0
"""``corral workflows`` and ``corral runs --provisioning``: what is asked of the server, and what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from corral.cli.exits import ExitCode
from corral.model.triggers import KNOWN_EVENTS
from tests.cli.double import DoubleWiring, corral, make_tree
from tests.web.fake_api import new_run

MACHINES = """\
from corral.workflow import Workflow, event

machines = Workflow(
    "machines",
    on=event("corral.scaler.scale-up.v1", "corral.scaler.scale-down.v1", "corral.scaler.inventory.v1"),
)
machines.job("work", steps=["./work"])
"""


def test_registered_with_the_tree_shown_and_removed(tmp_path: Path) -> None:
    tree, wiring = make_tree(tmp_path / "tree", MACHINES), DoubleWiring()
    shown = corral("workflows", "register", str(tree), wiring=wiring)
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert f"workflow machines is registered: {', '.join(KNOWN_EVENTS)}" in shown.stderr
    registered = wiring.api.registered["machines"]
    assert registered.source_hash in wiring.api.sources, "the tree went with it"
    assert registered.registered_by == "tok_local"
    (again,) = json.loads(corral("workflows", "register", str(tree), "-w", "machines", "--json", wiring=wiring).stdout)
    assert (again["version"], again["events"]) == (2, list(KNOWN_EVENTS))
    row = corral("workflows", "list", wiring=wiring).stdout.splitlines()[1]
    assert row.split()[0] == "machines" and "tok_local" in row
    one = corral("workflows", "show", "machines", wiring=wiring).stdout
    assert ".corral/workflows/ci.py:3" in one and "by tok_local, version 2" in one
    assert "not registered any more" in corral("workflows", "remove", "machines", wiring=wiring).stderr
    assert json.loads(corral("workflows", "list", "--json", wiring=wiring).stdout) == []


def test_a_mistake_in_the_workflows_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    tree, wiring = make_tree(tmp_path / "tree", MACHINES.replace("scale-down", "scaledown")), DoubleWiring()
    shown = corral("workflows", "register", str(tree), wiring=wiring)
    assert shown.exit_code == ExitCode.USAGE
    assert "ci.py:" in shown.stderr and "did you mean 'corral.scaler.scale-down.v1'?" in shown.stderr
    assert wiring.asked == [] and wiring.api.sources == {}


def test_one_that_is_needed_is_not_removed_and_says_so(tmp_path: Path) -> None:
    wiring = DoubleWiring()
    corral("workflows", "register", str(make_tree(tmp_path / "tree", MACHINES)), wiring=wiring)
    before = wiring.api.registered["machines"]
    wiring.api.registered["machines"] = msgspec.structs.replace(before, pools=("cloud",))
    assert "cloud" in corral("workflows", "list", wiring=wiring).stdout
    shown = corral("workflows", "remove", "machines", wiring=wiring)
    assert shown.exit_code != 0 and "pool cloud" in shown.stderr
    assert "no workflow 'other'" in corral("workflows", "show", "other", wiring=wiring).stderr


def test_runs_for_provisioners_are_a_list_of_their_own() -> None:
    wiring = DoubleWiring()
    mine = wiring.api._add_run(new_run(), original="")
    other = wiring.api._add_run(new_run(), original="")
    wiring.api.runs_by_id[other.id] = msgspec.structs.replace(other, provisioning=True)
    assert [run["id"] for run in json.loads(corral("runs", "--json", wiring=wiring).stdout)] == [mine.id]
    (shown,) = json.loads(corral("runs", "--provisioning", "--json", wiring=wiring).stdout)
    assert (shown["id"], shown["provisioning"]) == (other.id, True)
