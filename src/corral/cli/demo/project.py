# SPDX-License-Identifier: Apache-2.0
"""What a project's tests need, read from its files without running any of them."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

_TEST_FILE = re.compile(r"(test_.*|.*_test|tests)\.py\Z")
_EXTRA = re.compile(r";.*\bextra\b")


@dataclass(frozen=True, kw_only=True)
class Project:
    """``requirements`` is empty where the tests run with the standard library's unittest and nothing else."""

    test_files: tuple[Path, ...]
    runner: str
    requirements: tuple[str, ...]


def examine(tree: Path) -> Project:
    """``test_files`` is empty where the project has none."""
    files = tuple(sorted(_test_files(tree)))
    runner = "pytest" if any(_wants_pytest(path) for path in files) else "unittest"
    needs = _dependencies(tree)
    if runner == "pytest":
        needs = ("pytest", *needs)
    return Project(test_files=files, runner=runner, requirements=needs)


def _test_files(tree: Path) -> Iterator[Path]:
    for path in tree.rglob("*.py"):
        inside = path.relative_to(tree)
        hidden = any(part.startswith(".") or part in ("build", "dist") for part in inside.parts)
        if not hidden and _TEST_FILE.match(path.name) and _has_tests(path):
            yield path


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return ast.Module(body=[], type_ignores=[])


def _has_tests(path: Path) -> bool:
    tree = _parsed(path)
    functions = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return any(name.startswith("test") for name in functions)


def _wants_pytest(path: Path) -> bool:
    """It imports pytest, or has tests outside of a ``TestCase``."""
    tree = _parsed(path)
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    if any(name.split(".")[0] == "pytest" for name in names):
        return True
    return any(_outside_a_case(node) for node in tree.body)


def _outside_a_case(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name.startswith("test")
    tests = isinstance(node, ast.ClassDef) and node.name.startswith("Test") and not node.bases
    return tests and any(isinstance(each, ast.FunctionDef) and each.name.startswith("test") for each in node.body)  # type: ignore[attr-defined]


def _dependencies(tree: Path) -> tuple[str, ...]:
    """What the package needs when it runs, as its metadata says."""
    metadata = tree / "PKG-INFO"
    if metadata.is_file():
        message = Parser().parsestr(metadata.read_text(errors="replace"), headersonly=True)
        listed = [str(value) for value in message.get_all("Requires-Dist", [])]
    else:
        listed = _from_pyproject(tree / "pyproject.toml")
    return tuple(line for line in listed if not _EXTRA.search(line))


def _from_pyproject(path: Path) -> list[str]:
    try:
        project = tomllib.loads(path.read_text()).get("project", {})
        return [str(line) for line in project.get("dependencies", [])]
    except (OSError, ValueError, AttributeError, TypeError):
        return []
