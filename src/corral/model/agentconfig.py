# SPDX-License-Identifier: Apache-2.0
"""The file that tells an agent who it is and where to dial: mode 0600, owned by the agent's user.

The backend writes it; the agent removes it once its key is bound (``config_ack``), because it carried the claim.
"""

from __future__ import annotations

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
    """Bytes of unacknowledged log kept on disk before the step's pipe is not read any more."""


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
"""What jobs see of the coordinator's environment unless the pool says otherwise; values with credentials in a URL
are left out."""
