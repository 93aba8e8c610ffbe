# SPDX-License-Identifier: Apache-2.0
"""The host as the agent sees it: what ``hello`` says about it."""

from __future__ import annotations

import os

import corral
from corral.wire.messages import Facts


def host_facts() -> Facts:
    """Read once at start; cheap (no program is run)."""
    system = os.uname()
    return Facts(
        os=system.sysname.lower(),
        arch=system.machine,
        host=system.nodename.lower(),
        version=corral.__version__,
        pid=os.getpid(),
        cpus=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
