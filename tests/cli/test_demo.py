# SPDX-License-Identifier: Apache-2.0
"""``corral demo``: where the project comes from, what its tests need, and the workflow that runs them."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from corral.cli.demo.fetch import IndexAway, NoPackage, _refusal, _requirement, fetch
from corral.cli.demo.pinned import PACKAGE, SHA256, VERSION
from corral.cli.demo.project import Project, examine
from corral.cli.demo.repository import WORKFLOW, make_repository, workflow_text
from corral.cli.demo.unpack import copy_tree, unpack
from corral.cli.exits import ExitCode
from corral.compile import compile_tree
from tests.cli.double import DoubleWiring, corral
from tests.cli.test_process import corral as corral_process
from tests.cli.test_process import left_behind
from tests.cli.test_run import ends

UNITTESTS = """\
import doctest
import unittest

import thing


class First(unittest.TestCase):
    def test_one(self):
        self.assertEqual(thing.double(2), 4)

    def test_two(self):
        self.assertEqual(thing.double(3), 6)


class Second(unittest.TestCase):
    def test_three(self):
        self.assertTrue(True)


def load_tests(loader, tests, pattern):
    tests.addTests(doctest.DocTestSuite(thing))
    return tests
"""
THING = '''\
def double(number):
    """
    >>> double(1)
    2
    """
    return 2 * number
'''


def project_of(place: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def test_a_local_project_is_tested_in_parts_with_every_test_run_once(tmp_path: Path) -> None:
    tree = project_of(tmp_path / "thing", {"thing.py": THING, "tests/test_thing.py": UNITTESTS})
    state = ("--state-dir", str(tmp_path / "state"))
    out, err = corral_process(tmp_path, "demo", "--path", str(tree), "--parts", "3", *state)
    rows = [line.split()[0] for line in out.splitlines()[1:]]
    assert rows == ["prepare", "test", "test", "test", "report"]
    report, _ = corral_process(tmp_path, "logs", "latest", "report", *state)
    assert report.splitlines()[-1] == "4 of 4 tests ran"
    assert "1 test files, run with unittest in 3 parts" in err
    assert not (tree / ".corral").exists()
    assert left_behind(tmp_path) == []


def test_a_failing_test_fails_the_run_and_still_reports(tmp_path: Path) -> None:
    broken = THING.replace("2 * number", "number")
    tree = project_of(tmp_path / "thing", {"thing.py": broken, "tests/test_thing.py": UNITTESTS})
    state = ("--state-dir", str(tmp_path / "state"))
    corral_process(tmp_path, "demo", "--path", str(tree), "--parts", "2", *state, code=ExitCode.RUN_FAILED)
    (run,) = json.loads(corral_process(tmp_path, "runs", "--json", *state)[0])
    states = {
        job["name"]: job["state"]
        for job in json.loads(corral_process(tmp_path, "runs", run["id"], "--json", *state)[0])["jobs"]
    }
    assert states["prepare"] == states["report"] == "succeeded"
    assert "failed" in states.values()


def test_the_demo_asks_for_as_many_agents_as_it_was_told(tmp_path: Path) -> None:
    tree = project_of(tmp_path / "thing", {"thing.py": THING, "tests/test_thing.py": UNITTESTS})
    wiring = DoubleWiring(play=ends("succeeded"))
    done = corral("demo", "--path", str(tree), "--parts", "5", "--max-agents", "2", wiring=wiring)
    assert done.exit_code == 0, done.output
    assert wiring.asked[0][2] == 2
    (order,) = wiring.api.orders.values()
    (workflow,) = order.lock.workflows
    jobs = {job.name: job for job in workflow.jobs}
    assert [len(jobs["test"].matrix), [need.job for need in jobs["test"].needs]] == [5, ["prepare"]]
    assert {need.job for need in jobs["report"].needs} == {"prepare", "test"}


def test_a_package_without_tests_is_said_to_have_none(tmp_path: Path) -> None:
    tree = project_of(tmp_path / "thing", {"thing.py": THING, "tests/data.py": "x = 1\n"})
    wiring = DoubleWiring()
    refused = corral("demo", "--path", str(tree), wiring=wiring)
    assert (refused.exit_code, refused.stdout) == (ExitCode.USAGE, "")
    assert "thing has no tests" in refused.stderr
    assert wiring.asked == []


@pytest.mark.parametrize("path", ["missing", "file"])
def test_a_path_that_is_no_directory(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    refused = corral("demo", "--path", str(tmp_path / path), wiring=DoubleWiring())
    assert refused.exit_code == ExitCode.USAGE
    assert "no such directory" in refused.stderr


def test_an_index_that_is_away_is_one_clear_error(tmp_path: Path) -> None:
    away = {"PIP_INDEX_URL": "http://127.0.0.1:1/simple", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
    refused = corral("demo", wiring=DoubleWiring(), env={**away, "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""})
    assert (refused.exit_code, refused.stdout) == (ExitCode.UNREACHABLE, "")
    assert len([line for line in refused.stderr.splitlines() if line.startswith("error:")]) == 1
    assert "--path DIR" in refused.stderr


@pytest.mark.parametrize("name", ["-r/etc/passwd", "git+https://x", "a b", "", "../x", "a[b]"])
def test_a_package_is_named_by_its_name_only(tmp_path: Path, name: str) -> None:
    with pytest.raises(NoPackage, match="no name of a package"):
        fetch(name, tmp_path)


def test_the_default_package_is_pinned_by_its_hash() -> None:
    assert _requirement(PACKAGE) == f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n"
    assert _requirement("other==1") == "other==1\n"
    assert len(SHA256) == 64


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("WARNING: Retrying (Retry(total=1)) after connection broken\nERROR: Could not find a version x", IndexAway),
        ("ERROR: Could not find a version that satisfies the requirement nope (from versions: none)", NoPackage),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", NoPackage),
        ("/usr/bin/python3: No module named pip", NoPackage),
        ("", NoPackage),
    ],
)
def test_what_pip_says_becomes_one_error(said: str, kind: type[Exception]) -> None:
    error = _refusal("thing", said)
    assert isinstance(error, kind)
    assert "--path DIR" in str(error)


def archive_of(place: Path, *members: tuple[str, Any]) -> Path:
    path = place / "thing-1.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content
                tar.addfile(member)
    return path


def test_an_archive_writes_inside_its_directory_only(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    good = archive_of(
        tmp_path,
        ("thing-1/a", b"x"),
        ("thing-1/link", (tarfile.SYMTYPE, "/etc/passwd")),
        ("thing-1/hard", (tarfile.LNKTYPE, "thing-1/a")),
        ("thing-1/pipe", (tarfile.FIFOTYPE, "")),
    )
    tree = unpack(good, tmp_path / "out")
    assert [path.name for path in tree.iterdir()] == ["a"]
    for name in ("../evil", "/tmp/evil", "thing-1/../../evil"):
        (tmp_path / "bad").mkdir(exist_ok=True)
        with pytest.raises(NoPackage, match="outside"):
            unpack(archive_of(tmp_path, (name, b"x")), tmp_path / "bad")
    (tmp_path / "broken.tar.gz").write_bytes(b"\x1f\x8bnothing")
    with pytest.raises(NoPackage, match="cannot be unpacked"):
        unpack(tmp_path / "broken.tar.gz", tmp_path / "bad")


def test_a_local_tree_is_copied_without_its_version_control(tmp_path: Path) -> None:
    tree = project_of(tmp_path / "thing", {"a.py": "", ".git/config": "[remote]", "__pycache__/a.pyc": ""})
    copy = copy_tree(tree, tmp_path / "copy")
    assert sorted(path.name for path in copy.iterdir()) == ["a.py"]


CASES: list[tuple[dict[str, str], str, tuple[str, ...]]] = [
    ({"tests/test_a.py": UNITTESTS}, "unittest", ()),
    ({"tests/test_a.py": "def test_a(): pass\n"}, "pytest", ("pytest",)),
    (
        {"test_a.py": "import pytest\nimport unittest\nclass A(unittest.TestCase):\n    def test_a(self): pass\n"},
        "pytest",
        ("pytest",),
    ),
    ({"a_test.py": "class TestA:\n    def test_a(self): pass\n"}, "pytest", ("pytest",)),
    (
        {
            "tests/test_a.py": UNITTESTS,
            "PKG-INFO": "Name: x\nRequires-Dist: six>=1\nRequires-Dist: tox; extra == 'dev'\n\nRequires-Dist: no\n",
        },
        "unittest",
        ("six>=1",),
    ),
    (
        {"tests/test_a.py": UNITTESTS, "pyproject.toml": '[project]\ndependencies = ["attrs"]\n'},
        "unittest",
        ("attrs",),
    ),
    ({"tests/test_a.py": UNITTESTS, "pyproject.toml": "not toml ["}, "unittest", ()),
    ({"tests/test_bad.py": "def test_(:\n", "tests/test_a.py": UNITTESTS}, "unittest", ()),
]


@pytest.mark.parametrize(("files", "runner", "requirements"), CASES)
def test_what_the_tests_of_a_project_need(
    tmp_path: Path, files: dict[str, str], runner: str, requirements: tuple[str, ...]
) -> None:
    found = examine(project_of(tmp_path, files))
    assert (found.runner, found.requirements) == (runner, requirements)
    assert found.test_files


def test_the_checked_in_workflow_compiles_with_any_settings(tmp_path: Path) -> None:
    tree = project_of(tmp_path / "t", {"tests/test_a.py": UNITTESTS})
    make_repository(tree, Project(test_files=(), runner="pytest", requirements=("pytest", "six>=1")), 7, "t")
    (workflow,) = compile_tree(tree).workflows
    jobs = {job.name: job for job in workflow.jobs}
    assert [len(jobs["test"].matrix), jobs["test"].python is not None] == [7, True]
    assert jobs["prepare"].python is not None
    assert jobs["prepare"].python.requirements == ("pytest", "six>=1")
    assert workflow_text(Project(test_files=(), runner="unittest", requirements=()), 3) == WORKFLOW.read_text()
