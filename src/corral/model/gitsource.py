# SPDX-License-Identifier: Apache-2.0
"""What a git source may say. Checked where a run is made and again where it is fetched."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from corral.model.errors import Fault
from corral.model.spec import GitSource

PROTOCOLS = ("https", "ssh", "http", "file")
"""What a URL may begin with. An agent allows only the first two unless its configuration says otherwise."""
_COMMIT = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")


def git_faults(source: GitSource, *, path: str = "git") -> tuple[Fault, ...]:
    """What is wrong with it; empty: nothing. No message repeats a URL that may hold a password."""
    found = [Fault(path=f"{path}.url", message=message, remedy=remedy) for message, remedy in _url_faults(source.url)]
    if not _COMMIT.match(source.commit):
        message = f"{source.commit[:64]!r} is not the full hash of a commit"
        found.append(Fault(path=f"{path}.commit", message=message, remedy="40 (or 64) lower-case hex digits"))
    return tuple(found)


def _url_faults(url: str) -> list[tuple[str, str]]:
    try:
        parts = urlsplit(url)
        host, password, user = parts.hostname or "", parts.password, parts.username
        _ = parts.port
    except ValueError:
        return [("is no URL", "https://HOST/PATH")]
    if parts.scheme not in PROTOCOLS:
        return [("does not begin with https:// or ssh://", "write ssh://git@HOST/PATH instead of git@HOST:PATH")]
    if any(character.isspace() or not character.isprintable() for character in url):
        return [("holds white space or control characters", "encode them, as %20")]
    if password is not None or (user is not None and parts.scheme != "ssh"):
        return [("holds a user or password", "name a secret as the credential instead")]
    if parts.scheme != "file" and (not host or host.startswith("-") or (user or "").startswith("-")):
        return [("names no host", "https://HOST/PATH")]
    return []
