# SPDX-License-Identifier: Apache-2.0
"""One call over the kept connection: deadline, translation of faults, decoding. The operations are in
api.py."""

from __future__ import annotations

import asyncio
import os
from typing import TypeVar

import msgspec

from corral.backends.firecracker import dial, secrecy
from corral.backends.firecracker.connection import BODY_MAX, Answer, Broken, Connection, Wrong
from corral.backends.firecracker.errors import (
    FirecrackerApiError,
    FirecrackerDeadline,
    FirecrackerRefused,
    FirecrackerUnreachable,
    FirecrackerWrongAnswer,
)
from corral.backends.firecracker.messages import Error

T = TypeVar("T")

# Characters of a fault message repeated in ours; the whole is in ``body``.
_FAULT_MAX = 1000


class Caller:
    """Keeps one connection to ``socket_path`` and makes one call at a time over it."""

    def __init__(self, *, socket_path: str | os.PathLike[str], long_path: bool, peer_uid: int | None) -> None:
        self._path = os.path.abspath(os.fspath(socket_path))  # noqa: PTH100 - keeps a str
        dial.check_length(self._path, long_path=long_path)
        self._peer_uid = peer_uid
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    @property
    def socket_path(self) -> str:
        return self._path

    def close(self) -> None:
        """Close the connection; the next call makes another."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def call(self, method: str, path: str, body: bytes | None, *, deadline: float, confidential: bool) -> bytes:
        """The body of a 2xx answer.

        :param deadline: seconds for everything: waiting for the calls before, connecting, answering.
        :param confidential: what is sent or answered holds secrets.
        :raises FirecrackerApiError: in every other case.
        """
        try:
            async with asyncio.timeout(deadline):
                answer = await self._exchange(method, path, body)
        except TimeoutError:
            raise FirecrackerDeadline(
                f"{method} {path} had no whole answer within {deadline:g} s; the connection is closed", path
            ) from None
        except Broken as error:
            raise FirecrackerUnreachable(f"{method} {path}: the connection {error}", path) from None
        except Wrong as error:
            raise FirecrackerWrongAnswer(f"{method} {path}: the answer {error}", path, error.status) from None
        return _body_of(answer, method, path, sent=body if confidential else None, confidential=confidential)

    async def _exchange(self, method: str, path: str, body: bytes | None) -> Answer:
        async with self._turn:
            connection = self._connection
            if connection is None or not connection.usable:
                connection = await self._connect(path)
            return await connection.exchange(method, path, body)

    async def _connect(self, request: str) -> Connection:
        self.close()
        connected = await dial.connect(self._path, request, peer_uid=self._peer_uid)
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_unix_connection(Connection, sock=connected)
        except BaseException:
            connected.close()
            raise
        self._connection = connection
        return connection


def _body_of(answer: Answer, method: str, path: str, *, sent: bytes | None, confidential: bool) -> bytes:
    if 200 <= answer.status < 300:
        if answer.cut:
            raise FirecrackerWrongAnswer(
                f"{method} {path}: the answer is longer than {BODY_MAX} bytes",
                path,
                answer.status,
                "" if confidential else _text(answer.body),
            )
        return answer.body
    text = _text(answer.body)
    if sent is not None and secrecy.repeats(text, sent):
        text = secrecy.WITHHELD
    kind = FirecrackerRefused if answer.status < 500 else FirecrackerApiError
    raise kind(f"{method} {path} was answered with {answer.status}: {_fault(text)}", path, answer.status, text)


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")


def _fault(text: str) -> str:
    """The ``fault_message`` in a body, or the body's beginning."""
    try:
        fault = msgspec.json.decode(text.encode(), type=Error).fault_message
    except msgspec.DecodeError:
        fault = None
    shown = (fault if fault is not None else text).strip() or "no reason given"
    return shown if len(shown) <= _FAULT_MAX else shown[:_FAULT_MAX] + " […]"


def decoded(body: bytes, into: type[T], *, method: str, path: str, confidential: bool) -> T:
    """:raises FirecrackerWrongAnswer: the body is no JSON, or not of this shape."""
    try:
        return msgspec.json.decode(body, type=into)
    except msgspec.DecodeError as error:
        # Where it holds secrets, not even the place that does not fit is shown.
        reason = "" if confidential else f": {error}"
        raise FirecrackerWrongAnswer(
            f"{method} {path}: the answer is not what the API describes{reason}",
            path,
            200,
            "" if confidential else _text(body[:BODY_MAX]),
        ) from None


def encoded(value: object, *, method: str, path: str) -> bytes:
    """:raises FirecrackerRefused: the value cannot be said in JSON; the value is not shown."""
    try:
        return secrecy.encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise FirecrackerRefused(
            f"{method} {path}: the body cannot be written as JSON ({type(error).__name__})", path
        ) from None
