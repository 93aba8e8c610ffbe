# SPDX-License-Identifier: Apache-2.0
"""Start the agent as a child of the warden: cgroups, limits, user, then exec. Standard library only.

Forking is safe here: the warden has one thread. (PDEATHSIG fires when the forking *thread* ends.)
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal

GRANT_FD = 3
"""The write end of the grant pipe in the agent; fixed, because the configuration is written before the warden runs."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


class Plan:
    """What the child becomes. ``user``: (uid, gid, supplementary gids) or None to stay; ``umask`` an int;
    ``directory``: working directory; ``cgroups``: directories to enter; ``limits``: pairs of rlimit and value."""

    def __init__(
        self,
        *,
        command: list[str],
        directory: str,
        umask: int,
        user: tuple[int, int, tuple[int, ...]] | None,
        cgroups: tuple[str, ...],
        limits: tuple[tuple[int, int], ...],
    ) -> None:
        self.command = command
        self.directory = directory
        self.umask = umask
        self.user = user
        self.cgroups = cgroups
        self.limits = limits


class LaunchError(Exception):
    """``step``: what could not be done; ``number``: errno."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(f"{step}: {os.strerror(number)}")
        self.step = step
        self.number = number


def become_subreaper() -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """In a forked child: SIGKILL when the thread of ``parent`` that forked it ends; at once, if that has happened."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def launch(plan: Plan, *, output: int, grant: int) -> int:
    """Fork and exec; the child's pid. :raises LaunchError: when the child could not become the agent."""
    status_read, status_write = os.pipe()
    warden = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(status_read)
        os.close(status_write)
        raise LaunchError("fork", error.errno or 0) from None
    if pid == 0:
        _child(plan, output=output, grant=grant, status=status_write, warden=warden)
    os.close(status_write)
    with os.fdopen(status_read, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.waitpid(pid, 0)
        number, step = failure.decode().split(" ", 1)
        raise LaunchError(step, int(number))
    return pid


def _child(plan: Plan, *, output: int, grant: int, status: int, warden: int) -> None:
    step = "prepare"
    try:
        os.setsid()
        # The pipes may themselves sit on the low numbers: move them up before these are overwritten.
        output, grant, status = (_above(fd) for fd in (output, grant, status))
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(grant, GRANT_FD)
        step = "enter the cgroup"
        for path in plan.cgroups:
            with open(f"{path}/cgroup.procs", "wb", buffering=0) as procs:
                procs.write(b"0")
        step = "set resource limits"
        for kind, value in plan.limits:
            resource.setrlimit(kind, (value, value))
        os.umask(plan.umask)
        step = "change to the user"
        if plan.user is not None:
            uid, gid, groups = plan.user
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        step = f"enter {plan.directory}"
        os.chdir(plan.directory)
        # After the change of user, which would clear it.
        step = "tie to the warden"
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != warden:
            os._exit(1)
        # Also what whoever started the coordinator ignored: a shell's background job ignores SIGQUIT, nohup SIGHUP.
        for ignored in signal.valid_signals():
            if signal.getsignal(ignored) is signal.SIG_IGN:
                signal.signal(ignored, signal.SIG_DFL)
        step = f"run {plan.command[0]}"
        os.execv(plan.command[0], plan.command)
    except Exception as error:
        # setrlimit answers some refusals with ValueError.
        number = (error.errno if isinstance(error, OSError) else None) or errno.EINVAL
        os.write(status, f"{number} {step}".encode())
    finally:
        os._exit(127)


def _above(fd: int) -> int:
    """A close-on-exec copy on a number that the agent does not use."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
