# SPDX-License-Identifier: Apache-2.0
"""The server's end of an agent's connection, over an ASGI server that plays dead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from corral.control.link import LinkClosed
from corral.sim.loop import VirtualLoop, run
from corral.web.agents import CLOSE_PATIENCE, SocketLink
from corral.wire import close


async def _never(*_: Any) -> Any:
    await asyncio.get_running_loop().create_future()


def test_a_link_whose_other_side_neither_reads_nor_writes_ends_in_time() -> None:
    """Half-open with a full buffer: the close frame cannot be written, so no answer to it will come."""

    async def scenario() -> None:
        link = SocketLink("peer", _never, _never)
        reading = asyncio.ensure_future(link.receive())
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        await link.close(close.SILENT, "silent")
        with pytest.raises(LinkClosed):
            await reading
        assert asyncio.get_running_loop().time() - began == CLOSE_PATIENCE

    loop = VirtualLoop()
    run(scenario(), loop)


def test_a_reader_that_is_cancelled_by_its_owner_is_cancelled() -> None:
    async def scenario() -> None:
        link = SocketLink("peer", _never, _never)
        reading = asyncio.ensure_future(link.receive())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    run(scenario(), VirtualLoop())
