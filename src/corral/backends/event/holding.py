# SPDX-License-Identifier: Apache-2.0
"""The warden of one provisioner's program: it ends at its deadline, and with its coordinator. Standard library only.

Descriptors: 0 the event, 1 and 2 the program's own output, 3 a pipe whose end means "stop", 4 where the one line goes
that says how it ended: ``exit CODE``, ``signal NUMBER``, ``deadline``, ``stopped`` or ``failed ERRNO STEP``.

A program that ends in time leaves what made a session of its own (a daemon that it meant to start); whatever else is
in its process group is killed. At the deadline, or when told to stop, all descendants are killed.
"""

from __future__ import annotations

import fcntl
import math
import os
import select
import signal

from process import attending, launch, procfs  # type: ignore[import-not-found]
from process.attending import LONGEST_POLL, boottime  # type: ignore[import-not-found]

TIED_FD, REPORT_FD = 3, 4


class Leash:
    """``seconds``: until SIGTERM; ``grace``: from there to SIGKILL."""

    def __init__(self, seconds: float, grace: float, directory: str, command: list[str]) -> None:
        self.deadline = boottime() + seconds
        self.grace = grace
        self.directory = directory
        self.command = command
        self.environment = given_environment()
        self.kill_at = math.inf
        self.reason = ""
        self.program = -1
        self._told = False
        self._wakeups = attending.Wakeups(self._on_term)

    def run(self) -> int:
        self._wakeups.listen()
        try:
            self.program = self._launch()
        except launch.LaunchError as error:
            report(f"failed {error.number} {error.step}")
            return 1
        status = self._watch()
        if self.reason:
            attending.end_everything(self._wakeups, self._children)
            report(self.reason)
        else:
            report(ended(status))
        return 0

    def _on_term(self) -> None:
        self._told = True

    def _watch(self) -> int:
        """Until the program has ended, or has to; its status."""
        poll = select.poll()
        poll.register(self._wakeups.fd, select.POLLIN)
        poll.register(TIED_FD, select.POLLIN)
        while True:
            status = self._status()
            if status is not None:
                return status
            now = boottime()
            if now >= self.kill_at:
                return 0
            if not self.reason and (self._told or now >= self.deadline):
                self._stop("stopped" if self._told else "deadline")
            due = min(self.kill_at if self.reason else self.deadline, now + LONGEST_POLL) - now
            for fd, _ in poll.poll(math.ceil(max(due, 0.0) * 1000)):
                if fd == self._wakeups.fd:
                    self._wakeups.drain()
                else:
                    # Nobody writes on it: readable means that the coordinator closed it, or ended.
                    poll.unregister(fd)
                    self._told = True

    def _stop(self, reason: str) -> None:
        """Ask first: terraform, for one, writes its state down and unlocks it when it is asked."""
        self.reason = reason
        self.kill_at = boottime() + self.grace
        for number in (signal.SIGTERM, signal.SIGCONT):
            # Not reaped yet, so the number is still the program's group.
            kill_group(self.program, number)

    def _status(self) -> int | None:
        """How the program ended; None while it runs. Other dead children are collected on the way."""
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return 0
            if seen is None:
                return None
            if seen.si_pid == self.program:
                # Before it is reaped: its group's number cannot be another's yet.
                kill_group(self.program, signal.SIGKILL)
            pid, status = os.waitpid(seen.si_pid, 0)
            if pid == self.program:
                return status

    def _children(self) -> bool:
        """Collect the dead; whether a living one is left."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True

    def _launch(self) -> int:
        """Fork and exec; the child's pid. :raises LaunchError: when the child could not become the program."""
        read, write = os.pipe()
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(write, me)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            failure = pipe.read()
        if failure:
            os.waitpid(pid, 0)
            number, step = failure.decode().split(" ", 1)
            raise launch.LaunchError(step, int(number))
        # The program's ends of the pipes are its own: their end means that it and its children have closed them.
        for fd in (0, 1, 2):
            os.close(fd)
        return pid

    def _become(self, status: int, warden: int) -> None:
        step = "prepare"
        try:
            os.setsid()
            step = f"enter the directory {self.directory}"
            os.chdir(self.directory)
            step = "tie to the warden"
            launch.die_with_parent(warden)
            for ignored in signal.valid_signals():
                if signal.getsignal(ignored) is signal.SIG_IGN:
                    signal.signal(ignored, signal.SIG_DFL)
            step = f"run {self.command[0]}"
            os.execve(self.command[0], self.command[1:], self.environment)
        except Exception as error:
            number = (error.errno if isinstance(error, OSError) else None) or 22
            os.write(status, f"{number} {step}".encode())
        finally:
            os._exit(127)


def given_environment() -> dict[bytes, bytes]:
    """As it was given: an interpreter in the C locale adds a variable of its own to what it passes on."""
    pairs = (item.partition(b"=") for item in (procfs.read("/proc/self/environ") or b"").split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def ended(status: int) -> str:
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"


def report(text: str) -> None:
    try:
        os.write(REPORT_FD, text.encode())
    except OSError:
        pass  # The coordinator is gone; there is nobody to tell.


def kill_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def main(arguments: list[str]) -> int:
    """``SECONDS GRACE DIRECTORY PROGRAM ARGV…``."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > REPORT_FD:
            try:
                os.close(int(name))
            except OSError:
                pass
    for fd in (TIED_FD, REPORT_FD):
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    launch.become_subreaper()
    return Leash(float(arguments[0]), float(arguments[1]), arguments[2], arguments[3:]).run()
