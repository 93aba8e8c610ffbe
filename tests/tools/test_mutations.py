# SPDX-License-Identifier: Apache-2.0
"""The tool that breaks guards, on a tiny tree of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "mutations.py"
CODE = "def double(number):\n    return number * 2\n"
TEST = """from tiny import double

def test_double():
    assert double(2) == 4

def test_type():
    assert double(1)
"""


def tree(root: Path, patches: dict[str, str]) -> Path:
    for folder in ("src", "tests/mutations"):
        (root / folder).mkdir(parents=True)
    (root / "src" / "tiny.py").write_text(CODE)
    (root / "tests" / "test_tiny.py").write_text(TEST)
    for name, text in patches.items():
        (root / "tests" / "mutations" / f"{name}.patch").write_text(text)
    return root


def patch(test: str, before: str = "    return number * 2", after: str = "    return number * 3") -> str:
    return (
        f"# guard: it doubles\n# test: tests/test_tiny.py::{test}\n"
        "--- a/src/tiny.py\n+++ b/src/tiny.py\n@@ -1,2 +1,2 @@\n def double(number):\n"
        f"-{before}\n+{after}\n"
    )


def run(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL), "--root", str(root)], capture_output=True, text=True, timeout=120)


def test_a_caught_mutation_is_a_success(tmp_path: Path) -> None:
    done = run(tree(tmp_path, {"double": patch("test_double")}))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["ok   double  it doubles", "1 of 1 mutations caught"]
    assert (tmp_path / "src" / "tiny.py").read_text() == CODE


def test_survivors_and_what_does_not_apply_are_failures(tmp_path: Path) -> None:
    broken = patch("test_double", after="    return (")
    stale = patch("test_double", before="    return number + number")
    done = run(tree(tmp_path, {"broken": broken, "stale": stale, "survives": patch("test_type")}))
    assert done.returncode == 1
    text = done.stdout
    assert [line.split()[1] for line in text.splitlines() if line.startswith("FAIL")] == ["broken", "stale", "survives"]
    assert text.index("the test does not run") < text.index("does not apply") < text.index("survived")
    assert text.endswith("0 of 3 mutations caught\n")


def test_a_test_that_is_red_already_guards_nothing(tmp_path: Path) -> None:
    root = tree(tmp_path, {"double": patch("test_double")})
    (root / "src" / "tiny.py").write_text(CODE.replace("* 2", "* 2 + 0 * len(number)"))
    done = run(root)
    assert done.returncode == 1
    assert "tests/test_tiny.py::test_double" in done.stderr


def test_a_patch_must_say_what_it_guards(tmp_path: Path) -> None:
    done = run(tree(tmp_path, {"bare": patch("test_double").split("\n", 2)[2]}))
    assert done.returncode == 1
    assert "# guard" in done.stderr
