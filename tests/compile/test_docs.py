# SPDX-License-Identifier: Apache-2.0
"""The author's guide says what is true."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from corral.model.expressions import CONTEXTS, FUNCTIONS, RUN_KEYS, Context, evaluate, parse
from corral.model.spec import CombinationResult, NeedResult, Result, StepKind
from tests.compile.trees import compiled

GUIDE = (Path(__file__).parents[2] / "docs" / "workflows.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
ROWS = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", GUIDE.partition("<!-- each row")[2], re.MULTILINE)
TWO = (CombinationResult(matrix={}, result=Result.SUCCEEDED),) * 2
CONTEXT = Context(
    needs={"build": NeedResult(result=Result.SUCCEEDED, outputs={"version": "1.2"}, combinations=TWO)},
    matrix={"os": "linux", "slow": False, "n": 3},
    event={"title": "fix a Bug", "branch": "main"},
    success=True,
)


@pytest.mark.parametrize("text", EXAMPLES, ids=[f"example-{number}" for number in range(len(EXAMPLES))])
def test_examples_compile(tmp_path: Path, text: str) -> None:
    assert compiled(tmp_path, example=text).workflows


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 7
    assert len(ROWS) == 13


@pytest.mark.parametrize(("source", "shown"), ROWS, ids=[source for source, _ in ROWS])
def test_expressions_have_the_value_shown(source: str, shown: str) -> None:
    assert evaluate(parse(source), CONTEXT) == ast.literal_eval(shown)


def test_the_whole_language_is_in_the_guide() -> None:
    expressions = GUIDE.partition("## Expressions")[2]
    for name in (*CONTEXTS, *RUN_KEYS, *(f"{function}(" for function in FUNCTIONS), *(r.value for r in Result)):
        assert name in expressions


def test_the_function_step_of_the_guide_runs(tmp_path: Path) -> None:
    (text,) = [example for example in EXAMPLES if "def summarise" in example]
    lock = compiled(tmp_path, example=text)
    (step,) = [s for job in lock.workflows[0].jobs for s in job.steps if s.kind is StepKind.FUNCTION]
    context = tmp_path / "context.json"
    context.write_text(
        json.dumps({"needs": {"test": {"result": "succeeded", "outputs": {"passed": "12"}}}, "run": {"id": "r1"}})
    )
    spec = find_spec("corral.workflow")
    assert spec is not None and spec.submodule_search_locations
    runner = Path(spec.submodule_search_locations[0]) / "runner.py"
    environment = {**os.environ, "CORRAL_CONTEXT": str(context), "CORRAL_OUTPUT": str(tmp_path / "out")}
    command = [sys.executable, "-I", str(runner), str(tmp_path / step.file), step.function]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "12 tests passed in run r1\n"
    assert (tmp_path / "out").read_text() == "summary=12 passed\npassed=12\ngood=true\n"


def test_the_shell_steps_of_the_guide_write_outputs(tmp_path: Path) -> None:
    (text,) = [example for example in EXAMPLES if "notes<<END" in example]
    (build, _) = compiled(tmp_path, example=text).workflows[0].jobs
    (tmp_path / "VERSION").write_text("1.2\n")
    (tmp_path / "NOTES").write_text("one\ntwo\n")
    out = tmp_path / "out"
    for step in build.steps:
        subprocess.run(
            ["sh", "-ec", step.script], cwd=tmp_path, env={**os.environ, "CORRAL_OUTPUT": str(out)}, check=True
        )
    assert out.read_text() == "version=1.2\nnotes<<END\none\ntwo\nEND\n"


def test_the_mistake_shown_is_the_mistake_reported(tmp_path: Path) -> None:
    from tests.compile.trees import faults_of

    text = EXAMPLES[0].replace("needs=[build]", 'needs=["biuld"]')
    (fault,) = faults_of(tmp_path, ci=text)
    assert str(fault) in GUIDE
