# SPDX-License-Identifier: Apache-2.0
"""One step's process: its own session and process group, tied to the agent's life, with nothing of it left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from corral.agent.kernel import PR_SET_PDEATHSIG, libc

OOM_SCORE = b"500"
"""``oom_score_adj`` of steps: the kernel takes a step before the agent that has to report it."""


class Exit(NamedTuple):
    """``code`` for a process that exited, ``signal`` for one that was killed; the other is None."""

    code: int | None
    signal: int | None


class CannotStart(Exception):
    """The program is missing or may not be run; ``str`` is a sentence."""


class StepProcess:
    """A running process group. Made in the event loop's thread, because the parent-death signal fires when the
    *thread* that forked ends."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        output: int,
        nice: int,
        doors: Sequence[str] = (),
    ) -> None:
        """:param doors: of its cgroups, see :meth:`~corral.agent.cgroup.JobGroup.doors`.

        :raises CannotStart: the program does not run at all."""
        try:
            self._popen = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                # The only way to set the parent-death signal and priority before the program runs without a helper
                # program in between. What it calls was resolved before the fork and takes no lock.
                preexec_fn=prepare_child(os.getpid(), nice, libc(), doors),
            )
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise CannotStart(f"{argv[0]}: {error}") from None
        self.pid = self._popen.pid
        self.ended = False
        self._wake: asyncio.Event | None = None
        self.killed = False
        """SIGKILL came from us."""
        self._watch()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        fd = os.pidfd_open(self.pid)

        def ended() -> None:
            loop.remove_reader(fd)
            os.close(fd)
            self.ended = True
            if self._wake is not None:
                self._wake.set()

        loop.add_reader(fd, ended)

    def wake_at_end(self, event: asyncio.Event) -> None:
        """Set ``event`` once ``ended`` is true."""
        self._wake = event
        if self.ended:
            event.set()

    def signal(self, number: signal.Signals) -> None:
        """Send to the whole group; a stopped group is continued, so that it can act on it."""
        if self._popen.returncode is not None:
            return
        self.killed = self.killed or number is signal.SIGKILL
        # Not reaped yet, so neither the process nor the group number can be somebody else's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
            os.killpg(self.pid, signal.SIGCONT)

    def collect(self) -> Exit:
        """After ``ended``: kill what is left of the group, then reap; how the process ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        code = self._popen.wait()
        return Exit(code, None) if code >= 0 else Exit(None, -code)


def prepare_child(parent: int, nice: int, prctl: ctypes.CDLL, doors: Sequence[str] = ()) -> Callable[[], None]:
    """For ``preexec_fn``: the child dies with the thread that forks it (of process ``parent``)."""
    # Whoever started the agent may have ignored some (nohup, a shell's background job); steps shall not.
    ignored = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]

    def prepare() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_DFL)
        prctl.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        for file in doors:
            _write(file, b"0")
        _write("/proc/self/oom_score_adj", OOM_SCORE)

    return prepare


def _write(file: str, data: bytes) -> None:
    # Between fork and exec: what is not allowed is left out, the step runs all the same.
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
    except OSError:
        return
