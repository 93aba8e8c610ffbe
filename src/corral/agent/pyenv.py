# SPDX-License-Identifier: Apache-2.0
"""A job's Python: an interpreter, or a virtual environment made once per list of requirements and kept in the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from corral.agent.command import CannotRun, own_interpreter
from corral.model.spec import PythonSpec, Reason

RunLogged = Callable[[Sequence[str]], Awaitable[int]]
"""Runs a command with its output in the step's log; its exit code (not 0 when killed)."""


def interpreter_of(python: PythonSpec | None, env: Mapping[str, str]) -> str:
    """The path of the interpreter that the job names; the agent's own where it names none.

    :raises CannotRun: there is none of that name.
    """
    if python is None or not python.interpreter:
        return own_interpreter()
    found = shutil.which(python.interpreter, path=env.get("PATH"))
    if found is None:
        raise CannotRun(
            Reason.INTERPRETER_LOST,
            f"there is no Python {python.interpreter!r} on this agent (looked on {env.get('PATH', '')})",
        )
    return found


def environment_path(cache: Path, interpreter: str, requirements: Sequence[str]) -> Path:
    """Where the environment for exactly these requirements is, or will be."""
    identity = json.dumps([interpreter, sys.implementation.cache_tag, list(requirements)])
    return cache / "python" / hashlib.sha256(identity.encode()).hexdigest()[:32]


async def build(place: Path, interpreter: str, requirements: Sequence[str], scratch: Path, run: RunLogged) -> None:
    """Make the environment at ``place`` unless it is there.

    Built under another name and moved, so that one that is there is always complete; agents that build the same one
    at once each build their own, and the first to finish wins.

    :raises CannotRun: the log says why.
    """
    if (place / "bin" / "python").exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.parent / f".part-{os.getpid()}-{place.name}"
    shutil.rmtree(part, ignore_errors=True)
    listing = scratch / "requirements.txt"
    listing.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    try:
        for command in _commands(interpreter, part, listing):
            code = await run(command)
            if code != 0:
                raise CannotRun(
                    Reason.ENVIRONMENT_FAILED,
                    f"the job's Python environment could not be made: `{' '.join(command[1:4])} …` ended with {code}; "
                    "its output is in the log",
                )
        _move(part, place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _commands(interpreter: str, part: Path, listing: Path) -> tuple[list[str], ...]:
    python = str(part / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "-r", str(listing)]
    return ([interpreter, "-m", "venv", str(part)], pip)


def _move(part: Path, place: Path) -> None:
    _rewrite_scripts(part, place)
    try:
        part.rename(place)
    except OSError:
        if not (place / "bin" / "python").exists():
            raise


def _rewrite_scripts(part: Path, place: Path) -> None:
    """Scripts and activation files name the environment's own path; they shall name the final one."""
    before, after = os.fsencode(part), os.fsencode(place)
    for file in (*(part / "bin").iterdir(), part / "pyvenv.cfg"):
        if file.is_symlink() or not file.is_file():
            continue
        data = file.read_bytes()
        if before in data and b"\0" not in data:
            file.write_bytes(data.replace(before, after))


def activated(env: Mapping[str, str], place: Path) -> dict[str, str]:
    """``env`` with the environment's programs first."""
    return {**env, "VIRTUAL_ENV": str(place), "PATH": f"{place}/bin:{env.get('PATH', '')}"}
