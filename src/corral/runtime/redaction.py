# SPDX-License-Identifier: Apache-2.0
"""Our own credentials, taken out of texts that are kept or shown: errors, logs, failures.

A credential is a :class:`~corral.model.secret.Secret` and never formatted; this is the net below it, for texts that
come from elsewhere: a provisioner that echoes its input, a library that prints its request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "[redacted]"
SHORTEST = 8
"""Characters of a known value worth masking: a shorter one would tear words out of every text."""

_PATTERNS = re.compile(
    # Claim codes, agent keys, API tokens: 256 bits in hex; a part of one, as a cut text holds it, is masked too.
    r"(claim_|key_|corral_(?:agent_)?)[0-9a-fA-F]{16,}"
    # Standard Webhooks secrets and signatures are base64.
    r"|(whsec_)[A-Za-z0-9+/=_-]{8,}"
    r"|\b(v1a?,)[A-Za-z0-9+/]{40,}={0,2}"
    r"|\b(bearer[ \t]+|basic[ \t]+)[A-Za-z0-9._~+/=-]{8,}"
    r"|\b(authorization[\"']?[ \t]*[:=][ \t]*[\"']?(?:bearer[ \t]+|basic[ \t]+)?)[^\s\"',;]{4,}"
    # A URL's password.
    r"|(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?=@)",
    re.IGNORECASE,
)


def redacted(text: str, known: Iterable[str] = ()) -> str:
    """``text`` without our credentials and without the ``known`` values; what kind each was stays readable."""
    for value in sorted(known, key=len, reverse=True):
        if len(value) >= SHORTEST:
            text = text.replace(value, MASK)
    return _PATTERNS.sub(lambda found: next(part for part in found.groups() if part is not None) + MASK, text)
