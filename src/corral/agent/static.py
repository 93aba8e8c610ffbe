# SPDX-License-Identifier: Apache-2.0
"""A static agent without a configuration file: its token, whom to dial, and a directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from corral.agent.configfile import ConfigFault
from corral.model.agentconfig import DEFAULT_INHERIT_ENV, AgentConfig


def static_config(
    urls: Sequence[str], token_file: Path, work_dir: Path, *, spool_full: Literal["pause", "drop"] = "pause"
) -> AgentConfig:
    """What `corral token create --labels` made, as a configuration that stays in memory. Makes the directories.

    :raises ConfigFault: the token file cannot be read or holds something else, or a directory cannot be made.
    """
    try:
        agent_id, dot, key = token_file.read_text().strip().partition(".")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigFault(f"cannot read the token file {token_file}: {reason}") from None
    if not dot or not agent_id.startswith("agent_") or not key:
        raise ConfigFault(
            f"{token_file} does not hold an agent's token; make one with `corral token create NAME --labels …`"
        )
    work, cache = work_dir.absolute() / "work", work_dir.absolute() / "cache"
    for directory in (work, cache):
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigFault(f"cannot make {directory}: {error.strerror}") from None
    return AgentConfig(
        agent_id=agent_id,
        coordinator_urls=tuple(urls),
        key=key,
        single_use=False,
        work_dir=str(work),
        cache_dir=str(cache),
        inherit_env=DEFAULT_INHERIT_ENV,
        spool_full=spool_full,
    )
