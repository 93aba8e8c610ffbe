# SPDX-License-Identifier: Apache-2.0
"""Events on the standard input of a program, which a warden holds to its deadline and to its coordinator's life."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from corral.backends.event.answering import BODY_LIMIT, LOOKED_AT, Masker, detail, provider_id, read_event, sentence
from corral.model.events import Answer, Exec, Target, Verdict

LEASH = str(Path(__file__).with_name("leash.py"))
TIED_FD, REPORT_FD = 3, 4
"""Descriptors of the warden."""
ALWAYS_PASSED = ("PATH", "HOME", "LANG", "TZ")
EXIT_LATER, EXIT_STALE = 75, 77
"""What a program says by its exit code: EX_TEMPFAIL and EX_NOPERM of sysexits.h."""
GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL, at most; a tenth of the time a program has, where that is less."""
WARDEN_LATE = 3.0
"""Seconds past the deadline that a warden's own word is waited for; it has to be stopped itself to need them."""
CLOSE_TIMEOUT = GRACE + WARDEN_LATE
_CHUNK = 65536


class ExecDeliverer:
    """A ``Deliverer`` of :class:`Exec` targets.

    :param state_dir: where a program runs whose target names no directory.
    :param environ: the coordinator's own variables; what a target names of them is hidden in details.
    """

    def __init__(self, state_dir: Path, environ: Mapping[str, str], *, python: str = sys.executable) -> None:
        self._state_dir = state_dir
        self._environ = environ
        self._python = python
        self._running: set[_Program] = set()

    async def close(self) -> None:
        """Tell every program that still runs to stop, and wait until it has."""
        programs = tuple(self._running)
        for program in programs:
            program.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                for program in programs:
                    await program.dead.wait()

    async def deliver(self, target: Target, event: bytes, *, event_id: str, timeout: float) -> Answer:
        assert isinstance(target, Exec)
        said = read_event(event)
        environment = self._environment(target, said.type, said.agent_id, event_id)
        masker = Masker(
            [said.claim_code, *(environment[name] for name in target.env if _looks_secret(name, environment))]
        )
        directory = Path(target.directory or self._state_dir)
        try:
            found = _program(target.command, directory, environment.get("PATH", os.defpath))
            grace = min(GRACE, timeout / 10)
            leashed = [self._python, "-I", "-S", LEASH, repr(timeout - grace), repr(grace), str(directory)]
            program = _start([*leashed, found, *target.command], environment, event)
        except OSError as error:
            return Answer(verdict=Verdict.LATER, detail=detail(f"not started: {_reason(error)}"))
        self._running.add(program)
        program.on_dead = lambda: self._running.discard(program)
        try:
            async with asyncio.timeout(timeout + WARDEN_LATE):
                await program.ended.wait()
            return _answer(program, masker, listing=said.listing, timeout=timeout)
        except TimeoutError:
            return Answer(
                verdict=Verdict.UNANSWERED, detail=f"no word of its warden {WARDEN_LATE:g} s past the deadline"
            )
        finally:
            program.stop()

    def _environment(self, target: Exec, kind: str, agent_id: str, event_id: str) -> dict[str, str]:
        passed = {name: self._environ[name] for name in (*ALWAYS_PASSED, *target.env) if name in self._environ}
        ours = {"CORRAL_EVENT_TYPE": kind, "CORRAL_AGENT_ID": agent_id, "CORRAL_EVENT_ID": event_id}
        return passed | {name: value.replace("\0", "") for name, value in ours.items()}


def _looks_secret(name: str, environment: Mapping[str, str]) -> bool:
    """A named variable is there because the program needs it: mostly to prove who it is. Short ones are settings."""
    return len(environment.get(name, "")) >= 16


def _program(command: tuple[str, ...], directory: Path, path: str) -> str:
    """Where the program is. :raises OSError: with a sentence for the operator as its text."""
    if not command or not command[0]:
        raise OSError("the target's command is empty")
    if not directory.is_dir():
        raise OSError(f"there is no directory {directory}; make it, or name another in the target")
    name = command[0]
    if "/" in name:
        found = directory / name
        if not found.exists():
            raise OSError(f"there is no program {found}")
        if not found.is_file() or not os.access(found, os.X_OK):
            raise OSError(f"{found} is not executable; `chmod +x` it")
        return str(found)
    located = shutil.which(name, path=path)
    if located is None:
        raise OSError(f"there is no program {name} on the server's PATH; name it with its whole path")
    return located


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


# --- one program -------------------------------------------------------------------------------------------


class _Reader:
    """A pipe's first ``limit`` bytes; what follows is read and dropped, so that its writer never waits."""

    def __init__(self, fd: int, limit: int, on_end: Callable[[], None]) -> None:
        self.data = bytearray()
        self.dropped = False
        self._fd = fd
        self._limit = limit
        self._on_end = on_end
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self._readable)

    def drain(self) -> None:
        """What is there now, and no more: a daemon may hold the pipe for ever."""
        for _ in range(64):
            if self._fd < 0 or not self._read():
                return

    def close(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        try:
            piece = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        if not piece:
            self.close()
            self._on_end()
            return False
        room = self._limit - len(self.data)
        self.dropped = self.dropped or len(piece) > room
        self.data += piece[:room]
        return True


@dataclass(eq=False, kw_only=True)
class _Program:
    """A warden and its pipes. ``ended``: it said how the program ended, or died without a word."""

    pid: int
    pidfd: int
    tied: int
    ended: asyncio.Event
    dead: asyncio.Event
    out: _Reader
    err: _Reader
    report: _Reader
    on_dead: Callable[[], None] = lambda: None

    def stop(self) -> None:
        """Close everything; the warden ends what is left and itself. Idempotent."""
        if self.tied >= 0:
            os.close(self.tied)
            self.tied = -1
        for reader in (self.out, self.err, self.report):
            reader.close()

    def reap(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.pidfd)
        os.close(self.pidfd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        self.dead.set()
        self.on_dead()


def _start(arguments: list[str], environment: dict[str, str], event: bytes) -> _Program:
    """:raises OSError: not started."""
    opened: list[int] = []

    def pipe() -> tuple[int, int]:
        ends = os.pipe()
        opened.extend(ends)
        return ends

    try:
        # In memory and whole before the program starts: it may read it when and as often as it likes.
        stdin = os.memfd_create("corral-event", os.MFD_CLOEXEC)
        opened.append(stdin)
        with os.fdopen(os.dup(stdin), "wb") as file:
            file.write(event)
        os.lseek(stdin, 0, os.SEEK_SET)
        (out, out_write), (err, err_write), (report, report_write), (tied_read, tied) = pipe(), pipe(), pipe(), pipe()
        theirs = (stdin, out_write, err_write, tied_read, report_write)
        # The numbers wanted may be taken by one another: move all out of the way first.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for fd in theirs]
        opened.extend(high)
        actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(high)]
        pid = os.posix_spawn(
            arguments[0],
            arguments,
            environment,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
        )
        pidfd = os.pidfd_open(pid)
    except BaseException:
        for fd in opened:
            os.close(fd)
        raise
    for fd in (*theirs, *high):
        os.close(fd)
    ended = asyncio.Event()
    program = _Program(
        pid=pid,
        pidfd=pidfd,
        tied=tied,
        ended=ended,
        dead=asyncio.Event(),
        out=_Reader(out, BODY_LIMIT, lambda: None),
        err=_Reader(err, LOOKED_AT, lambda: None),
        report=_Reader(report, 4096, ended.set),
    )
    asyncio.get_running_loop().add_reader(pidfd, program.reap)
    return program


def _answer(program: _Program, masker: Masker, *, listing: bool, timeout: float) -> Answer:
    program.out.drain()
    program.err.drain()
    how, _, rest = program.report.data.decode().partition(" ")
    out, err = bytes(program.out.data), bytes(program.err.data)
    verdict, what = _meaning(how, rest, timeout)
    if program.out.dropped:
        what += f", with more than {BODY_LIMIT // 1024**2} MiB of output, which were not read"
    whole = b"" if program.out.dropped else out
    return Answer(
        verdict=verdict,
        detail=detail(what, sentence(err, masker)),
        provider_id=provider_id(whole, masker) or provider_id(err, masker),
        body=whole if listing and verdict is Verdict.DONE else b"",
    )


def _meaning(how: str, rest: str, timeout: float) -> tuple[Verdict, str]:
    match how:
        case "exit":
            verdicts = {0: Verdict.DONE, EXIT_LATER: Verdict.LATER, EXIT_STALE: Verdict.STALE}
            return verdicts.get(int(rest), Verdict.REFUSED), f"exit {rest}"
        case "signal":
            # Somebody else ended it in the middle of what it did.
            return Verdict.UNANSWERED, f"killed by signal {rest}"
        case "deadline":
            return Verdict.UNANSWERED, f"not done within {timeout:g} s and killed"
        case "stopped":
            return Verdict.UNANSWERED, "told to stop and killed"
        case "failed":
            number, _, step = rest.partition(" ")
            return Verdict.LATER, f"not started: cannot {step}: {os.strerror(int(number))}"
    return Verdict.UNANSWERED, "its warden was killed"
