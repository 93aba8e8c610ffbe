# SPDX-License-Identifier: Apache-2.0
"""The warden's life: start the agent, hold it to its grant, and leave nothing of it behind. Standard library only.

It outlives the coordinator. It ends only when every descendant is dead, and its last act is ``exit.json``.
"""

from __future__ import annotations

import math
import os
import resource
import select
import signal

from . import attending, launch, procfs, removal
from .attending import LONGEST_POLL, boottime

IDENTITY = "warden"
"""File in the instance directory: ``PID START BOOT_ID`` of the warden, written before the agent is started."""
EXIT = "exit.json"
OUTPUT = "output"
OUTPUT_OLDER = "output.1"
OUTPUT_LIMIT = 512 * 1024
"""Bytes of the agent's own stdout and stderr per file, two files: enough for tracebacks, no way to fill a disk."""

GRANT_LINE_LIMIT = 64
"""Bytes of one line on the grant pipe; what is longer is no deadline."""

KEEP_OPEN = 3
"""Descriptors below this are standard input, output and error."""


class Settings:
    """The command line. Times in seconds; ``tied`` and ``ready`` are descriptors or -1."""

    def __init__(self, arguments: list[str]) -> None:
        self.directory = arguments[0]
        self.home = self.directory
        self.grace = 5.0
        self.claim_seconds = 120.0
        self.tied = -1
        self.ready = -1
        self.umask = 0o077
        self.user: tuple[int, int, tuple[int, ...]] | None = None
        self.cgroups: list[str] = []
        self.limits: list[tuple[int, int]] = []
        split = arguments.index("--")
        self.command = arguments[split + 1 :]
        for option, value in zip(arguments[1:split:2], arguments[2:split:2], strict=True):
            self._set(option, value)

    def _set(self, option: str, value: str) -> None:
        match option:
            case "--home":
                self.home = value
            case "--grace":
                self.grace = float(value)
            case "--claim-seconds":
                self.claim_seconds = float(value)
            case "--tied":
                self.tied = int(value)
            case "--ready":
                self.ready = int(value)
            case "--umask":
                self.umask = int(value, 8)
            case "--user":
                uid, gid, *groups = (int(part) for part in value.split(":"))
                self.user = (uid, gid, tuple(groups))
            case "--cgroup":
                self.cgroups.append(value)
            case "--limit":
                name, number = value.split("=")
                self.limits.append((getattr(resource, f"RLIMIT_{name}"), int(number)))
            case _:
                raise SystemExit(f"warden: unknown option {option}")


class Output:
    """The agent's own stdout and stderr: a pipe emptied into two files of bounded size, the newest bytes kept."""

    def __init__(self, directory: str) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self._path = f"{directory}/{OUTPUT}"
        self._older = f"{directory}/{OUTPUT_OLDER}"
        self._file = self._open()
        self._size = 0

    def started(self) -> None:
        os.close(self.write_end)

    def pump(self) -> bool:
        """Move what is there, at most one read; False at the end of the pipe."""
        try:
            data = os.read(self.read_end, 65536)
        except BlockingIOError:
            return True
        if not data:
            return False
        try:
            if self._size + len(data) > OUTPUT_LIMIT:
                self._rotate()
            os.write(self._file, data)
            self._size += len(data)
        except OSError:
            pass  # A full disk must not end the agent; its own logs go elsewhere.
        return True

    def drain(self) -> None:
        """What is left in the pipe once every writer is dead."""
        for _ in range(64):  # 4 MiB: more than a pipe holds
            if not select.select([self.read_end], [], [], 0)[0] or not self.pump():
                return

    def _rotate(self) -> None:
        os.close(self._file)
        os.replace(self._path, self._older)  # noqa: PTH105
        self._file = self._open()
        self._size = 0

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


class Grant:
    """Until when the agent may go on, in ``CLOCK_BOOTTIME`` seconds. What it said last counts."""

    def __init__(self, deadline: float) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.deadline = deadline
        self.heard = False
        self._rest = b""

    def started(self) -> None:
        os.close(self.write_end)

    def pump(self) -> bool:
        """Read what is there; False at the end of the pipe (the last deadline stands)."""
        try:
            data = os.read(self.read_end, 4096)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:GRANT_LINE_LIMIT]
        for line in lines:
            deadline = parse_deadline(line)
            if deadline is not None:
                self.deadline = deadline
                self.heard = True
        return bool(data)


def parse_deadline(line: bytes) -> float | None:
    """Seconds, or None for anything that is no finite decimal number."""
    if len(line) >= GRANT_LINE_LIMIT:
        return None
    try:
        value = float(line)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class Guard:
    """One warden. ``run`` returns its exit status after everything below it is dead."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.output = Output(settings.directory)
        self.grant = Grant(boottime() + settings.claim_seconds)
        self.agent = -1
        self.status: int | None = None
        """Of the agent, as waitpid gives it; None while it runs."""
        self.reason = ""
        """Why the agent was ended; empty: it ended by itself."""
        self.kill_at = math.inf
        self._terms = 0
        """SIGTERMs not acted upon yet: the handler may run between a waitpid and our noting its answer."""
        self._poll = select.poll()
        self._wakeups = attending.Wakeups(self._on_term)

    def run(self) -> int:
        self._wakeups.listen()
        try:
            self.agent = self._launch()
        except launch.LaunchError as error:
            self._say(f"failed {error.number} {error}")
            self._record("not_started", str(error))
            return 1
        self._say("ok")
        self._watch()
        self._end_everything()
        self.output.drain()
        self._record(self.reason or "ended", "")
        if self.reason == "owner_gone":
            self._clean_up()
        return 0

    def _on_term(self) -> None:
        self._terms += 1

    def _launch(self) -> int:
        plan = launch.Plan(
            command=self.settings.command,
            directory=self.settings.home,
            umask=self.settings.umask,
            user=self.settings.user,
            cgroups=tuple(self.settings.cgroups),
            limits=tuple(self.settings.limits),
        )
        pid = launch.launch(plan, output=self.output.write_end, grant=self.grant.write_end)
        self.output.started()
        self.grant.started()
        return pid

    def _say(self, text: str) -> None:
        """Tell the creator, if it still waits, whether the agent runs."""
        if self.settings.ready >= 0:
            try:
                os.write(self.settings.ready, text.encode())
            except OSError:
                pass
            os.close(self.settings.ready)

    def _watch(self) -> None:
        """Until the agent has ended, or has to."""
        for fd in (self._wakeups.fd, self.output.read_end, self.grant.read_end, self.settings.tied):
            if fd >= 0:
                self._poll.register(fd, select.POLLIN)
        self._reap()
        while self.status is None:
            now = boottime()
            if now >= self.grant.deadline:
                self.reason = "grant_ended" if self.grant.heard else "claim_ended"
                return
            if now >= self.kill_at:
                return
            due = min(self.grant.deadline, self.kill_at) - now
            for fd, _ in self._poll.poll(math.ceil(min(due, LONGEST_POLL) * 1000)):
                self._serve(fd)

    def _serve(self, fd: int) -> None:
        if fd == self._wakeups.fd:
            self._wakeups.drain()
            self._reap()
            while self._terms:
                self._terms -= 1
                self._stop("stopped")
        elif fd == self.output.read_end:
            if not self.output.pump():
                self._poll.unregister(fd)
        elif fd == self.grant.read_end:
            if not self.grant.pump():
                self._poll.unregister(fd)
        else:
            # Nobody writes on it: readable means that the coordinator has closed it by ending.
            self._poll.unregister(fd)
            self._stop("owner_gone")

    def _stop(self, reason: str) -> None:
        """Ask the agent to end, with a time limit; asked again, end it now."""
        if self.reason:
            self.kill_at = 0.0
            return
        self.reason = reason
        self.kill_at = boottime() + self.settings.grace
        if self.agent > 0 and self.status is None:
            # Not reaped yet, so the pid is still the agent's. A stopped one has to run to hear it.
            os.kill(self.agent, signal.SIGTERM)
            os.kill(self.agent, signal.SIGCONT)

    def _reap(self) -> bool:
        """Collect every dead child; False when there is no child left at all."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.agent:
                self.status = status

    def _end_everything(self) -> None:
        attending.end_everything(self._wakeups, self._reap, self._kill_cgroups)

    def _kill_cgroups(self) -> None:
        for path in self.settings.cgroups:
            kill_cgroup(path)

    def _record(self, reason: str, message: str) -> None:
        # Only now: the module would cost every instance a megabyte for all its life.
        import json

        status = self.status
        record = {
            "version": 1,
            "reason": reason,
            "code": os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
            "oom_kills": sum(oom_kills(path) for path in self.settings.cgroups),
            "message": message,
        }
        write_file(self.settings.directory, EXIT, json.dumps(record))

    def _clean_up(self) -> None:
        """The owner is gone for good and nobody else knows of this instance: leave nothing on disk either."""
        try:
            for path in self.settings.cgroups:
                os.rmdir(path)  # noqa: PTH106
            removal.remove_tree(self.settings.directory, last=("instance.json",))
        except OSError:
            pass  # It is still listed with its journal, and whoever starts next removes it.


def kill_cgroup(path: str) -> None:
    """Kill all in it at once, where it is version 2 and ours; elsewhere do nothing."""
    try:
        fd = os.open(f"{path}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, b"1")
    except OSError:
        pass
    finally:
        os.close(fd)


def oom_kills(path: str) -> int:
    """How many processes the kernel killed in this cgroup for want of memory (version 1 or 2)."""
    text = procfs.read(f"{path}/memory.events") or procfs.read(f"{path}/memory.oom_control") or b""
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(b"oom_kill "))


def write_file(directory: str, name: str, text: str) -> bool:
    """Write atomically; False when the directory is gone or full."""
    temporary = f"{directory}/.{name}.new"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
        os.replace(temporary, f"{directory}/{name}")  # noqa: PTH105
    except OSError:
        return False
    return True


def main(arguments: list[str]) -> int:
    settings = Settings(arguments)
    if os.getsid(0) != os.getpid():
        os.setsid()
    close_inherited(settings)
    launch.become_subreaper()
    me = os.getpid()
    seen = procfs.stat(me)
    start = seen.start if seen is not None else 0
    # Without its identity on disk nobody could find it again: then the instance was removed, or cannot be kept.
    if not write_file(settings.directory, IDENTITY, f"{me} {start} {procfs.boot_id()}\n"):
        return 1
    return Guard(settings).run()


def close_inherited(settings: Settings) -> None:
    """Hold nothing open that the coordinator or its parents left open, such as a terminal or a database."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        fd = int(name)
        if fd >= KEEP_OPEN and fd not in (settings.tied, settings.ready):
            try:
                os.close(fd)
            except OSError:
                pass
    for fd in (settings.tied, settings.ready):
        if fd >= 0:
            os.set_inheritable(fd, False)
