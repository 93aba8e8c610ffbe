# SPDX-License-Identifier: Apache-2.0
"""The coordinator's side of ``corral.agent.v1``, sans-IO: what may be said when, and when the line is dead.

It knows frames and states, not jobs: the loop in ``control.sessions`` feeds it frames and sends what it says.
"""

from __future__ import annotations

from enum import StrEnum
from typing import get_args

from corral.wire import close
from corral.wire.codec import ProtocolError, decode_from_agent
from corral.wire.messages import (
    AGENT_DEAD_AFTER,
    HEARTBEAT_INTERVAL,
    HELLO_TIMEOUT,
    FromAgent,
    Heartbeat,
    HeartbeatAck,
    Hello,
)


class LinkState(StrEnum):
    AWAIT_HELLO = "await-hello"
    REGISTERING = "registering"
    OPEN = "open"
    CLOSED = "closed"


MESSAGES: frozenset[type] = frozenset(get_args(FromAgent))

ALLOWED: dict[LinkState, frozenset[type]] = {
    LinkState.AWAIT_HELLO: frozenset({Hello}),
    # An agent waits for its welcome; only proof of life may come before it.
    LinkState.REGISTERING: frozenset({Heartbeat, HeartbeatAck}),
    LinkState.OPEN: MESSAGES - {Hello},
    LinkState.CLOSED: frozenset(),
}
"""The whole table: a pair that is not listed is a protocol error with code ``UNEXPECTED``."""


class ServerProtocol:
    """One connection. ``now`` is the caller's monotonic clock in seconds, everywhere."""

    def __init__(
        self, now: float, *, dead_after: float = AGENT_DEAD_AFTER, interval: float = HEARTBEAT_INTERVAL
    ) -> None:
        self.state = LinkState.AWAIT_HELLO
        self._dead_after = dead_after
        self._interval = interval
        self._opened = now
        self._heard = now
        self._beat = now
        self._number = 0

    def receive(self, frame: bytes, now: float) -> FromAgent:
        """The message in a frame, checked against the table.

        :raises ProtocolError: no message, or one that the state does not allow.
        """
        self._heard = now
        message = decode_from_agent(frame)
        if type(message) not in ALLOWED[self.state]:
            raise ProtocolError(
                f"{type(message).__name__} is not allowed in state {self.state}", close=close.UNEXPECTED
            )
        if isinstance(message, Hello):
            self.state = LinkState.REGISTERING
        return message

    @property
    def heard_at(self) -> float:
        """When something came last."""
        return self._heard

    def heard(self, now: float) -> None:
        """The other side could not have been heard until now."""
        self._heard = now

    def answer(self, message: FromAgent) -> HeartbeatAck | None:
        """What the protocol itself answers, apart from what the coordinator decides."""
        return HeartbeatAck(number=message.number) if isinstance(message, Heartbeat) else None

    def welcomed(self, now: float) -> None:
        self.state = LinkState.OPEN
        self._beat = now

    def closed(self) -> None:
        self.state = LinkState.CLOSED

    def heartbeat_due(self, now: float) -> Heartbeat | None:
        """The heartbeat to send now, or None."""
        if self.state is not LinkState.OPEN or now - self._beat < self._interval:
            return None
        self._beat = now
        self._number += 1
        return Heartbeat(number=self._number)

    def dead(self, now: float) -> int | None:
        """The close code where the other side has been silent for too long, or None."""
        if self.state is LinkState.AWAIT_HELLO:
            return close.NO_HELLO if now - self._opened >= HELLO_TIMEOUT else None
        if self.state is LinkState.CLOSED:
            return None
        return close.SILENT if now - self._heard >= self._dead_after else None

    def next_deadline(self) -> float:
        """The monotonic second at which :meth:`dead` or :meth:`heartbeat_due` may next say something."""
        if self.state is LinkState.AWAIT_HELLO:
            return self._opened + HELLO_TIMEOUT
        return min(self._heard + self._dead_after, self._beat + self._interval)
