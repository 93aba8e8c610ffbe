# SPDX-License-Identifier: Apache-2.0
"""Fetching one commit of a git repository into a job's directory. Blocking: runs in a thread.

Exactly that commit, without history, tags, remotes, submodules; nothing of the host's or the user's git configuration
counts, so no hook, filter or helper runs. The credential is in a file that only this user can read, for as long as git
runs; git gets it from a helper that answers for the repository's own host alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, urlsplit

from corral.agent.kernel import libc
from corral.agent.process import prepare_child
from corral.agent.source import SourceUnavailable
from corral.agent.stopping import Stop
from corral.model.errors import TemporaryError
from corral.model.gitsource import PROTOCOLS, git_faults
from corral.model.spec import GitSource

FETCH_TIMEOUT = 600.0
"""Seconds for one commit altogether: a gigabyte at 2 MB/s."""
PATIENCE = 60.0
"""Seconds over which fetching is tried again while the repository cannot be reached."""
STALLED_AFTER = 30
"""Seconds without data after which git gives a transfer up."""
SAID_LIMIT = 64 * 1024
"""Bytes of what git says that are kept: its last words."""
TOKEN_USER = "x-access-token"
"""The user of a credential that is a token only: forges take any name, or this one."""
_CLEAN = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_SSH_VARIANT": "ssh",
    "LC_ALL": "C",
}
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "credential.helper=",
    "submodule.recurse=false",
    "protocol.version=2",
    "gc.auto=0",
    "maintenance.auto=false",
    "http.lowSpeedLimit=1",
    f"http.lowSpeedTime={STALLED_AFTER}",
)
_SSH = ("ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=yes", "-oConnectTimeout=10", "-oServerAliveInterval=15")


class GitFetch:
    """:param protocols: what URLs may begin with, and what a redirect may lead to.
    :param env: the variables that git gets, of the agent's: PATH and proxies.
    :param patience: seconds, see :data:`PATIENCE`. :param timeout: seconds, see :data:`FETCH_TIMEOUT`.
    """

    def __init__(
        self,
        *,
        protocols: Sequence[str],
        env: Mapping[str, str],
        patience: float = PATIENCE,
        timeout: float = FETCH_TIMEOUT,
    ) -> None:
        self._protocols = tuple(protocols)
        self._env = dict(env)
        self._patience = patience
        self._timeout = timeout

    def missing(self) -> bool:
        """There is no git on this host."""
        return shutil.which("git", path=self._env.get("PATH")) is None

    def check_out(self, source: GitSource, credential: str, target: Path, scratch: Path, stop: Stop) -> None:
        """Fetch into the empty directory ``target``; ``scratch`` is made, and gone afterwards.

        :raises SourceUnavailable: with what it was; git's own words in it may hold what a server said.
        :raises OSError: the disk does not take it.
        """
        self._check(source)
        scratch.mkdir(mode=0o700)
        try:
            _Fetch(source, target, self._environment(source, credential, scratch), self._settings(), stop).run(
                patience=self._patience, timeout=self._timeout
            )
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _check(self, source: GitSource) -> None:
        faults = git_faults(source)
        if faults:
            raise SourceUnavailable("the git source cannot be fetched: " + "; ".join(map(str, faults)))
        scheme = urlsplit(source.url).scheme
        if scheme not in self._protocols:
            raise SourceUnavailable(
                f"{source.url}: this agent fetches by {', '.join(self._protocols)} only (git_protocols in its "
                f"configuration), not by {scheme}"
            )

    def _settings(self) -> list[str]:
        allowed = [f"protocol.{name}.allow=always" for name in self._protocols if name in PROTOCOLS]
        return [word for setting in (*_SETTINGS, "protocol.allow=never", *allowed) for word in ("-c", setting)]

    def _environment(self, source: GitSource, credential: str, scratch: Path) -> dict[str, str]:
        env = {**self._env, **_CLEAN, "HOME": str(scratch), "XDG_CONFIG_HOME": str(scratch), "GIT_ASKPASS": "false"}
        if certificates := env.get("SSL_CERT_FILE"):
            env["GIT_SSL_CAINFO"] = certificates
        ssh = list(_SSH)
        if credential and urlsplit(source.url).scheme == "ssh":
            ssh += ["-oIdentitiesOnly=yes", "-i", str(_private(scratch / "key", credential.rstrip("\n") + "\n"))]
        elif credential:
            env["GIT_ASKPASS"] = str(_answering(source.url, credential, scratch))
        env["GIT_SSH_COMMAND"] = shlex.join(ssh)
        return env


def passwords(credential: str) -> tuple[str, ...]:
    """What has to be masked of a credential besides itself."""
    user, separator, password = credential.partition(":")
    return (password,) if separator and user and "\n" not in credential else ()


def _private(file: Path, text: str) -> Path:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8", errors="surrogateescape") as opened:
        opened.write(text)
    return file


def _answering(url: str, credential: str, scratch: Path) -> Path:
    """A program that tells git user and password, for this URL's host only: git asks it for others after a redirect."""
    if "\n" in credential or "\r" in credential:
        raise SourceUnavailable(f"the credential for {url} has more than one line: it has to be TOKEN or USER:PASSWORD")
    user, separator, password = credential.partition(":")
    if not separator:
        user, password = TOKEN_USER, credential
    parts = urlsplit(url)
    program = scratch / "askpass"
    asked = f"Username for '{parts.scheme}://{parts.netloc}': "
    lines = ["#!/bin/sh", _answer(asked, _private(scratch / "user", f"{user}\n"))]
    secret = _private(scratch / "password", f"{password}\n")
    for name in {user, quote(user, safe="")}:
        lines.append(_answer(f"Password for '{parts.scheme}://{name}@{parts.netloc}': ", secret))
    _private(program, "\n".join([*lines, "exit 1", ""])).chmod(0o700)
    return program


def _answer(asked: str, file: Path) -> str:
    return f'if [ "$1" = {shlex.quote(asked)} ]; then cat {shlex.quote(str(file))}; exit; fi'


class _Unreachable(TemporaryError):
    code = "source_unreachable"


class _Fetch:
    """One commit being fetched."""

    def __init__(
        self, source: GitSource, target: Path, env: Mapping[str, str], settings: Sequence[str], stop: Stop
    ) -> None:
        self._source = source
        self._target = target
        self._env = env
        self._settings = settings
        self._stop = stop
        self._until = 0.0

    def run(self, *, patience: float, timeout: float) -> None:
        # A thread's own waiting for other machines; no decision of the worker depends on this time.
        self._until = time.monotonic() + timeout
        give_up = time.monotonic() + patience
        kind = ["--object-format=sha256"] if len(self._source.commit) == 64 else []
        self._git("init", "--quiet", "--template=", *kind, str(self._target))
        pause = 0.25
        while True:
            try:
                self._fetch()
                break
            except _Unreachable as error:
                if time.monotonic() + pause > give_up or self._stop.wait(pause):
                    raise SourceUnavailable(f"{self._source.url} {error}") from None
                pause = min(pause * 2, 10.0)
        commit = self._source.commit + "^{commit}"
        code, said = self._git("checkout", "--quiet", "--detach", "--no-recurse-submodules", commit, "--")
        if code != 0:
            if b"No space left" in said or b"Disk quota" in said:
                raise OSError(28, "no space left for the source's files")
            raise SourceUnavailable(
                f"{self._source.url}: commit {self._source.commit[:12]} was fetched but cannot be checked out "
                f"({_last_words(said)})"
            )

    def _fetch(self) -> None:
        flags = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
        code, said = self._git("fetch", *flags, "--", self._source.url, self._source.commit)
        if code != 0:
            _judge(self._source, said)

    def _git(self, *arguments: str) -> tuple[int, bytes]:
        """Run it in the target; its exit code and its last words."""
        self._not_stopped()
        process = subprocess.Popen(
            ["git", *self._settings, *arguments],
            cwd=self._target,
            env=dict(self._env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=prepare_child(os.getpid(), 0, libc()),
        )
        assert process.stdout is not None
        try:
            with process.stdout, self._stop.calling(lambda: _kill(process.pid)):
                said = self._listen(process.stdout.fileno())
        finally:
            # Its output has ended, or it is too late. Not reaped yet, so the group's number is still its own.
            if self._late():
                _kill(process.pid)
            code = process.wait()
            self._not_stopped()
        return code, said

    def _late(self) -> bool:
        return self._stop.is_set() or time.monotonic() >= self._until

    def _not_stopped(self) -> None:
        if self._stop.is_set():
            raise SourceUnavailable("the job was ended while its source was fetched")

    def _listen(self, fd: int) -> bytes:
        said = b""
        while (left := self._until - time.monotonic()) > 0:
            if not select.select([fd], [], [], left)[0]:
                continue
            data = os.read(fd, SAID_LIMIT)
            if not data:
                return said
            said = (said + data)[-SAID_LIMIT:]
        raise SourceUnavailable(
            f"{self._source.url}: commit {self._source.commit[:12]} was not fetched in time (git: {_last_words(said)})"
        )


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _judge(source: GitSource, said: bytes) -> None:
    """Raise what git's words mean."""
    text = said.decode(errors="replace")
    where, commit, words = source.url, source.commit[:12], _last_words(said)
    if "No space left on device" in text or "Disk quota exceeded" in text:
        raise OSError(28, "no space left for the source")
    for signs, sentence in _MEANINGS:
        if any(sign in text for sign in signs):
            hint = sentence.format(commit=commit, credential=source.credential or "none")
            raise SourceUnavailable(f"{where}: {hint} (git: {words})")
    raise _Unreachable(f"cannot be reached (git: {words})")


_MEANINGS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("not our ref", "unadvertised object", "couldn't find remote ref", "does not exist in the remote"),
        "commit {commit} is not there, or the server gives no commit by its hash",
    ),
    (
        ("Host key verification failed",),
        "the host's key is not known to this agent: add it to /etc/ssh/ssh_known_hosts",
    ),
    (
        (
            "Authentication failed",
            "could not read Username",
            "could not read Password",
            "error: 401",
            "error: 403",
            "Permission denied",
        ),
        "access was refused (credential: {credential})",
    ),
    (("remote error: ",), "the server refuses (credential: {credential})"),
    (("transport '", 'Protocol "', "Unsupported protocol"), "it leads to a protocol that this agent does not allow"),
    (
        ("' not found", "error: 404", "does not appear to be a git repository", "does not exist"),
        "there is no such repository, or it may not be seen (credential: {credential})",
    ),
    (("cannot run ssh", "ssh: not found", "is not a git command"), "this agent lacks the program for it"),
)


def _last_words(said: bytes) -> str:
    """The line that says most: git's own last ``fatal:`` or ``error:``, else the last one."""
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("fatal: ", "error: ", "ssh: "))]
    return (telling[0] if telling else lines[-1] if lines else "nothing")[:300]
