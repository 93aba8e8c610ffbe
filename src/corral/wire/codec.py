# SPDX-License-Identifier: Apache-2.0
"""Frames: one MessagePack message each, at most ``FRAME_LIMIT`` bytes."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from corral.model.errors import PermanentError
from corral.wire.messages import FRAME_LIMIT, FromAgent, ToAgent


class ProtocolError(PermanentError):
    """The other side sent what the protocol does not allow; ``close`` is the code to close with."""

    code = "protocol_error"

    def __init__(self, message: str, *, close: int) -> None:
        super().__init__(message)
        self.close = close


CLOSE_BAD_FRAME = 4000
CLOSE_TOO_LARGE = 4001

T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()
_from_agent = msgspec.msgpack.Decoder(FromAgent)
_to_agent = msgspec.msgpack.Decoder(ToAgent)


def encode(message: FromAgent | ToAgent) -> bytes:
    """One frame.

    :raises ProtocolError: when the message would not fit a frame; the sender's own bug or a too large order.
    """
    frame = _encoder.encode(message)
    if len(frame) > FRAME_LIMIT:
        raise ProtocolError(
            f"{type(message).__name__} has {len(frame)} bytes; a frame holds {FRAME_LIMIT}",
            close=CLOSE_TOO_LARGE,
        )
    return frame


def decode_from_agent(frame: bytes) -> FromAgent:
    """What an agent said. :raises ProtocolError: on anything that is not exactly one known message."""
    return _decode(_from_agent, frame)


def decode_to_agent(frame: bytes) -> ToAgent:
    """What a coordinator said. :raises ProtocolError: on anything that is not exactly one known message."""
    return _decode(_to_agent, frame)


def _decode(decoder: msgspec.msgpack.Decoder[T], frame: bytes) -> T:
    if len(frame) > FRAME_LIMIT:
        raise ProtocolError(f"a frame of {len(frame)} bytes; the limit is {FRAME_LIMIT}", close=CLOSE_TOO_LARGE)
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a frame that is no message: {error}", close=CLOSE_BAD_FRAME) from None
