# SPDX-License-Identifier: Apache-2.0
"""The state directory: what lies where in it, and which coordinator holds it."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

from corral.model.errors import StoreMisconfigured

DATABASE = "corral.db"
LOGS = "logs"
SOURCES = "sources"
WORK = "work"
SECRETS = "secrets"
"""What webhooks are signed with, one file each, mode 0600."""
CACHE = "cache"
KEY_FILE = "secrets.key"
TOKEN_FILE = "admin.token"
SERVER_FILE = "server.json"


def default_state_dir() -> Path:
    """``$XDG_STATE_HOME/corral``, or its usual place below the home directory."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "corral"


def prepare_state_dir(path: Path) -> Path:
    """Made with mode 0700 where it is not there. What is there keeps its mode: another coordinator may hold it.

    :raises StoreMisconfigured: it cannot be made or written.
    """
    path = path.absolute()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreMisconfigured(
            f"cannot use the state directory {path}: {error.strerror}; choose another with --state-dir"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise StoreMisconfigured(f"the state directory {path} is not writable; choose another with --state-dir")
    return path


def write_private(path: Path, text: str) -> None:
    """Replace a file of mode 0600 as a whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    temporary.replace(path)


@dataclass(frozen=True, kw_only=True)
class LiveServer:
    url: str
    pid: int
    token: str
    ends_with_its_run: bool = False
    """A `corral run` or `corral demo`, not a server."""


def live_server(state_dir: Path) -> LiveServer | None:
    """The coordinator that holds this state directory now, if one does and lets us in."""
    try:
        described = json.loads((state_dir / SERVER_FILE).read_text())
        token = (state_dir / TOKEN_FILE).read_text().strip()
        url, pid = str(described["url"]), int(described["pid"])
        brief = bool(described.get("ends_with_its_run"))
        os.kill(pid, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not _holds_lock(state_dir, pid):
        return None
    return LiveServer(url=url, pid=pid, token=token, ends_with_its_run=brief)


def _holds_lock(state_dir: Path, pid: int) -> bool:
    """A recycled pid does not hold the database's lock."""
    try:
        return int((state_dir / f"{DATABASE}.lock").read_text().strip() or 0) == pid
    except (OSError, ValueError):
        return False


def refuse_held(state_dir: Path) -> None:
    """For a command that needs the directory to itself, before it does anything that takes time.

    :raises StoreMisconfigured: a coordinator holds it; the message says which, and what to do instead.
    """
    try:
        fd = os.open(state_dir / f"{DATABASE}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
        raise StoreMisconfigured(_held_by(state_dir, holder)) from error
    finally:
        os.close(fd)


def _held_by(state_dir: Path, holder: str) -> str:
    live = live_server(state_dir)
    if live is not None and not live.ends_with_its_run:
        return (
            f"the server at {live.url} (process {holder}) holds the state directory {state_dir}: "
            f"give it the run with `corral submit`, or run it beside with --state-dir DIR"
        )
    return (
        f"another `corral run` or `corral demo` (process {holder}) holds the state directory {state_dir}: "
        f"wait for its end, or give this one a directory of its own with --state-dir DIR"
    )


def set_mode(state_dir: Path, *, passable: bool) -> None:
    """By the one that holds it: 0700, or 0711 so that agents of other users reach their own directories below it.

    :raises StoreMisconfigured: it is somebody else's.
    """
    try:
        state_dir.chmod(0o711 if passable else 0o700)
    except OSError as error:
        raise StoreMisconfigured(
            f"cannot set the mode of the state directory {state_dir}: {error.strerror}; choose one of your own"
        ) from error
