# SPDX-License-Identifier: Apache-2.0
"""git, run on a tree that may not be trusted: no hooks, no helpers, no network, nobody asked for a password."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from corral.model.errors import PermanentError

GIT_TIMEOUT = 300.0
"""Seconds of one git command; packing a large tree takes some."""
_NEUTRAL = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.quotePath=false",
    "protocol.allow=never",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
)


class NotATree(PermanentError):
    """The path is not in a git work tree, or the tree cannot be used."""

    code = "not_a_tree"
    status = 422


class Git:
    """git in one directory.

    A tree of a foreign owner is trusted for our own calls on that very path, after saying so: git itself would refuse.
    """

    def __init__(self, directory: Path, tell: Callable[[str], None] = lambda text: None) -> None:
        self.directory = directory
        self._settings = [*_NEUTRAL]
        owner = directory.stat().st_uid
        if owner != os.geteuid():
            tell(f"{directory} belongs to another user (uid {owner}); reading it with git all the same")
            self._settings.append(f"safe.directory={directory}")

    def run(self, *arguments: str, stdin: bytes = b"", index: Path | None = None) -> bytes:
        """Standard output. :raises NotATree: git fails, with its own words."""
        done = self._run(arguments, stdin, index)
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip().splitlines()
            raise NotATree(f"git {arguments[0]} in {self.directory}: {words[-1] if words else 'failed'}")
        return done.stdout

    def line(self, *arguments: str) -> str:
        """The one line git answers, empty where it fails."""
        done = self._run(arguments, b"", None)
        return os.fsdecode(done.stdout).strip() if done.returncode == 0 else ""

    def _run(self, arguments: Sequence[str], stdin: bytes, index: Path | None) -> subprocess.CompletedProcess[bytes]:
        settings = [word for setting in self._settings for word in ("-c", setting)]
        command = ["git", "--no-pager", *settings, *arguments]
        try:
            return subprocess.run(
                command,
                cwd=self.directory,
                env=_environment(index),
                input=stdin,
                capture_output=True,
                timeout=GIT_TIMEOUT,
            )
        except FileNotFoundError:
            raise NotATree("git is not installed; sudo apt-get install -y git") from None
        except subprocess.TimeoutExpired:
            raise NotATree(f"git {arguments[0]} in {self.directory} took more than {GIT_TIMEOUT:.0f} s") from None


def _environment(index: Path | None) -> dict[str, str]:
    """The caller's, without what redirects git, and with what keeps it from asking, fetching and writing."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    kept |= {
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_ASKPASS": "true",
        "LC_ALL": "C",
    }
    if index is not None:
        kept["GIT_INDEX_FILE"] = str(index)
    return kept
