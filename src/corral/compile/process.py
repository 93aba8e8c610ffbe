# SPDX-License-Identifier: Apache-2.0
"""One run of a child that executes an author's code: bounded in time and output, with nothing of it left behind.

The child gets a fixed environment, so that what a workflow says does not depend on whose shell compiled it.
"""

from __future__ import annotations

import os
import secrets
import select
import selectors
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from io import FileIO
from pathlib import Path
from typing import cast

from corral.runtime.clock import Clock

REPORT_LIMIT = 16 * 1024 * 1024
"""Bytes of the report: three times the largest lock file, which says the same in more compact form."""
OUTPUT_LIMIT = 64 * 1024
"""Bytes kept of what the author's code prints; the rest is read and dropped, so that printing never blocks it."""
TRACE_LIMIT = 64 * 1024
TRACE_TIME = 0.5
"""Seconds for a child at its time limit to write its stack: a signal handler of the interpreter, so milliseconds."""
_CHUNK = 64 * 1024
_LOOK_AGAIN = 0.02
"""Seconds between two looks at whether the child ended: its end may leave a pipe open in a grandchild's hands."""
_DYING = 1.0
"""Seconds to see a killed process end; only one stuck in the kernel takes longer, and waiting would not help it."""
_ROUNDS = 50
"""Passes over the processes: one that forks while being looked for is found in a later one."""
_MARK = "CORRAL_COMPILE"
_KEPT = ("PATH", "HOME", "TMPDIR", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")


class End(StrEnum):
    EXITED = "exited"
    TIMED_OUT = "timed_out"
    REPORTED_TOO_MUCH = "reported_too_much"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """``code`` is the exit code, negative for a signal; ``trace`` the stack at the time limit, innermost first."""

    end: End
    code: int
    report: bytes
    output: bytes
    output_dropped: int
    trace: bytes


class _Stream:
    """Keeps the first ``limit`` bytes of one pipe and counts the rest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.dropped = 0

    def take(self, data: bytes) -> None:
        room = max(0, self._limit - len(self._kept))
        self._kept += data[:room]
        self.dropped += max(0, len(data) - room)

    @property
    def kept(self) -> bytes:
        return bytes(self._kept)


def run_bounded(arguments: Sequence[str], *, directory: Path, timeout: float, clock: Clock) -> Ended:
    """Run ``arguments`` + report descriptor + trace descriptor, at most ``timeout`` seconds.

    Everything it started is killed, also what left its process group, before this returns.
    """
    mark = secrets.token_hex(16)
    with ExitStack() as stack:
        report, trace, output = (_pipe(stack) for _ in range(3))
        child = subprocess.Popen(
            [*arguments, str(report.writer.fileno()), str(trace.writer.fileno())],
            cwd=directory,
            env={**_environment(), _MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output.writer,
            stderr=output.writer,
            pass_fds=(report.writer.fileno(), trace.writer.fileno()),
            start_new_session=True,
        )
        try:
            for pipe in (report, trace, output):
                pipe.writer.close()
            return _Watch(child, clock, report=report, trace=trace, output=output).until_end(timeout)
        finally:
            _sweep(child, mark)


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}


@dataclass(frozen=True)
class _Pipe:
    reader: FileIO
    writer: FileIO


def _pipe(stack: ExitStack) -> _Pipe:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    return _Pipe(stack.enter_context(FileIO(reader, "rb")), stack.enter_context(FileIO(writer, "wb")))


class _Watch:
    """Reads a child's pipes until it ends or has to be ended."""

    def __init__(
        self, child: subprocess.Popen[bytes], clock: Clock, *, report: _Pipe, trace: _Pipe, output: _Pipe
    ) -> None:
        self._child = child
        self._clock = clock
        self._report = _Stream(REPORT_LIMIT)
        self._trace = _Stream(TRACE_LIMIT)
        self._output = _Stream(OUTPUT_LIMIT)
        self._selector = selectors.DefaultSelector()
        for pipe, stream in ((report, self._report), (trace, self._trace), (output, self._output)):
            self._selector.register(pipe.reader, selectors.EVENT_READ, stream)

    def until_end(self, timeout: float) -> Ended:
        with self._selector:
            end = self._end(self._clock.monotonic() + timeout)
            if end is End.TIMED_OUT:
                self._ask_where()
        code = self._code() if end is End.EXITED else 0
        return Ended(
            end=end,
            code=code or 0,
            report=self._report.kept,
            output=self._output.kept,
            output_dropped=self._output.dropped,
            trace=self._trace.kept,
        )

    def _end(self, deadline: float) -> End:
        while self._code() is None:
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return End.TIMED_OUT
            if self._report.dropped:
                return End.REPORTED_TOO_MUCH
            self._read(min(left, _LOOK_AGAIN))
        while self._read(0):  # what it wrote before it ended; a grandchild that writes on is cut off by the limits
            if self._report.dropped or self._output.dropped:
                break
        return End.EXITED

    def _code(self) -> int | None:
        """The exit code once it ended. It stays a zombie, so that its process group can still be killed by number
        (but on a macOS whose Python lacks ``waitid``)."""
        if not hasattr(os, "waitid"):
            return self._child.poll()
        found = os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _read(self, seconds: float) -> bool:
        """Whether anything came within ``seconds``."""
        found = False
        for key, _ in self._selector.select(seconds):
            data = cast(FileIO, key.fileobj).read(_CHUNK)
            if data:
                found = True
                key.data.take(data)
            elif data is not None:
                self._selector.unregister(key.fileobj)
        return found

    def _ask_where(self) -> None:
        self._child.send_signal(signal.SIGUSR1)
        deadline = self._clock.monotonic() + TRACE_TIME
        while self._clock.monotonic() < deadline and b"\n" not in self._trace.kept and self._selector.get_map():
            self._read(_LOOK_AGAIN)
        while self._clock.monotonic() < deadline and self._read(_LOOK_AGAIN):
            pass  # the stack comes in many small pieces


def _sweep(child: subprocess.Popen[bytes], mark: str) -> None:
    """Kill everything that inherited the mark in its environment, then what is left of the child's group."""
    killed: set[str] = set()
    for _ in range(_ROUNDS):
        found = {entry for entry in _processes() if entry not in killed and _kill_marked(int(entry), mark)}
        if not found:
            break
        killed |= found
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _processes() -> list[str]:
    """Process ids as text; none where there is no /proc (there only the group is killed)."""
    try:
        return [entry for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208 - a thousand names, often
    except FileNotFoundError:
        return []


def _kill_marked(pid: int, mark: str) -> bool:
    """Kill the process if it carries the mark; held by descriptor, so that a reused number is never hit."""
    try:
        if not _carries(pid, mark):
            return False
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _carries(pid, mark):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], _DYING)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def _carries(pid: int, mark: str) -> bool:
    return f"{_MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
