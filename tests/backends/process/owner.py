# SPDX-License-Identifier: Apache-2.0
"""A coordinator to be killed: makes one instance, says so, and waits. ``owner.py ROOT tied|free HABIT AGENT_ID``."""

import asyncio
import sys
from pathlib import Path

from tests.backends.process.rigs import Host, spec


async def main() -> None:
    root, tied, habit = Path(sys.argv[1]), sys.argv[2] == "tied", sys.argv[3]
    host = Host(root)
    backend = host.backend(habit, tied=tied)
    await backend.create(spec(sys.argv[4]), 20)
    print("created", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
