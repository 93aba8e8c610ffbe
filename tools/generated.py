# SPDX-License-Identifier: Apache-2.0
"""How every generator of a checked-in file is called: it writes it, or with ``--check`` says whether it is up to
date."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


def main(place: Path, text: Callable[[], str]) -> int:
    """The exit code."""
    made = text()
    if "--check" in sys.argv[1:]:
        if place.exists() and place.read_text() == made:
            return 0
        print(f"{place.name} is not what would be written; run: python tools/{Path(sys.argv[0]).name}", file=sys.stderr)
        return 1
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(made)
    return 0
