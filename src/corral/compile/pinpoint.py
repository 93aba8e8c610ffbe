# SPDX-License-Identifier: Apache-2.0
"""From the line of a call to the line of the argument that is wrong: a job's call may be forty lines long."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from corral.model.errors import Fault

_SIZE_LIMIT = 1024 * 1024
"""Bytes of a file looked into; nobody writes a larger one by hand."""


def pinpoint(tree: Path, faults: Sequence[Fault]) -> list[Fault]:
    """The faults, each once, with lines as exact as the text allows, in order of place."""
    calls = cache(lambda file: _calls(tree / file))
    exact = dict.fromkeys(_exact(fault, calls(fault.file)) for fault in faults)
    return sorted(exact, key=lambda fault: (fault.file, fault.line, fault.column))


def _exact(fault: Fault, calls: Sequence[ast.Call]) -> Fault:
    """The argument that the fault's path names last, in the call that starts at its line, and the entry below it."""
    names = fault.path.split(".")
    for call in calls:
        if fault.line in (call.lineno, call.func.end_lineno):
            for start in range(len(names) - 1, -1, -1):
                if _below(call, names[start]) is not None:
                    return replace(fault, line=_deepest(call, names[start:]).lineno)
    return fault


def _deepest(node: ast.expr, names: Sequence[str]) -> ast.expr:
    for name in names:
        below = _below(node, name)
        if below is None:
            break
        node = below
    return node


def _below(node: ast.expr, name: str) -> ast.expr | None:
    """The argument of a call, or the entry of a dict, that has this name."""
    if isinstance(node, ast.Call):
        return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return next((value for key, value in pairs if isinstance(key, ast.Constant) and key.value == name), None)
    return None


def _calls(path: Path) -> list[ast.Call]:
    """Every call in the file; none when it is no readable Python."""
    with suppress(OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        if path.stat().st_size <= _SIZE_LIMIT:
            if not path.is_file():
                return []
            return [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)]
    return []
