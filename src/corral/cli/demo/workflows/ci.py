# SPDX-License-Identifier: Apache-2.0
"""A project's own tests in parts: `prepare` finds and splits them, each `test` runs its part, `report` adds up."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from corral.workflow import Matrix, Python, StepContext, Workflow, step

PARTS = 3
RUNNER = "unittest"
REQUIREMENTS: list[str] = []

UNITTESTS = """
import json, sys, unittest

def flat(suite):
    for each in suite:
        yield from flat(each) if isinstance(each, unittest.TestSuite) else [each]

given = json.load(sys.stdin)
tests = list(flat(unittest.defaultTestLoader.loadTestsFromNames(given["modules"])))
if given["ids"] is None:
    print(json.dumps([test.id() for test in tests]))
else:
    chosen = unittest.TestSuite(test for test in tests if test.id() in set(given["ids"]))
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(chosen).wasSuccessful())
"""
"""With ids of tests: runs these. Without: lists them all. A module may add tests by itself (``load_tests``), which have
no name that could be loaded."""


def test_files() -> list[Path]:
    """Files that hold tests by their name, below the work tree."""
    names = re.compile(r"(test_.*|.*_test|tests)\.py\Z")
    found = [path for path in Path().rglob("*.py") if names.match(path.name)]
    return sorted(p for p in found if not any(part.startswith(".") or part in ("build", "dist") for part in p.parts))


def import_root(path: Path) -> Path:
    """The directory from which a module is imported: the first one upwards that is no package."""
    directory = path.parent
    while (directory / "__init__.py").exists():
        directory = directory.parent
    return directory


def environment() -> dict[str, str]:
    """The package itself, and whatever its tests import beside it, can be imported."""
    roots = [Path("src"), Path(), *(import_root(path) for path in test_files())]
    paths = dict.fromkeys(str(root.resolve()) for root in roots if root.is_dir())
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}


def list_tests() -> list[str]:
    """The id of every test, as its own runner finds it."""
    if RUNNER == "pytest":
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True)
        if done.returncode not in (0, 5):
            print(done.stdout)
            sys.exit(done.returncode)
        return [line for line in done.stdout.splitlines() if "::" in line]
    done = subprocess.run(
        [sys.executable, "-c", UNITTESTS],
        env=environment(),
        input=unittests(None),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [str(each) for each in json.loads(done.stdout.splitlines()[-1])]


def unittests(ids: list[str] | None) -> str:
    """What the script above reads."""
    modules = [".".join(path.relative_to(import_root(path)).with_suffix("").parts) for path in test_files()]
    return json.dumps({"modules": modules, "ids": ids})


def run_tests(part: list[str]) -> subprocess.Popen[str]:
    """Run a part; what it prints comes through a pipe."""
    command = [sys.executable, "-u", "-m", "pytest", "-q", "-p", "no:cacheprovider", *part]
    if RUNNER == "unittest":
        command = [sys.executable, "-u", "-c", UNITTESTS]
    running = subprocess.Popen(
        command,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert running.stdin is not None
    with running.stdin as given:
        if RUNNER == "unittest":
            given.write(unittests(part))
    return running


def unit_of(test: str) -> str:
    """What is never split: a class of tests, or one function with all its parameters."""
    if RUNNER == "pytest":
        path, *names = test.split("[")[0].split("::")
        return "::".join([path, names[0]])
    return test.rpartition(".")[0]


@step(name="find and split the tests")
def prepare(ctx: StepContext) -> None:
    tests = list_tests()
    units: dict[str, list[str]] = {}
    for test in tests:
        units.setdefault(unit_of(test), []).append(test)
    parts: list[list[str]] = [[] for _ in range(PARTS)]
    sizes = [0] * PARTS
    # The largest first, each to the smallest part: no part is much larger than another.
    for unit, members in sorted(units.items(), key=lambda item: (-len(item[1]), item[0])):
        smallest = sizes.index(min(sizes))
        parts[smallest] += [unit] if RUNNER == "pytest" else members
        sizes[smallest] += len(members)
    print(f"{len(tests)} tests in {len(units)} groups, in {PARTS} parts of {', '.join(map(str, sizes))}")
    for number, part in enumerate(parts, 1):
        ctx.output(f"part_{number}", json.dumps(sorted(part)))
    ctx.output("tests", len(tests))
    if not tests:
        sys.exit("no test was found")


@step(name="run the tests of this part")
def run_part(ctx: StepContext) -> None:
    part = json.loads(ctx.needs["prepare"].outputs[f"part_{ctx.matrix['part']}"])
    if not part:
        print("nothing to do: there are fewer groups of tests than parts")
        ctx.output("ran", 0)
        return
    print(f"{RUNNER}: {len(part)} of the ids that were found", flush=True)
    running = run_tests(part)
    assert running.stdout is not None
    ran = seconds = ""
    for line in running.stdout:
        print(line, end="", flush=True)
        if summary := re.match(r"Ran (\d+) tests? in ([\d.]+)s", line):
            ran, seconds = summary[1], summary[2]
        elif re.search(r"\d+ (passed|failed|error).* in [\d.]+s", line):
            ran = str(
                sum(int(number) for number in re.findall(r"(\d+) (?:passed|failed|skipped|xfailed|xpassed)", line))
            )
            seconds = re.findall(r"in ([\d.]+)s", line)[0]
    ctx.output("ran", ran or 0)
    ctx.output("seconds", seconds or 0)
    code = running.wait()
    if code:
        sys.exit(code)


@step(name="add up")
def add_up(ctx: StepContext) -> None:
    found = ctx.needs["prepare"].outputs.get("tests", "?")
    total = 0
    for part in ctx.needs["test"].combinations:
        ran = int(part.outputs.get("ran", "0"))
        total += ran
        print(f"part {part.matrix['part']}: {part.result}, {ran} tests in {part.outputs.get('seconds', '0')} s")
    print(f"{total} of {found} tests ran")
    ctx.output("ran", total)


ci = Workflow("ci", description="A project's own tests, in parts")
python = Python(requirements=REQUIREMENTS) if REQUIREMENTS else None

split = ci.job("prepare", steps=[prepare], python=python, timeout="10m")
test = ci.job(
    "test", needs=[split], matrix=Matrix(part=list(range(1, PARTS + 1))), steps=[run_part], python=python, timeout="30m"
)
ci.job("report", needs=[split.finished, test.finished], steps=[add_up], timeout="5m")
