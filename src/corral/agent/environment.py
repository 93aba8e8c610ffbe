# SPDX-License-Identifier: Apache-2.0
"""The environment that steps see. Pure: variables in, variables out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from corral.model.agentconfig import chosen_by

STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEVER_INHERITED = frozenset({"VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "HOME", "TMPDIR", "PATH"})
"""The agent's own interpreter is not the job's, and the rest of these are set for each job."""


def base(agent: Mapping[str, str], *, home: str, tmp: str, own_prefixes: Iterable[str]) -> dict[str, str]:
    """What every step starts from. ``own_prefixes``: virtual environments whose programs are the agent's, not the
    job's."""
    hidden = {f"{prefix.rstrip('/')}/bin" for prefix in own_prefixes if prefix}
    kept = [entry for entry in agent.get("PATH", "").split(":") if entry and entry.rstrip("/") not in hidden]
    return {
        "PATH": ":".join(kept) or STANDARD_PATH,
        "HOME": home,
        "TMPDIR": tmp,
        "LANG": "C.UTF-8",
        "CI": "true",
    }


def inherited(agent: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """The agent's own variables that ``patterns`` (names or ``PREFIX_*``) let through, but none whose value is a URL
    with credentials in it, and none that only a pattern chose and that is a credential by its name."""
    wanted = tuple(patterns)
    return {
        name: value
        for name, value in sorted(agent.items())
        if name not in NEVER_INHERITED and chosen_by(wanted, name) and not carries_credentials(value)
    }


def carries_credentials(value: str) -> bool:
    """True when ``value`` holds a URL with user information."""
    return any(_has_userinfo(word) for word in value.replace(",", " ").split())


def _has_userinfo(word: str) -> bool:
    if "@" not in word:
        return False
    try:
        parts = urlsplit(word if "://" in word else f"//{word}")
    except ValueError:
        # Not a URL that anybody could use; with an @ in it, better left out.
        return True
    return "@" in parts.netloc
