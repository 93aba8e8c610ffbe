# SPDX-License-Identifier: Apache-2.0
"""A function step as an agent runs it: a plain interpreter, one script, and nothing else of Corral."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

spec = find_spec("corral.workflow")
assert spec is not None and spec.submodule_search_locations
PACKAGE = Path(spec.submodule_search_locations[0])
RUNNER = PACKAGE / "runner.py"
CHILD_SIDE = [
    "__init__",
    "collector",
    "context",
    "export",
    "invocation",
    "language",
    "loading",
    "origin",
    "outputs",
    "runner",
    "words",
]
"""The modules that run in an author's interpreter."""


class Author:
    """A work tree with one workflow file, and the means to run its functions."""

    def __init__(self, root: Path, text: str) -> None:
        self.file = root / ".corral" / "workflows" / "ci.py"
        self.file.parent.mkdir(parents=True)
        self.file.write_text(textwrap.dedent(text).lstrip("\n"))
        self.output = root / "output"
        self.context = root / "context.json"
        self.work = root / "work"
        self.work.mkdir()

    def run(self, qualname: str, context: object = None, **env: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "CORRAL_OUTPUT": str(self.output), **env}
        if context is not None:
            self.context.write_text(json.dumps(context))
            environment["CORRAL_CONTEXT"] = str(self.context)
        return subprocess.run(
            [sys.executable, "-I", str(RUNNER), str(self.file), qualname],
            env=environment,
            cwd=self.work,
            capture_output=True,
            text=True,
            check=False,
        )


def test_context_and_outputs(tmp_path: Path) -> None:
    author = Author(
        tmp_path,
        """
        import os
        import _helper
        from corral.workflow import StepContext, Workflow, step

        @step(timeout=5)
        def work(ctx: StepContext):
            assert ctx.env["FROM_ENV"] == "1" and ctx.env["FROM_CONTEXT"] == "2"
            assert ctx.matrix == {"n": 3}
            build = ctx.needs["build"]
            assert (build.result, build.outputs["v"]) == ("failed", "1.2")
            assert build.combinations[1].matrix == {"os": "b"}
            assert build.combinations[1].outputs == {}
            assert (ctx.run["id"], ctx.event["branch"]) == ("r", "main")
            print("in", os.path.basename(os.getcwd()))
            ctx.output("lines", _helper.LINES)
            ctx.output("n", 1)
            ctx.output("n", 2.5)
            return {"yes": True, "none": None, "text": "a=b<<c"}

        Workflow("ci").job("a", steps=[work])
        """,
    )
    (author.file.parent / "_helper.py").write_text('LINES = "a\\nCORRAL_END\\nb"\n')
    context = {
        "env": {"FROM_CONTEXT": "2"},
        "matrix": {"n": 3},
        "needs": {
            "build": {
                "result": "failed",
                "outputs": {"v": "1.2"},
                "combinations": [
                    {"matrix": {"os": "a"}, "result": "succeeded", "outputs": {"v": "1.2"}},
                    {"matrix": {"os": "b"}, "result": "failed"},
                ],
            }
        },
        "run": {"id": "r"},
        "event": {"branch": "main"},
    }
    done = author.run("work", context, FROM_ENV="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "in work\n", "")
    assert author.output.read_text() == (
        "lines<<CORRAL_END_\na\nCORRAL_END\nb\nCORRAL_END_\nn=1\nn=2.5\nyes=true\nnone=\ntext=a=b<<c\n"
    )
    assert sorted(path.name for path in author.file.parent.iterdir()) == ["_helper.py", "ci.py"]


def test_a_function_without_parameters_and_a_method(tmp_path: Path) -> None:
    author = Author(
        tmp_path,
        """
        class Checks:
            @staticmethod
            def lint(): print("linted")
        """,
    )
    assert author.run("Checks.lint").stdout == "linted\n"


def test_a_traceback_shows_the_authors_frames_only(tmp_path: Path) -> None:
    author = Author(
        tmp_path,
        """
        import json, subprocess

        def parse(ctx):
            try:
                json.loads("{")
            except ValueError as error:
                raise RuntimeError("cannot parse") from error
        """,
    )
    done = author.run("parse")
    assert done.returncode == 1
    files = [line.split('"')[1] for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert files == [str(author.file)] * 2
    assert "line 5, in parse" in done.stderr
    assert done.stderr.rstrip().endswith("RuntimeError: cannot parse")
    assert "json.decoder.JSONDecodeError" in done.stderr


@pytest.mark.parametrize(
    ("body", "code", "stderr"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('why')", 1, "why\n"),
        ("import sys; sys.exit()", 0, ""),
        ("raise KeyboardInterrupt", 130, ""),
        ("import os; os._exit(9)", 9, ""),
        ("return 5", 1, "TypeError: a step's function returns a dict of outputs or nothing, not int\n"),
        ("return {'a b': 1}", 1, "ValueError: output name 'a b' may hold only"),
        ("return {'a': []}", 1, "TypeError: an output is text, a number or a truth value, not list"),
        ("return {1: 'a'}", 1, "TypeError: an output's name is text, not int"),
    ],
)
def test_how_it_ends(tmp_path: Path, body: str, code: int, stderr: str) -> None:
    done = Author(tmp_path, f"def work(ctx):\n    {body}\n").run("work")
    assert done.returncode == code
    assert done.stderr.startswith(stderr) and bool(done.stderr) == bool(stderr)
    assert "corral/workflow" not in done.stderr


@pytest.mark.parametrize(
    ("text", "qualname", "stderr"),
    [
        ("x = 1", "work", "has no function work: run `corral compile`"),
        ("1 / 0", "work", "ZeroDivisionError: division by zero"),
        ("def f(:", "work", "SyntaxError"),
        ("import corral.model", "work", "No module named 'corral.model'"),
        ("import msgspec_not_there", "work", "No module named 'msgspec_not_there'"),
    ],
)
def test_what_cannot_be_loaded(tmp_path: Path, text: str, qualname: str, stderr: str) -> None:
    done = Author(tmp_path, text).run(qualname)
    assert done.returncode == 2
    assert stderr in done.stderr


def test_a_missing_file_and_a_broken_context(tmp_path: Path) -> None:
    author = Author(tmp_path, "def work(): pass")
    assert "context cannot be read" in author.run("work", context=[]).stderr
    assert author.run("work", context={"needs": {"a": {}}}).returncode == 2
    author.file.unlink()
    done = author.run("work")
    assert (done.returncode, f"there is no file {author.file}" in done.stderr) == (2, True)


def test_a_file_outside_the_workflow_folder(tmp_path: Path) -> None:
    author = Author(tmp_path, "")
    author.file = tmp_path / "ci" / "steps.py"
    author.file.parent.mkdir()
    author.file.write_text("def work(): print(__name__[:14])\n")
    assert author.run("work").stdout == "corral_author_\n"


def test_nothing_else_of_corral_is_loaded(tmp_path: Path) -> None:
    author = Author(
        tmp_path,
        """
        import sys
        from corral.workflow import Workflow

        def work():
            print(*sorted(name for name in sys.modules if name.split(".")[0] in ("corral", "msgspec")))
        """,
    )
    loaded = author.run("work").stdout.split()
    parts = ["context", "invocation", "language", "loading", "origin", "outputs"]
    assert loaded == ["corral", "corral.workflow", *(f"corral.workflow.{part}" for part in parts)]


@pytest.mark.parametrize("name", CHILD_SIDE)
def test_the_childs_side_is_python_39_and_standard_library(name: str) -> None:
    tree = ast.parse((PACKAGE / f"{name}.py").read_text(), feature_version=(3, 9))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module))
    ours = {f"corral.workflow.{module}" for module in CHILD_SIDE}
    assert not {module for module in imported - ours if module.split(".")[0] not in sys.stdlib_module_names}
    annotations = any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in tree.body)
    assert annotations or name == "__init__"


def test_starting_is_fast_enough_to_do_for_every_step() -> None:
    """Counted in modules, not seconds: each costs about as much on every machine."""
    script = (
        f"import sys; sys.path.insert(0, {str(PACKAGE)!r}); import runner;"
        "runner.provide_language(); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert not {"asyncio", "typing_extensions", "pathlib", "logging", "subprocess", "argparse"} & set(
        loaded.stdout.split()
    )
