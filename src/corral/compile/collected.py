# SPDX-License-Identifier: Apache-2.0
"""What an author's files say, read from children that load them; every way such a child can end becomes a fault."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import msgspec

from corral.compile.process import OUTPUT_LIMIT, REPORT_LIMIT, End, Ended, run_bounded
from corral.model.errors import Fault
from corral.model.spec import WorkflowSpec
from corral.runtime.clock import Clock
from corral.workflow.words import printable

Diagnose = Callable[[str], None]
"""Takes what the author's code printed."""


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    workflows: tuple[WorkflowSpec, ...]
    files: dict[str, str]
    faults: tuple[Fault, ...]
    incomplete: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Collected:
    """``incomplete``: files that did not load to their end, so that more may be in them than was found."""

    workflows: tuple[WorkflowSpec, ...] = ()
    files: dict[str, str]
    faults: tuple[Fault, ...]
    incomplete: frozenset[str]


def collect(tree: Path, *, timeout: float, clock: Clock, diagnose: Diagnose) -> Collected:
    """Load every workflow of ``tree``; a file that ends its process is left out and the others are loaded again.

    :param timeout: seconds for all of it together.
    """
    faults: list[Fault] = []
    skipped: list[str] = []
    deadline = clock.monotonic() + timeout
    while True:
        left = max(0.1, deadline - clock.monotonic())
        ended = run_bounded(_command(tree, skipped), directory=tree, timeout=left, clock=clock)
        _pass_on(ended, diagnose)
        report = _report(ended)
        if report is not None:
            return Collected(
                workflows=report.workflows,
                files=report.files,
                faults=(*faults, *map(_readable, report.faults)),
                incomplete=frozenset((*report.incomplete, *skipped)),
            )
        culprit = _loading(ended)
        faults.append(_readable(_fault(ended, culprit, tree, timeout)))
        if ended.end is not End.EXITED or not culprit or culprit in skipped:
            return Collected(files={}, faults=tuple(faults), incomplete=frozenset(skipped))
        skipped.append(culprit)


def _readable(fault: Fault) -> Fault:
    """Messages of exceptions may hold anything."""
    return replace(fault, file=printable(fault.file), path=printable(fault.path), message=printable(fault.message))


def _command(tree: Path, skipped: Sequence[str]) -> list[str]:
    """Not ``-I``, which would ignore our own fixed hash seed; the environment is ours, so nothing else is let in."""
    runner = Path(_language_folder()) / "runner.py"
    return [sys.executable, "-s", "-P", "-B", str(runner), "--collect", str(tree), ",".join(skipped)]


def _language_folder() -> str:
    spec = find_spec("corral.workflow")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("corral.workflow is not installed as a package")
    return spec.submodule_search_locations[0]


def _pass_on(ended: Ended, diagnose: Diagnose) -> None:
    if ended.output:
        diagnose(ended.output.decode("utf-8", "replace"))
    if ended.output_dropped:
        diagnose(f"… {ended.output_dropped} more bytes printed; the first {OUTPUT_LIMIT} are shown\n")


def _lines(ended: Ended) -> list[dict[str, object]]:
    """The report's lines that are whole and JSON objects; the author's code may have written anything there."""
    found = []
    for line in ended.report.splitlines():
        with suppress(ValueError, RecursionError):
            value = json.loads(line)
            if isinstance(value, dict):
                found.append(value)
    return found


def _report(ended: Ended) -> _Report | None:
    if ended.end is not End.EXITED or ended.code != 0:
        return None
    for line in reversed(_lines(ended)):
        with suppress(msgspec.ValidationError):
            return msgspec.convert(line, _Report)
    return None


def _loading(ended: Ended) -> str:
    found = [line["loading"] for line in _lines(ended) if isinstance(line.get("loading"), str)]
    return str(found[-1]) if found else ""


def _fault(ended: Ended, culprit: str, tree: Path, timeout: float) -> Fault:
    file, line = _where(ended.trace, tree) or (culprit, 0)
    match ended.end:
        case End.TIMED_OUT:
            message = f"loading the workflows took more than {timeout:g} seconds; it was here at the time limit"
            remedy = "a workflow file only describes jobs: do work in steps"
        case End.REPORTED_TOO_MUCH:
            message = f"the workflows are above {REPORT_LIMIT} bytes"
            remedy = "keep data out of workflows: read it in a step"
        case End.EXITED:
            message = _how(ended)
            remedy = "a workflow file must load without ending its process"
    return Fault(file=file, line=line, message=message, remedy=remedy)


def _how(ended: Ended) -> str:
    if ended.code < 0:
        with suppress(ValueError):
            return f"the process that loads it was killed by {signal.Signals(-ended.code).name}"
    if ended.code == 0:
        return "the process that loads it ended before it was loaded, or its report was disturbed"
    return f"the process that loads it ended with exit code {ended.code}"


_FRAME = re.compile(rb'^  File "([^"\n]+)", line (\d+) in ', re.MULTILINE)


def _where(trace: bytes, tree: Path) -> tuple[str, int] | None:
    """The innermost frame of the stack that lies in the tree."""
    for file, line in _FRAME.findall(trace):
        path = Path(file.decode("utf-8", "replace"))
        if path.is_relative_to(tree) and "site-packages" not in path.parts:
            return str(path.relative_to(tree)), int(line)
    return None
