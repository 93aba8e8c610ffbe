# SPDX-License-Identifier: Apache-2.0
"""The agent's environment: minimal, plus what the pool lets jobs inherit from the coordinator's."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from corral.model.agentconfig import DEFAULT_INHERIT_ENV, chosen_by

MARKER = "CORRAL_INSTANCE"
"""Names the instance in warden and agent, so that one that slipped from its warden is still found."""
STEP_MARKER = "CORRAL_AGENT_ID"
"""The same in what a job runs: the agent builds its steps' environment anew, with this in it."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def agent_environment(
    own: Mapping[str, str], *, agent_id: str, home: str, inherit: tuple[str, ...] | None
) -> dict[str, str]:
    """``own``: the coordinator's environment. PYTHONPATH goes along, so that the agent imports the same Corral;
    the agent does not hand it on to jobs."""
    fixed = {
        "PATH": own.get("PATH") or DEFAULT_PATH,
        "HOME": home,
        "LANG": "C.UTF-8",
        MARKER: agent_id,
    }
    if own.get("PYTHONPATH"):
        fixed["PYTHONPATH"] = own["PYTHONPATH"]
    return inherited(own, inherit) | fixed


def inherited(own: Mapping[str, str], patterns: tuple[str, ...] | None) -> dict[str, str]:
    """The variables that match. A value with credentials in a URL, and a variable that is one by its name, is
    left out, unless the pool names that very variable: then somebody decided so."""
    chosen = DEFAULT_INHERIT_ENV if patterns is None else patterns
    named = frozenset(patterns or ())
    return {
        name: value
        for name, value in own.items()
        if chosen_by(chosen, name) and (name in named or not has_credentials(value))
    }


def has_credentials(value: str) -> bool:
    """True when any word of it is a URL with a user or password in it."""
    return any(_with_userinfo(word) for word in value.split())


def _with_userinfo(word: str) -> bool:
    if "@" not in word:
        return False
    try:
        parts = urlsplit(word if "://" in word else f"//{word}")
    except ValueError:
        # Not to be parsed, with an @ in it: better left out than leaked.
        return True
    return "@" in parts.netloc
