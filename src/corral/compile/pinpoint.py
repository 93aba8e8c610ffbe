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
    """The argument named in the fault's path, in the call that starts at its line."""
    found = [call for call in calls if call.lineno == fault.line or call.func.end_lineno == fault.line]
    for name in fault.path.split("."):
        for call in found:
            line = _argument_line(call, name)
            if line:
                return replace(fault, line=line)
    return fault


def _argument_line(call: ast.Call, name: str) -> int:
    return next((keyword.value.lineno for keyword in call.keywords if keyword.arg == name), 0)


def _calls(path: Path) -> list[ast.Call]:
    """Every call in the file; none when it is no readable Python."""
    with suppress(OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        if path.stat().st_size <= _SIZE_LIMIT:
            return [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)]
    return []
