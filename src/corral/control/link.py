# SPDX-License-Identifier: Apache-2.0
"""A connection to one agent as control sees it; ``web`` adapts WebSockets to it, the simulator makes its own."""

from __future__ import annotations

from typing import Protocol

from corral.model.errors import TemporaryError


class LinkClosed(TemporaryError):
    """The other side, or the network, ended the connection. ``close_code`` is 0 where none was given."""

    code = "link_closed"

    def __init__(self, message: str = "connection closed", *, close_code: int = 0) -> None:
        super().__init__(message)
        self.close_code = close_code


class Link(Protocol):
    """Ordered frames both ways; nothing is lost while it stands."""

    peer: str
    """Address of the other side, for limits and logs."""

    async def send(self, frame: bytes) -> None:
        """Hand one frame over; waits while the other side does not read. :raises LinkClosed: when it is over."""
        ...

    async def receive(self) -> bytes:
        """The next frame. :raises LinkClosed: when it is over."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """End it with a close code of ``corral.wire.close``. Idempotent; never raises."""
        ...
