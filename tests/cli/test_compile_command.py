# SPDX-License-Identifier: Apache-2.0
"""``corral compile``: exit codes, pure standard output, faults on standard error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from corral.cli.commands.compile import compile_command
from tests.compile.trees import make_tree

GOOD = """
from corral.workflow import Workflow
print("printed by the author")
Workflow("ci").job("a", steps=["true"])
"""


def corral_compile(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.command()(compile_command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_writes_and_checks(tmp_path: Path) -> None:
    make_tree(tmp_path, ci=GOOD)
    assert corral_compile(tmp_path, "--check").exit_code == 1
    assert not (tmp_path / ".corral/corral.lock.json").exists()
    first = corral_compile(tmp_path)
    assert (first.exit_code, first.stdout) == (0, ".corral/corral.lock.json written: 1 workflow, 1 job\n")
    assert "printed by the author" in first.stderr
    again = corral_compile(tmp_path)
    assert (again.exit_code, again.stdout) == (0, ".corral/corral.lock.json is up to date: 1 workflow, 1 job\n")
    assert corral_compile(tmp_path, "--check").exit_code == 0


def test_check_names_the_file_that_changed(tmp_path: Path) -> None:
    make_tree(tmp_path, ci=GOOD)
    corral_compile(tmp_path)
    make_tree(tmp_path, ci=GOOD + "# more\n")
    done = corral_compile(tmp_path, "--check")
    assert (done.exit_code, done.stdout) == (1, "")
    assert ".corral/workflows/ci.py: changed after the lock file was made (run `corral compile`" in done.stderr


def test_works_from_below_the_tree(tmp_path: Path) -> None:
    make_tree(tmp_path, ci=GOOD)
    assert corral_compile(tmp_path / ".corral" / "workflows").exit_code == 0


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_faults_and_json(tmp_path: Path, check: list[str]) -> None:
    make_tree(tmp_path, ci=GOOD + "\nundefined\nother\n")
    done = corral_compile(tmp_path, *check)
    assert (done.exit_code, done.stdout) == (2, ""), "what `corral run` answers too"
    assert done.stderr.endswith("2 faults\n")
    assert ".corral/workflows/ci.py:5: name 'undefined' is not defined" in done.stderr
    result = json.loads(corral_compile(tmp_path, "--json", *check).stdout)
    assert [fault["line"] for fault in result["faults"]] == [5, 6]
    assert result["hash"] is None


def test_json_of_a_good_tree(tmp_path: Path) -> None:
    make_tree(tmp_path, ci=GOOD)
    result = json.loads(corral_compile(tmp_path, "--json").stdout)
    assert (result["workflows"], result["written"], result["faults"]) == (["ci"], True, [])
    assert len(result["hash"]) == 64


def test_no_workflows(tmp_path: Path) -> None:
    done = corral_compile(tmp_path)
    assert done.exit_code == 2
    assert "there are no workflows in" in done.stderr
