# SPDX-License-Identifier: Apache-2.0
"""Break each guard on purpose and show that its test turns red.

``tests/mutations/NAME.patch`` holds one unified diff. Its first lines, before the diff, say what is guarded and which
test guards it::

    # guard: an assigned agent is never offered a second job
    # test: tests/store/test_repositories.py::test_offer_then_cordon

Each patch is applied to a copy of the tree; the named test has to pass in the unmodified copy and to fail in the
modified one. Exit 1 when a mutation survives, does not apply, or breaks more than the test's verdict.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIDE_BY_SIDE = 2
"""Patches at a time: the machines this runs on have two cores."""
TEST_TIMEOUT = 300.0
"""Seconds for one test in one copy; a mutation that makes it hang is no clean red."""
_LEFT_OUT = (
    ".git",
    ".venv",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    "build",
    "dist",
)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Mutation:
    path: Path
    guard: str
    test: str

    @property
    def name(self) -> str:
        return self.path.stem


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """``caught``: the test failed as it should. ``detail`` says what happened instead."""

    mutation: Mutation
    caught: bool
    detail: str


class Malformed(Exception):
    """A patch file without its two lines."""


def read(path: Path) -> Mutation:
    """:raises Malformed: ``# guard:`` or ``# test:`` is missing before the diff."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        match = re.match(r"# (guard|test): (.+)", line)
        if match is None:
            break
        found[match[1]] = match[2].strip()
    if set(found) != {"guard", "test"}:
        raise Malformed(f"{path}: the first lines have to be '# guard: …' and '# test: path::name'")
    return Mutation(path=path, guard=found["guard"], test=found["test"])


@contextmanager
def copy_of(root: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="corral-mutation-") as place:
        tree = Path(place) / "tree"
        shutil.copytree(root, tree, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        yield tree


def run_tests(tree: Path, tests: Sequence[str]) -> tuple[int | None, str]:
    """pytest's exit code (None: it hung) and what it printed; ``corral`` is the copy's."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Loading every installed plugin takes ten times as long as most tests; a guard's test has to need none.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        # A red test is all that is asked for; making its example small takes a state machine minutes.
        "HYPOTHESIS_PROFILE": "raw",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TEST_TIMEOUT)
    except subprocess.TimeoutExpired:
        return None, f"not within {TEST_TIMEOUT:g} s"
    return done.returncode, done.stdout + done.stderr


def apply(tree: Path, patch: Path) -> str:
    """Why the patch does not apply; empty: it did."""
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    command = ["git", "apply", "--whitespace=nowarn", str(patch)]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr.strip() or "git apply failed"


def attempt(root: Path, mutation: Mutation) -> Outcome:
    with copy_of(root) as tree:
        problem = apply(tree, mutation.path)
        if problem:
            return Outcome(mutation=mutation, caught=False, detail=f"does not apply: {problem}")
        code, output = run_tests(tree, [mutation.test])
    verdicts = {0: "survived: the test stays green", 1: "caught", None: "the test hangs"}
    detail = verdicts.get(code) or f"the test does not run (pytest exit {code}): {_last_line(output)}"
    return Outcome(mutation=mutation, caught=code == 1, detail=detail)


def red_before(root: Path, mutations: Sequence[Mutation]) -> str:
    """What is wrong with the named tests in an unmodified copy; empty: all pass."""
    tests = sorted({mutation.test for mutation in mutations})
    with copy_of(root) as tree:
        code, output = run_tests(tree, tests)
    if code == 0:
        return ""
    failed = _FAILED.findall(output)
    return "unmodified, these do not pass: " + (", ".join(failed) or _last_line(output))


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def show(outcomes: Sequence[Outcome]) -> None:
    width = max(len(outcome.mutation.name) for outcome in outcomes)
    for outcome in outcomes:
        mark = "ok  " if outcome.caught else "FAIL"
        print(f"{mark} {outcome.mutation.name:<{width}}  {outcome.mutation.guard}")
        if not outcome.caught:
            print(f"     {'':<{width}}  {outcome.detail}")
    caught = sum(outcome.caught for outcome in outcomes)
    print(f"{caught} of {len(outcomes)} mutations caught")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help="only patches whose name contains one of these")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=SIDE_BY_SIDE)
    given = parser.parse_args(arguments)
    try:
        every = [read(path) for path in sorted((given.root / "tests" / "mutations").glob("*.patch"))]
    except Malformed as error:
        print(error, file=sys.stderr)
        return 1
    chosen = [m for m in every if not given.names or any(name in m.name for name in given.names)]
    if not chosen:
        print("no such mutation" if given.names else "no mutations in tests/mutations", file=sys.stderr)
        return 1
    problem = red_before(given.root, chosen)
    if problem:
        print(problem, file=sys.stderr)
        return 1
    with ThreadPoolExecutor(given.jobs) as workers:
        outcomes = list(workers.map(lambda mutation: attempt(given.root, mutation), chosen))
    show(outcomes)
    return 0 if all(outcome.caught for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
