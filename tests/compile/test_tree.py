# SPDX-License-Identifier: Apache-2.0
"""The lock of a tree: what it holds, that it is the same everywhere, and that drift is noticed."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from corral.compile import check_tree, compile_tree, find_tree, write_lock
from corral.model.errors import Invalid, NotFound
from corral.model.spec import Backoff, NeedSpec, NeedWhen, OnLost, PythonSpec, Resources, RetrySpec, StepKind
from corral.workflow.lock import LOCK_PATH, lock_bytes, read_lock
from tests.compile.trees import compiled, faults_of, make_tree

FULL = """
from datetime import timedelta
from corral.workflow import Matrix, Python, Resources, Retry, StepContext, Workflow, sh, step

ci = Workflow("ci", description="All of it", env={"A": 1, "B": True, "R": "${{ run.id }}"}, timeout="1h30m")

@step(env={"K": "v"}, timeout=5)
def check(ctx: StepContext):
    return {}

def plain():
    pass

build = ci.job(
    "build",
    steps=[
        sh('''
            echo one
            echo two
        ''', shell="bash -eu"),
        "make",
        "make",
    ],
    outputs={"version": '${{ steps["make"].outputs.v }}'},
)
ci.job(
    "test",
    steps=[check, plain, step(check, name="again", if_="matrix.os == 'a'", timeout=None, retry=2)],
    cleanup=["rm -rf x", sh("echo", if_="failure()")],
    runs_on={"Linux", "gpu"},
    excludes="arm",
    needs=[build, build.workflow.job("other", steps=["true"]).finished],
    if_="needs.build.result == 'succeeded'",
    matrix=Matrix(os=["a", "b"], n=[1, 2], exclude=[{"os": "b", "n": 2}], include=[{"os": "c"}]),
    max_parallel=2,
    fail_fast=True,
    env={"V": build.output("version")},
    secrets=("TOKEN",),
    timeout=timedelta(minutes=2),
    retry=Retry(3, delay="2s", backoff="fixed", max_delay=60),
    on_lost="retry",
    continue_on_error=True,
    resources=Resources(cpu=0.5, memory="1.5g"),
    working_directory="sub/dir",
    shell=["sh", "-e"],
    python=Python("python3.12", requirements=["pytest>=8"]),
    checkout=False,
)
"""


def test_everything_an_author_can_say(tmp_path: Path) -> None:
    lock = compiled(tmp_path, ci=FULL)
    (workflow,) = lock.workflows
    assert (workflow.description, workflow.timeout, workflow.line) == ("All of it", 5400.0, 4)
    assert workflow.env == {"A": "1", "B": "true", "R": "${{ run.id }}"}
    build, other, test = workflow.jobs
    assert [(s.name, s.script, s.shell) for s in build.steps] == [
        ("echo one", "echo one\necho two", ("bash", "-eu")),
        ("make", "make", ()),
        ("make (2)", "make", ()),
    ]
    assert [s.condition for s in build.steps] == ["", "", ""]
    digest = hashlib.sha256((tmp_path / ".corral/workflows/ci.py").read_bytes()).hexdigest()
    check, plain, again = test.steps
    assert (check.kind, check.function, check.file, check.file_hash) == (
        StepKind.FUNCTION,
        "check",
        ".corral/workflows/ci.py",
        digest,
    )
    assert (check.env, check.timeout, check.line) == ({"K": "v"}, 5.0, 6)
    assert (plain.name, plain.function) == ("plain", "plain")
    assert (again.name, again.function, again.timeout) == ("again", "check", 5.0)
    assert again.condition == "success() and (matrix.os == 'a')"
    assert again.retry == RetrySpec(attempts=2)
    assert [s.condition for s in test.cleanup] == ["always()", "failure()"]
    assert (test.runs_on, test.excludes) == (("gpu", "linux"), ("arm",))
    assert test.needs == (NeedSpec(job="build"), NeedSpec(job="other", when=NeedWhen.ALWAYS))
    assert test.condition == "needs.build.result == 'succeeded'"
    assert test.matrix == ({"os": "a", "n": 1}, {"os": "a", "n": 2}, {"os": "b", "n": 1}, {"os": "c"})
    assert (test.max_parallel, test.fail_fast, test.timeout) == (2, True, 120.0)
    assert test.env == {"V": '${{ needs["build"].outputs["version"] }}'}
    assert test.retry == RetrySpec(attempts=3, delay=2.0, backoff=Backoff.FIXED, max_delay=60.0)
    assert (test.on_lost, test.continue_on_error, test.checkout) == (OnLost.RETRY, True, False)
    assert test.resources == Resources(cpu=0.5, memory=1610612736)
    assert (test.secrets, test.working_directory, test.shell) == (("TOKEN",), "sub/dir", ("sh", "-e"))
    assert test.python == PythonSpec(interpreter="python3.12", requirements=("pytest>=8",))
    assert other.name == "other"
    assert read_lock(lock_bytes(lock)) == lock


def test_every_imported_local_file_is_hashed(tmp_path: Path) -> None:
    """Helpers, packages and their parts, and files that an import reached beyond the folder; nothing else."""
    make_tree(
        tmp_path,
        ci="""
        import sys, pathlib
        sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
        import _helper, beyond, lib.part
        from corral.workflow import Workflow
        Workflow("ci").job("a", steps=[lib.part.work])
        """,
        _helper="import json",
        _unused="",
        lib__part="from . import deeper\ndef work(): pass\n",
        lib__deeper="import folder.inside",
        folder__inside="",
    )
    (tmp_path / ".corral/workflows/lib/__init__.py").write_text("")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "beyond.py").write_text("")
    lock = compile_tree(tmp_path)
    folder = ".corral/workflows/"
    names = ["_helper.py", "ci.py", "folder/inside.py", "lib/__init__.py", "lib/deeper.py", "lib/part.py"]
    assert sorted(lock.files) == [*(folder + name for name in names), "tools/beyond.py"]
    for file, digest in lock.files.items():
        assert digest == hashlib.sha256((tmp_path / file).read_bytes()).hexdigest()
    assert lock.workflows[0].jobs[0].steps[0].file == f"{folder}lib/part.py"


def test_a_local_module_never_hides_the_standard_library(tmp_path: Path) -> None:
    lock = compiled(
        tmp_path,
        json="""
        import json
        from corral.workflow import Workflow
        Workflow(json.loads('"first"')).job("a", steps=["true"])
        """,
        platform='from corral.workflow import Workflow\nWorkflow("second").job("a", steps=["true"])\n',
    )
    assert [workflow.name for workflow in lock.workflows] == ["first", "second"]


def test_names_that_are_no_identifiers_are_loaded(tmp_path: Path) -> None:
    make_tree(tmp_path)
    (tmp_path / ".corral/workflows/my-ci.v2.py").write_text(
        'from corral.workflow import Workflow\ndef f(): pass\nWorkflow("ci").job("a", steps=[f])\n'
    )
    assert compile_tree(tmp_path).workflows[0].jobs[0].steps[0].file == ".corral/workflows/my-ci.v2.py"


def test_a_future_import_holds_for_the_whole_file(tmp_path: Path) -> None:
    compiled(
        tmp_path,
        ci="""
        '''Doc.'''
        from __future__ import annotations
        from corral.workflow import Workflow
        def f(ctx: Undefined): pass
        Workflow("ci", description=__doc__).job("a", steps=[f])
        """,
    )


def test_a_file_imported_by_another_is_run_once(tmp_path: Path) -> None:
    lock = compiled(
        tmp_path,
        a='from b import ci\nci.job("from-a", steps=["true"])\n',
        b='from corral.workflow import Workflow\nci = Workflow("ci")\nci.job("from-b", steps=["true"])\n',
    )
    assert [job.name for job in lock.workflows[0].jobs] == ["from-b", "from-a"]


SETS = """
from corral.workflow import Workflow
for name in {"alpha", "beta", "gamma", "delta"}:
    w = Workflow(name, env={n: n for n in {"X", "Y", "Z"}})
    jobs = {n: w.job(n, steps=["true"], runs_on={"c", "a", "b"}) for n in {"one", "two", "three"}}
    w.job("last", steps=["true"], needs=set(jobs))
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_lock_is_the_same_under_any_hash_seed_and_file_order(tmp_path: Path, seed: str) -> None:
    here = lock_bytes(compiled(tmp_path / "here", a=SETS, b="import a\n"))
    make_tree(tmp_path / "there", b="import a\n")
    make_tree(tmp_path / "there", a=SETS)
    script = (
        "import sys; from pathlib import Path; from corral.compile import compile_tree;"
        "from corral.workflow.lock import lock_bytes;"
        "sys.stdout.buffer.write(lock_bytes(compile_tree(Path(sys.argv[1]))))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    there = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "there")], env=environment, capture_output=True, check=True
    )
    assert there.stdout == here


def test_ten_mistakes_are_ten_faults(tmp_path: Path) -> None:
    faults = faults_of(
        tmp_path,
        ci="""
        from corral.workflow import Matrix, Workflow, sh
        ci = Workflow("ci", tiemout=1)
        ci.job("a", steps=[sh("echo ${{ run.id }}")])
        ci.job("b", steps=["true"], timeout=-1)
        ci.job("c", steps=["true"], runs_on=["a b"])
        ci.job("d", steps=["true"], needs=["d"])
        ci.job("e", steps=["true"], matrix=Matrix(n=[]))
        ci.job("f", steps=["true"], env={"1": "x"})
        ci.job("g", steps=["true"], if_="succes()")
        ci.job("h", steps=["true"], retry=0)
        ci.job("h", steps=["true"])
        """,
    )
    assert [fault.line for fault in faults] == list(range(2, 12))


def test_a_failed_statement_does_not_accuse_what_depends_on_it(tmp_path: Path) -> None:
    faults = faults_of(
        tmp_path,
        ci="""
        from corral.workflow import Workflow
        ci = Workflow("ci")
        build = ci.job("build", steps=[undefined])
        test = ci.job("test", steps=["true"], needs=[build])
        ci.job("last", steps=["true"], needs=[test, "build"])
        ci.job("other", steps=["true"], timeout=-1)
        """,
    )
    assert [(fault.line, fault.message) for fault in faults] == [
        (3, "name 'undefined' is not defined"),
        (6, "the timeout is -1 seconds"),
    ]


def test_a_failed_star_import_does_not_accuse_the_names_it_would_have_brought(tmp_path: Path) -> None:
    faults = faults_of(tmp_path, ci="from _helper import *\nwork()\n", _helper="1 / 0\n")
    assert [(fault.file, fault.line) for fault in faults] == [(".corral/workflows/_helper.py", 1)]


@pytest.mark.parametrize(
    "text",
    [
        """Workflow("ci").job("a", steps=["true"], if_="'\\ud800' == 'a'")""",
        """Workflow("ci").job("a", steps=["true"], outputs={"x": "\\ud800"})""",
        """Workflow("ci").job("a", steps=["true"], python="\\ud800")""",
        """Workflow("ci\\ud800").job("a", steps=["true"])""",
        """Workflow("ci", description="\\ud800").job("a", steps=["true"])""",
        """raise ValueError("\\ud800 \\x1b[31m")""",
    ],
)
def test_half_of_a_surrogate_pair_is_a_fault(tmp_path: Path, text: str) -> None:
    faults = faults_of(tmp_path, ci="from corral.workflow import Workflow\n" + text + "\n")
    assert len(faults) == 1
    assert str(faults[0]).isprintable()


def test_a_file_name_that_is_no_text_is_a_fault(tmp_path: Path) -> None:
    make_tree(tmp_path)
    path = os.fsencode(tmp_path / ".corral/workflows") + b"/\xff.py"
    with open(path, "w") as file:
        file.write('from corral.workflow import Workflow\nWorkflow("ci").job("a", steps=["true"])\n')
    with pytest.raises(Invalid) as caught:
        compile_tree(tmp_path)
    assert "half of a surrogate pair" in str(caught.value)


def test_a_folder_or_unreadable_file_among_the_workflows(tmp_path: Path) -> None:
    make_tree(tmp_path, ci=ONE, _helper='SCRIPT = "true"\n')
    (tmp_path / ".corral/workflows/folder.py").mkdir()
    (tmp_path / ".corral/workflows/gone.py").symlink_to("nowhere")
    with pytest.raises(Invalid) as caught:
        compile_tree(tmp_path)
    assert [(fault.file[-9:], fault.message.split(":")[0]) for fault in caught.value.faults] == [
        ("folder.py", "is not a regular file"),
        ("s/gone.py", "is not a regular file"),
    ]


def test_syntax_errors_name_their_own_file(tmp_path: Path) -> None:
    faults = faults_of(tmp_path, ci="import _helper\n", _helper="x = 1\ndef f(:\n", other="return 5\n")
    assert [(fault.file, fault.line) for fault in faults] == [
        (".corral/workflows/_helper.py", 2),
        (".corral/workflows/other.py", 1),
    ]


def test_an_exception_in_a_helper_is_shown_where_it_was_raised(tmp_path: Path) -> None:
    faults = faults_of(
        tmp_path, ci="from _helper import make\n\nmake()\n", _helper="import json\n\ndef make():\n    json.loads('')\n"
    )
    assert [(fault.file, fault.line) for fault in faults] == [(".corral/workflows/_helper.py", 4)]


def test_no_workflows(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there are no workflows in .*: make \.corral/workflows/ci\.py"):
        compile_tree(tmp_path)
    (fault,) = faults_of(tmp_path, empty="x = 1\n")
    assert fault.message == "no file here defines a workflow"


def test_find_tree_looks_upwards(tmp_path: Path) -> None:
    make_tree(tmp_path)
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    assert find_tree(below) == tmp_path.resolve()
    with pytest.raises(NotFound):
        find_tree(Path("/"))


# --- writing and checking ----------------------------------------------------------------------------------

ONE = 'import _helper\nfrom corral.workflow import Workflow\nWorkflow("ci").job("a", steps=[_helper.SCRIPT])\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    make_tree(tmp_path, ci=ONE, _helper='SCRIPT = "true"\n')
    assert write_lock(compile_tree(tmp_path), tmp_path / LOCK_PATH)
    return tmp_path


def test_writing_again_changes_nothing(tree: Path) -> None:
    before = (tree / LOCK_PATH).stat()
    assert not write_lock(compile_tree(tree), tree / LOCK_PATH)
    after = (tree / LOCK_PATH).stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert check_tree(tree).faults == ()
    assert (tree / LOCK_PATH).read_bytes().endswith(b"}\n")


def test_the_file_is_replaced_at_once_and_keeps_its_mode(tree: Path) -> None:
    path = tree / LOCK_PATH
    path.chmod(0o640)
    with path.open("rb") as old:
        make_tree(tree, _helper='SCRIPT = "false"\n')
        assert write_lock(compile_tree(tree), path)
        assert b'"script": "true"' in old.read()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [entry.name for entry in path.parent.iterdir() if entry.is_file()] == ["corral.lock.json"]


def test_a_lock_that_cannot_be_written_says_so(tree: Path) -> None:
    with pytest.raises(Invalid, match="cannot be written: No such file or directory"):
        write_lock(compile_tree(tree), tree / "missing" / "corral.lock.json")


@pytest.mark.parametrize(
    ("change", "file", "message"),
    [
        ({"_helper": 'SCRIPT = "false"\n'}, ".corral/workflows/_helper.py", "changed after the lock file was made"),
        ({"new": "x = 1\n"}, ".corral/workflows/new.py", "is used by a workflow and not in the lock file"),
        (
            {"ci": ONE.replace("import _helper\n", "").replace("_helper.SCRIPT", '"true"')},
            ".corral/workflows/_helper.py",
            "is in the lock file but no workflow uses it any more",
        ),
    ],
)
def test_drift_names_the_file(tree: Path, change: dict[str, str], file: str, message: str) -> None:
    make_tree(tree, **change)
    drift = check_tree(tree)
    assert file in drift.changed
    assert (file, message) in [(fault.file, fault.message) for fault in drift.faults]
    assert all("corral compile" in fault.remedy for fault in drift.faults)


def test_drift_without_a_changed_file(tree: Path) -> None:
    """A workflow that reads something that is not imported."""
    make_tree(tree, ci=ONE.replace("_helper.SCRIPT", 'open("data.txt").read()'))
    (tree / "data.txt").write_text("one")
    write_lock(compile_tree(tree), tree / LOCK_PATH)
    (tree / "data.txt").write_text("two")
    (fault,) = check_tree(tree).faults
    assert (fault.file, fault.message[:48]) == (LOCK_PATH, "the same files compile to something else now: by")


def test_a_missing_or_edited_lock_is_drift(tree: Path) -> None:
    path = tree / LOCK_PATH
    path.write_text(path.read_text().replace('"script": "true"', '"script": "evil"'))
    assert [fault.path for fault in check_tree(tree).faults] == ["hash"]
    path.unlink()
    assert [fault.message for fault in check_tree(tree).faults] == ["the lock file is missing"]
