# SPDX-License-Identifier: Apache-2.0
"""``corral compile``: workflows to lock file."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from corral.cli.exits import ExitCode, exit_code_of
from corral.compile import check_tree, compile_tree, find_tree, write_lock
from corral.compile.tree import TIMEOUT
from corral.model.errors import CorralError, Fault, Invalid
from corral.model.spec import Lock
from corral.workflow.lock import LOCK_PATH


def compile_command(
    path: Annotated[Path, typer.Argument(help="A work tree, or a directory inside one.", metavar="PATH")] = Path(),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 when the lock file is not up to date.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to load all workflow files.", min=0.1)] = TIMEOUT,
) -> None:
    """Compile the workflows of a tree to its lock file.

    .corral/workflows becomes .corral/corral.lock.json, which is committed with them. Exit code 2: something is wrong
    with the workflows; 1: with --check, the lock file is not up to date.
    """
    bad = ExitCode.RUN_FAILED if check else ExitCode.USAGE
    try:
        tree = find_tree(path)
        faults, lock, written = _checked(tree, timeout) if check else _compiled(tree, timeout)
    except Invalid as error:
        faults, lock, written, bad = error.faults, None, False, ExitCode.USAGE
    except CorralError as error:
        faults, lock, written, bad = (Fault(message=error.message),), None, False, exit_code_of(error)
    if as_json:
        typer.echo(_as_json(faults, lock, written))
    else:
        _say(faults, lock, written, check)
    raise typer.Exit(bad if faults else ExitCode.OK)


Outcome = tuple[Sequence[Fault], Lock | None, bool]


def _compiled(tree: Path, timeout: float) -> Outcome:
    lock = compile_tree(tree, timeout, diagnose=_diagnose)
    return (), lock, write_lock(lock, tree / LOCK_PATH)


def _checked(tree: Path, timeout: float) -> Outcome:
    drift = check_tree(tree, timeout, diagnose=_diagnose)
    return drift.faults, drift.lock, False


def _diagnose(text: str) -> None:
    """What the author's code printed goes to standard error: standard output is ours."""
    sys.stderr.write(text if text.endswith("\n") else f"{text}\n")


def _as_json(faults: Sequence[Fault], lock: Lock | None, written: bool) -> str:
    result = {
        "lock": LOCK_PATH,
        "hash": lock.hash if lock else None,
        "written": written,
        "workflows": [workflow.name for workflow in lock.workflows] if lock else [],
        "faults": [msgspec.to_builtins(fault) for fault in faults],
    }
    return json.dumps(result, indent=2, sort_keys=True)


def _say(faults: Sequence[Fault], lock: Lock | None, written: bool, check: bool) -> None:
    for fault in faults:
        typer.echo(str(fault), err=True)
    if faults:
        typer.echo(_count(len(faults), "fault"), err=True)
    elif lock is not None:
        jobs = sum(len(workflow.jobs) for workflow in lock.workflows)
        what = "is up to date" if check or not written else "written"
        typer.echo(f"{LOCK_PATH} {what}: {_count(len(lock.workflows), 'workflow')}, {_count(jobs, 'job')}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
