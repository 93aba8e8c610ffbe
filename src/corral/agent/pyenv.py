# SPDX-License-Identifier: Apache-2.0
"""A job's Python: an interpreter, or a virtual environment made once per list of requirements and kept in the cache."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from corral.agent.cache import PART, Cache, Held, size_of
from corral.agent.command import CannotRun, own_interpreter
from corral.model.spec import PythonSpec, Reason

RunLogged = Callable[[Sequence[str]], Awaitable[int]]
"""Runs a command with its output in the step's log; its exit code (not 0 when killed)."""
Pause = Callable[[], Awaitable[bool]]
CACHED_ENVIRONMENTS = 32
CACHE_LIMIT = 8 * 1024**3
"""Bytes of all cached environments: those with large libraries have one or two gigabytes each."""


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


def environment_name(interpreter: str, requirements: Sequence[str]) -> str:
    """What the environment for exactly these requirements is called in the cache."""
    identity = json.dumps([interpreter, sys.implementation.cache_tag, list(requirements)])
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


class Environment(NamedTuple):
    """``held`` keeps it from being removed; None: it is this job's own."""

    place: Path
    held: Held | None

    def give_back(self) -> None:
        if self.held is not None:
            self.held.close()


class Environments:
    """Those of one pool. :param limit: bytes of all of them. :param count: how many."""

    def __init__(self, cache: Path, *, limit: int = CACHE_LIMIT, count: int = CACHED_ENVIRONMENTS) -> None:
        self._cache = Cache(cache / "python", limit=limit, count=count)

    async def get(
        self, interpreter: str, requirements: Sequence[str], *, scratch: Path, run: RunLogged, pause: Pause
    ) -> Environment:
        """The environment, made unless it is there and whole. Of agents that want the same one at once, one makes it.

        :param scratch: a directory of the job. :param pause: waits a moment; False: the job is ended.
        :raises CannotRun: the log says why. :raises OSError: the disk does not take it.
        """
        name = environment_name(interpreter, requirements)
        making = _Making(interpreter, requirements, scratch, run)
        while True:
            found, busy = await asyncio.to_thread(self._find, name)
            if found is not None:
                return found
            alone = self._cache.hold(name, alone=True)
            if alone is not None:
                await self._make(name, alone, making)
            elif not busy:
                # Other jobs run on a broken one, so it cannot be put right now.
                place = scratch / "python"
                await making.at(place, place)
                return Environment(place, None)
            elif not await pause():
                raise CannotRun(Reason.ENVIRONMENT_FAILED, "the job was ended before its Python environment was made")

    def _find(self, name: str) -> tuple[Environment | None, bool]:
        """The environment if it is whole, held; else whether somebody is making or removing it: neither takes for
        ever, and a dead one's lock is free."""
        held = self._cache.hold(name)
        if held is None:
            return None, True
        if _is_whole(self._cache.path(name), held):
            held.used()
            self._cache.trim()
            return Environment(self._cache.path(name), held), False
        held.close()
        return None, False

    async def _make(self, name: str, alone: Held, making: _Making) -> None:
        """For the holder that is alone, and gives it back."""
        place = self._cache.path(name)
        try:
            if not await asyncio.to_thread(_is_whole, place, alone):
                await self._make_in_part(name, making)
                alone.record(await asyncio.to_thread(size_of, place))
        finally:
            alone.close()

    async def _make_in_part(self, name: str, making: _Making) -> None:
        """Under another name and then moved, so that one that is there was complete once."""
        part = PART + name
        held = self._cache.hold(part, alone=True)
        try:
            await asyncio.to_thread(self._cache.discard, part)
            await asyncio.to_thread(self._cache.discard, name)
            await making.at(self._cache.path(part), self._cache.path(name))
        finally:
            await asyncio.to_thread(self._cache.discard, part)
            self._cache.forget_lock(part)
            if held is not None:
                held.close()


def _is_whole(place: Path, held: Held) -> bool:
    """Whether it is as it was made: jobs can write to the cache, disks fill up, and interpreters are replaced."""
    recorded = held.recorded()
    return recorded is not None and os.access(place / "bin" / "python", os.X_OK) and size_of(place) == recorded


class _Making(NamedTuple):
    interpreter: str
    requirements: Sequence[str]
    scratch: Path
    run: RunLogged

    async def at(self, part: Path, place: Path) -> None:
        """:raises CannotRun: the log says why."""
        listing = self.scratch / "requirements.txt"
        listing.write_text("\n".join(self.requirements) + "\n", encoding="utf-8")
        for command in _commands(self.interpreter, part, listing):
            code = await self.run(command)
            if code != 0:
                raise CannotRun(
                    Reason.ENVIRONMENT_FAILED,
                    f"the job's Python environment could not be made: `{' '.join(command[1:4])} …` ended with {code}; "
                    "its output is in the log",
                )
        if part != place:
            _rewrite_scripts(part, place)
            part.rename(place)


def _commands(interpreter: str, part: Path, listing: Path) -> tuple[list[str], ...]:
    python = str(part / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "-r", str(listing)]
    return ([interpreter, "-m", "venv", str(part)], pip)


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
