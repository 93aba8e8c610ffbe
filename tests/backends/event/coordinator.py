# SPDX-License-Identifier: Apache-2.0
"""A coordinator that only runs one program: ``python coordinator.py DIRECTORY TIMEOUT ARGV…``. To be killed."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from corral.backends.event.execute import ExecDeliverer
from corral.model.events import Exec
from tests.backends.event.raw import event


async def main(directory: str, timeout: str, *command: str) -> None:
    deliverer = ExecDeliverer(Path(directory), os.environ)
    await deliverer.deliver(Exec(command=command), event(), event_id="evt_1", timeout=float(timeout))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
