# SPDX-License-Identifier: Apache-2.0
"""Workflows that hang, flood, vanish or leave something behind: an error that says so, and nothing left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from corral.compile import compile_tree
from corral.model.errors import Invalid
from tests.compile.trees import compiled, faults_of, make_tree

GOOD = """
from corral.workflow import Workflow
Workflow("good").job("a", steps=["true"])
"""


def one_fault(root: Path, text: str, timeout: float = 30) -> tuple[str, int, str]:
    make_tree(root, bad=text, good=GOOD)
    with pytest.raises(Invalid) as caught:
        compile_tree(root, timeout)
    (fault,) = caught.value.faults
    return fault.file, fault.line, fault.message


BAD = ".corral/workflows/bad.py"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\nwhile True:\n    x = x\n", 2),
        ("import time\n\ntime.sleep(1000)\n", 3),
        ("def f():\n    while True: pass\n\nf()\n", 2),
        ("while True:\n    try:\n        while True: pass\n    except BaseException: pass\n", 3),
        ("import os\nr, w = os.pipe()\nos.read(r, 1)\n", 3),
    ],
    ids=["loop", "sleep", "in-a-function", "catches-all", "blocked"],
)
def test_time_limit_names_the_line(tmp_path: Path, text: str, line: int) -> None:
    before = time.monotonic()  # 1.5 s also start an interpreter on a machine that is busy with other tests
    file, found, message = one_fault(tmp_path, text, timeout=1.5)
    assert time.monotonic() - before < 10
    assert (file, message) == (
        BAD,
        "loading the workflows took more than 1.5 seconds; it was here at the time limit",
    )
    assert found in (line, line + 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os\nos._exit(0)\n", "ended before it was loaded"),
        ("import os\nos._exit(4)\n", "ended with exit code 4"),
        ("import os\nos.kill(os.getpid(), 9)\n", "was killed by SIGKILL"),
        ("import ctypes\nctypes.string_at(0)\n", "was killed by SIGSEGV"),
        ("import os\nos.closerange(3, 100)\n", "ended"),
    ],
    ids=["exit-0", "exit-4", "kill", "crash", "close-everything"],
)
def test_a_process_that_vanishes(tmp_path: Path, text: str, message: str) -> None:
    file, _, found = one_fault(tmp_path, text)
    assert file == BAD
    assert message in found


def test_a_crash_names_its_line(tmp_path: Path) -> None:
    assert one_fault(tmp_path, "import ctypes\n\nctypes.string_at(0)\n")[:2] == (BAD, 3)


def test_the_files_beside_one_that_vanishes_are_still_checked(tmp_path: Path) -> None:
    faults = faults_of(
        tmp_path,
        a="import os\nos._exit(4)\n",
        b='from corral.workflow import Workflow\nWorkflow("b")\n',
        c="import os\nos._exit(5)\n",
        d="undefined\n",
    )
    assert [(fault.file[-4:], fault.line) for fault in faults] == [("a.py", 0), ("b.py", 2), ("c.py", 0), ("d.py", 1)]


def test_what_is_printed_is_shown_and_bounded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_tree(
        tmp_path,
        loud="""
        import os, sys
        from corral.workflow import Workflow
        print("hello from the author")
        for _ in range(1600):
            sys.stdout.write("x" * 65536)
        os.write(1, b"to descriptor 1\\n")
        os.write(2, b"to descriptor 2\\n")
        Workflow("ci").job("a", steps=["true"])
        """,
    )
    said: list[str] = []
    lock = compile_tree(tmp_path, diagnose=said.append)
    assert [workflow.name for workflow in lock.workflows] == ["ci"]
    text = "".join(said)
    assert text.startswith("hello from the author\n")
    assert len(text) < 70_000
    assert "more bytes printed; the first 65536 are shown" in text
    assert capfd.readouterr() == ("", "")


def test_a_child_that_outlives_it_is_killed(tmp_path: Path) -> None:
    """Also one that left the process group, and although it holds every pipe open."""
    pids = tmp_path / "pids"
    before = time.monotonic()
    lock = compiled(
        tmp_path,
        forks=f"""
        import os, signal, time
        from corral.workflow import Workflow
        Workflow("ci").job("a", steps=["true"])
        for leave in (False, True):
            ready, told = os.pipe()
            if os.fork() == 0:
                if leave:
                    os.setsid()
                    if os.fork():
                        os._exit(0)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                with open({str(pids)!r}, "a") as file:
                    file.write(f"{{os.getpid()}}\\n")
                os.write(told, b"x")
                time.sleep(600)
                os._exit(0)
            os.close(told)
            os.read(ready, 1)
        """,
    )
    assert time.monotonic() - before < 10
    assert len(lock.workflows) == 1
    left = [int(line) for line in pids.read_text().splitlines() if _runs(int(line))]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def _runs(pid: int) -> bool:
    """False also for a zombie, which only waits for its new parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_thread_does_not_keep_the_compiler_waiting(tmp_path: Path) -> None:
    before = time.monotonic()
    compiled(
        tmp_path,
        threads="""
        import atexit, threading, time
        from corral.workflow import Workflow
        Workflow("ci").job("a", steps=["true"])
        threading.Thread(target=time.sleep, args=(600,)).start()
        atexit.register(time.sleep, 600)
        """,
    )
    assert time.monotonic() - before < 10


def test_a_huge_workflow_is_refused(tmp_path: Path) -> None:
    text = """
    from corral.workflow import Workflow
    ci = Workflow("ci")
    for n in range(1024):
        ci.job(f"j{n}", steps=["true"], env={f"V{m}": "x" * 60000 for m in range(5)})
    """
    file, _, message = one_fault(tmp_path, text)
    assert (file, message) == ("", "the workflows are above 16777216 bytes") or "above" in message


def test_the_environment_of_the_caller_does_not_reach_the_workflow(tmp_path: Path) -> None:
    os.environ["CORRAL_TEST_SECRET"] = "hunter2"
    try:
        lock = compiled(
            tmp_path,
            env="""
            import os
            from corral.workflow import Workflow
            ci = Workflow("ci", env={"N": os.environ.get("CORRAL_TEST_SECRET", "unset"), "D": os.getcwd()})
            ci.job("a", steps=["true"])
            """,
        )
    finally:
        del os.environ["CORRAL_TEST_SECRET"]
    assert lock.workflows[0].env == {"N": "unset", "D": str(tmp_path.resolve())}


def test_nothing_is_written_into_the_tree(tmp_path: Path) -> None:
    compiled(tmp_path, ci="import _helper\n" + GOOD, _helper="X = 1\n")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["_helper.py", "ci.py"]
