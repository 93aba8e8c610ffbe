# SPDX-License-Identifier: Apache-2.0
"""Reading the file that tells the agent who it is; every fault is one clear sentence."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import msgspec

from corral.agent.workdir import remove
from corral.model.agentconfig import AgentConfig
from corral.model.gitsource import PROTOCOLS

SIZE_LIMIT = 1024 * 1024
_SIZES = ("min_free", "source_cache_limit", "python_cache_limit")


class ConfigFault(Exception):
    """The agent cannot start: which file or directory, what is wrong, what to do. Never holds a secret."""


def load(file: Path) -> AgentConfig:
    """:raises ConfigFault: it cannot be used."""
    try:
        data = file.read_bytes()[: SIZE_LIMIT + 1]
    except OSError as error:
        raise ConfigFault(f"cannot read the configuration {file}: {error.strerror or error}") from None
    try:
        config = msgspec.json.decode(data, type=AgentConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigFault(f"{file}: {error}; it is written by the backend or by `corral token create`") from None
    check(config, f"{file}: ")
    return config


def check(config: AgentConfig, before: str = "") -> None:
    """:param before: put before the sentence. :raises ConfigFault: it cannot be used, with every fault."""
    faults = _faults(config)
    if faults:
        raise ConfigFault(before + "; ".join(faults))


def _faults(config: AgentConfig) -> list[str]:
    found = []
    if config.version != 1:
        found.append(f"version {config.version} is not known to this agent (it knows 1): update the agent")
    if not config.agent_id:
        found.append("agent_id is empty")
    if bool(config.claim_code) == bool(config.key):
        found.append("exactly one of claim_code and key has to be set")
    if not config.coordinator_urls:
        found.append("coordinator_urls is empty: there is nobody to dial")
    found += [fault for url in config.coordinator_urls if (fault := _url_fault(url))]
    found += [fault for name in ("work_dir", "cache_dir") if (fault := _directory_fault(name, getattr(config, name)))]
    if config.spool_limit < 64 * 1024:
        found.append(f"spool_limit is {config.spool_limit}; at least 65536 bytes are needed")
    found += [f"{name} is negative" for name in _SIZES if getattr(config, name) < 0]
    strange = [name for name in config.git_protocols if name not in PROTOCOLS]
    if strange:
        found.append(f"git_protocols: {', '.join(strange)} is not known; there are {', '.join(PROTOCOLS)}")
    return found


def _url_fault(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    return "" if usable else f"coordinator_urls: {url!r} is no http(s)://host:port"


def _directory_fault(name: str, path: str) -> str:
    if not Path(path).is_absolute():
        return f"{name}: {path!r} is not absolute"
    if not Path(path).is_dir():
        return f"{name}: there is no directory {path}"
    if not os.access(path, os.W_OK | os.X_OK):
        return f"{name}: {path} cannot be written to"
    return ""


class WorkLock:
    """One agent per work directory; what an earlier one left there is removed.

    :raises ConfigFault: on entering, when another agent uses the directory.
    """

    def __init__(self, work_dir: Path) -> None:
        self._directory = work_dir
        self._fd = -1

    def __enter__(self) -> None:
        try:
            self._fd = os.open(self._directory / ".agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigFault(
                f"work_dir: {self._directory} is in use by another agent or cannot be locked ({error.strerror})"
            ) from None
        remove(self._directory / "jobs")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
