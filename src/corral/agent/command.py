# SPDX-License-Identifier: Apache-2.0
"""From a step's spec to a command line: shell scripts and Python functions."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from corral.model.spec import JobSpec, Reason, StepKind, StepSpec

BASH = ("bash", "-euo", "pipefail")
SH = ("sh", "-eu")


class CannotRun(Exception):
    """This step cannot run here; ``reason`` and a sentence."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def command_line(
    job: JobSpec, step: StepSpec, *, index: int, work: Path, run: Path, env: Mapping[str, str], interpreter: str
) -> list[str]:
    """What to execute. ``run``: where the script may be written; ``interpreter``: the job's Python.

    :raises CannotRun: no shell, no interpreter, or a file that is not the one that was compiled.
    """
    if step.kind is StepKind.FUNCTION:
        return _function(step, work, env, interpreter)
    return _shell(job, step, run / f"step-{index}", env)


def _shell(job: JobSpec, step: StepSpec, script: Path, env: Mapping[str, str]) -> list[str]:
    prefix = step.shell or job.shell or _default_shell(env)
    program = shutil.which(prefix[0], path=env.get("PATH"))
    if program is None:
        raise CannotRun(
            Reason.NO_SHELL, f"there is no program {prefix[0]!r} on the job's PATH to run step {step.name!r}"
        )
    script.write_text(step.script if step.script.endswith("\n") else step.script + "\n", encoding="utf-8")
    script.chmod(0o700)
    return [program, *prefix[1:], str(script)]


def _default_shell(env: Mapping[str, str]) -> tuple[str, ...]:
    return BASH if shutil.which("bash", path=env.get("PATH")) else SH


def _function(step: StepSpec, work: Path, env: Mapping[str, str], interpreter: str) -> list[str]:
    file = work / step.file
    try:
        found = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise CannotRun(Reason.LOCK_MISMATCH, f"{step.file} cannot be read in the job's source: {error}") from None
    if found != step.file_hash:
        raise CannotRun(
            Reason.LOCK_MISMATCH,
            f"{step.file} is not the file that was compiled (its hash differs from the lock's): "
            "run `corral compile` and commit the result",
        )
    program = shutil.which(interpreter, path=env.get("PATH"))
    if program is None:
        raise CannotRun(Reason.INTERPRETER_LOST, f"there is no Python {interpreter!r} on the job's PATH")
    return [program, "-I", str(function_runner()), str(file), step.function]


def function_runner() -> Path:
    """The script that runs a function step, found without importing its package."""
    spec = importlib.util.find_spec("corral")
    places = spec.submodule_search_locations if spec is not None else None
    for place in places or ():
        script = Path(place) / "workflow" / "runner.py"
        if script.is_file():
            return script
    raise CannotRun(Reason.INTERPRETER_LOST, "the agent's installation has no corral.workflow: install it completely")


def own_interpreter() -> str:
    """The Python the agent itself runs on, outside of any virtual environment."""
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    return str(base) if os.access(base, os.X_OK) else sys.executable
