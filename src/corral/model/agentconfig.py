# SPDX-License-Identifier: Apache-2.0
"""The file that tells an agent who it is and where to dial: mode 0600, owned by the agent's user.

The backend writes it; the agent removes it once its key is bound (``config_ack``), because it carried the claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct


class AgentConfig(Struct, frozen=True, kw_only=True):
    """``coordinator_urls``: ``http(s)://host:port``, tried in order; the agent dials ``URL/agent/v1``.
    Exactly one of ``claim_code`` (an instance made by a backend) and ``key`` (a static agent's token) is set.
    Directories are absolute and exist. ``grant_fd``: a pipe's write end on which the agent tells its warden, one
    decimal ``CLOCK_BOOTTIME`` second per line, until when it may go on; -1: there is no warden.
    ``inherit_env``: names or ``PREFIX_*`` patterns of the agent's own variables that jobs see."""

    version: int = 1
    agent_id: str
    coordinator_urls: tuple[str, ...]
    claim_code: str = ""
    key: str = ""
    single_use: bool = True
    work_dir: str
    cache_dir: str
    grant_fd: int = -1
    inherit_env: tuple[str, ...] = ()
    spool_limit: int = 256 * 1024 * 1024
    """Bytes of unacknowledged log kept on disk; ``spool_full`` says what happens beyond."""
    spool_full: Literal["pause", "drop"] = "pause"
    """``pause``: the step's pipe is not read, so the step waits and nothing is lost. ``drop``: what it prints is not
    kept but counted, and the log says how much."""
    min_free: int = 1024**3
    """Bytes that have to be free in ``work_dir`` for a job to be taken."""
    source_cache_limit: int = 4 * 1024**3
    python_cache_limit: int = 8 * 1024**3
    """Bytes of source archives and of Python environments kept in ``cache_dir``."""
    git_protocols: tuple[str, ...] = ("https", "ssh")
    """How git sources may be fetched: also ``http`` and ``file``, where somebody decided so."""


DEFAULT_INHERIT_ENV = (
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "SSL_CERT_*",
    "PIP_*",
    "UV_*",
)
"""What jobs see of the coordinator's environment unless the pool says otherwise; values with credentials in a URL, and
variables that are one, are left out."""

CREDENTIAL_WORDS = ("TOKEN", "PASSWORD", "PASSWD", "SECRET", "CREDENTIAL")
"""In the name of a variable: its value is a credential (``UV_PUBLISH_TOKEN``, ``UV_INDEX_PRIVATE_PASSWORD``)."""


def chosen_by(patterns: Iterable[str], name: str) -> bool:
    """Whether ``inherit_env`` lets a variable through. One that is a credential by its name has to be named itself: a
    ``PREFIX_*`` was written for what is harmless."""
    given = tuple(patterns)
    if name in given:
        return True
    credential = any(word in name.upper() for word in CREDENTIAL_WORDS)
    return not credential and any(fnmatchcase(name, pattern) for pattern in given)
