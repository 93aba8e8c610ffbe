# SPDX-License-Identifier: Apache-2.0
"""A provisioner as a program: one event on standard input, the answer as exit code and JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn

from corral.provisioner.events import EVENT_LIMIT
from corral.provisioner.rule import Create, Destroy, List, Provisioner


def run(
    *,
    state: str | os.PathLike[str],
    create: Create,
    destroy: Destroy,
    list: List | None = None,
    remembered: bool = False,
) -> NoReturn:
    """Handle the event on standard input and exit: 0 done, 75 later, 77 stale, else refused.

    What ``create``, ``destroy`` and ``list`` print goes to standard error: standard output is the answer's.
    """
    answer = os.dup(1)
    os.dup2(2, 1)
    provisioner = Provisioner(state, create=create, destroy=destroy, list=list, remembered=remembered)
    result = provisioner.handle(sys.stdin.buffer.read(EVENT_LIMIT + 1))
    sys.stdout.flush()
    with os.fdopen(answer, "w") as file:
        json.dump(result.json(), file)
    if result.outcome.exit_code:
        sys.stderr.write(f"{result.outcome.name.lower()}: {result.message}\n")
    sys.exit(result.outcome.exit_code)
