# SPDX-License-Identifier: Apache-2.0
"""One kept HTTP/1.1 connection; one exchange at a time. The peer is not trusted.

h11 holds the protocol's rules; this adds the two that it leaves to its user: bytes that nobody asked for
spoil the connection, and a body longer than the limit is cut and the connection with it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

import h11

# Bytes of a body. Everything the API answers fits many times over; an error body beyond it says nothing more.
BODY_MAX = 64 * 1024
# Bytes of an answer's head.
HEAD_MAX = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A whole answer, or one whose body was ``cut`` at the limit."""

    status: int
    body: bytes
    cut: bool = False


class Broken(Exception):
    """The connection ended before the answer did. The text completes "the connection …"."""


class Wrong(Exception):
    """What came is no answer. The text completes "the answer …"."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class Connection(asyncio.Protocol):
    """Made by ``loop.create_unix_connection``."""

    def __init__(self) -> None:
        self._http = h11.Connection(our_role=h11.CLIENT, max_incomplete_event_size=HEAD_MAX)
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._status: int | None = None
        self._body = bytearray()
        self._usable = False

    @property
    def usable(self) -> bool:
        """True where another request may be sent: open, at rest, and nothing unasked for has come."""
        return self._usable and self._waiting is None

    def abort(self) -> None:
        """Close at once; what is in flight fails."""
        self._usable = False
        if self._transport is not None:
            self._transport.abort()

    async def exchange(self, method: str, target: str, body: bytes | None) -> Answer:
        """Send a request and return its answer. Cancelled, or failing, it closes the connection at once.

        :raises Broken: the peer closed.
        :raises Wrong: what it sent is not one whole answer.
        """
        assert self.usable and self._transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        self._status = None
        self._body.clear()
        try:
            self._transport.write(self._request(method, target, body))
            answer = await self._waiting
        except BaseException:
            self.abort()
            raise
        finally:
            self._waiting = None
        return answer

    def _request(self, method: str, target: str, body: bytes | None) -> bytes:
        headers = [("Host", "localhost")]
        if body is not None:
            headers += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        events: list[h11.Event] = [h11.Request(method=method, target=target, headers=headers)]
        if body:
            events.append(h11.Data(data=body))
        events.append(h11.EndOfMessage())
        return b"".join(self._http.send(event) or b"" for event in events)

    # -- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._usable = True

    def data_received(self, data: bytes) -> None:
        if self._waiting is None or self._waiting.done():
            # Nobody asked: whatever this is, it must not become the answer to the next request.
            self.abort()
            return
        self._read(data)

    def eof_received(self) -> bool:
        self._usable = False
        if self._waiting is not None and not self._waiting.done():
            # An answer without a length ends here, legally; h11 tells it from a cut one.
            self._read(b"")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._usable = False
        self._fail(Broken("broke before the answer was complete"))

    # -- reading an answer -----------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            while self._waiting is not None and not self._waiting.done():
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                self._take(event)
        except h11.RemoteProtocolError as error:
            if data:
                self._fail(Wrong(f"breaks the protocol: {error}", self._status))
            else:
                self._fail(Broken("was closed before the answer was complete"))

    def _take(self, event: object) -> None:
        match event:
            case h11.Response():
                self._status = event.status_code
            case h11.Data():
                self._body += event.data
                if len(self._body) > BODY_MAX:
                    self._usable = False
                    self._succeed(cut=True)
                    self.abort()
            case h11.EndOfMessage():
                self._finish()
            case h11.ConnectionClosed():
                self._fail(Broken("was closed before an answer came"))

    def _finish(self) -> None:
        surplus, _ = self._http.trailing_data
        if surplus:
            self._fail(Wrong("is followed by something that nobody asked for", self._status))
            self.abort()
            return
        self._succeed(cut=False)
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE and self._usable:
            self._http.start_next_cycle()
        else:
            self.abort()

    def _succeed(self, *, cut: bool) -> None:
        assert self._waiting is not None and self._status is not None
        answer = Answer(status=self._status, body=bytes(self._body[:BODY_MAX]), cut=cut)
        self._waiting.set_result(answer)

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
