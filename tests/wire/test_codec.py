# SPDX-License-Identifier: Apache-2.0
"""Frames: golden bytes of protocol 1, limits, and whatever a stranger may send."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from corral.wire import close
from corral.wire.close import CODES, REASON_LIMIT, Next, fit_reason, next_of
from corral.wire.codec import (
    CLOSE_BAD_FRAME,
    CLOSE_TOO_LARGE,
    ProtocolError,
    decode_from_agent,
    decode_to_agent,
    encode,
)
from corral.wire.messages import FRAME_LIMIT, RETRYABLE, FromAgent, Heartbeat, Log, RefusedCode, ToAgent
from tests.wire.frames import EXAMPLES

GOLDEN = Path(__file__).with_name("protocol-1.txt")
DECODERS = (decode_from_agent, decode_to_agent)


def golden() -> dict[str, bytes]:
    lines = [line for line in GOLDEN.read_text().splitlines() if line and not line.startswith("#")]
    return {name: bytes.fromhex(frame) for name, frame in (line.split() for line in lines)}


# --- golden frames -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_released_frames_are_read_and_written_as_ever(name: str) -> None:
    """An agent of an older release sends these bytes: changing them needs a new protocol version."""
    frame, message = golden()[name], EXAMPLES[name]
    direction = name.split(".")[0]
    decode = decode_from_agent if direction == "from" else decode_to_agent
    assert decode(frame) == message
    assert encode(message) == frame


def test_every_message_has_a_golden_frame() -> None:
    assert set(golden()) == set(EXAMPLES)
    for direction, union in (("from", FromAgent), ("to", ToAgent)):
        shown = {type(message) for name, message in EXAMPLES.items() if name.startswith(direction)}
        assert shown == set(get_args(union))


@pytest.mark.parametrize("name", EXAMPLES)
def test_unknown_fields_are_ignored(name: str) -> None:
    raw = msgspec.msgpack.decode(golden()[name])
    frame = msgspec.msgpack.encode({**raw, "of_a_later_release": [1, {"a": None}]})
    decode = decode_from_agent if name.startswith("from") else decode_to_agent
    assert decode(frame) == EXAMPLES[name]


# --- what is no message ------------------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_random_bytes_are_a_protocol_error_or_a_message(data: bytes) -> None:
    for decode in DECODERS:
        refused(decode, data)


@given(st.sampled_from(sorted(EXAMPLES)), st.data())
def test_damaged_frames_are_a_protocol_error_or_a_message(name: str, data: st.DataObject) -> None:
    frame = bytearray(golden()[name])
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    for decode in DECODERS:
        refused(decode, bytes(frame))
        refused(decode, bytes(frame[:cut]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(EXAMPLES)), st.data())
def test_values_of_the_wrong_kind_are_a_protocol_error(name: str, data: st.DataObject) -> None:
    raw: dict[str, Any] = msgspec.msgpack.decode(golden()[name])
    raw[data.draw(st.sampled_from(sorted(raw)))] = data.draw(JSON)
    for decode in DECODERS:
        refused(decode, msgspec.msgpack.encode(raw))


def refused(decode: Any, frame: bytes) -> None:
    """It decodes, or raises the one error whose code and reason a close frame can hold."""
    try:
        decode(frame)
    except ProtocolError as error:
        assert error.close == CLOSE_BAD_FRAME
        assert len(fit_reason(error.message).encode()) <= REASON_LIMIT


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc0",
        b"\x80",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x81\xa1a" * 50_000,
        msgspec.msgpack.encode({"type": "nonsense"}),
        msgspec.msgpack.encode({"type": "heartbeat"}),
        msgspec.msgpack.encode({"type": "heartbeat", "number": "1"}),
        msgspec.msgpack.encode([{"type": "heartbeat", "number": 1}]),
        msgspec.msgpack.encode({"type": "heartbeat", "number": 1}) + b"\x00",
    ],
)
def test_hostile_frames(frame: bytes) -> None:
    for decode in DECODERS:
        with pytest.raises(ProtocolError) as caught:
            decode(frame)
        assert caught.value.close == CLOSE_BAD_FRAME


NUMBERS = [
    (name, field)
    for name, message in EXAMPLES.items()
    for field in message.__struct_fields__
    if field in {"attempt", "sequence", "step", "offset", "log_size", "log_dropped", "tries"}
]


@pytest.mark.parametrize(("name", "field"), NUMBERS)
@pytest.mark.parametrize("number", [-1, 2**53 + 1, 2**63, 2**64 - 1])
def test_numbers_that_no_database_holds_are_no_message(name: str, field: str, number: int) -> None:
    raw: dict[str, Any] = msgspec.msgpack.decode(golden()[name])
    raw[field] = number
    decode = decode_from_agent if name.startswith("from") else decode_to_agent
    with pytest.raises(ProtocolError):
        decode(msgspec.msgpack.encode(raw))


def test_a_frame_has_a_limit_on_both_sides() -> None:
    small = Log(job_id="j", attempt=1, step=0, offset=0, time=0, data=b"")
    room = FRAME_LIMIT - len(encode(small)) - 3
    full = encode(msgspec.structs.replace(small, data=b"x" * room))
    assert len(full) == FRAME_LIMIT
    assert isinstance(decode_from_agent(full), Log)
    with pytest.raises(ProtocolError) as caught:
        encode(msgspec.structs.replace(small, data=b"x" * (room + 1)))
    assert caught.value.close == CLOSE_TOO_LARGE
    for decode in DECODERS:
        with pytest.raises(ProtocolError) as caught:
            decode(full + b"x")
        assert caught.value.close == CLOSE_TOO_LARGE


# --- close codes -------------------------------------------------------------------------------------------


@given(st.text())
@example("x" * 200)
@example("ä" * 200)
@example("x" + "\U0001f600" * 40)
def test_reasons_fit_a_close_frame_at_a_character(text: str) -> None:
    cut = fit_reason(text)
    assert len(cut.encode()) <= REASON_LIMIT
    assert text.startswith(cut)
    assert cut == text or len(cut.encode()) > REASON_LIMIT - 4


def test_a_reason_that_is_not_text_is_no_failure() -> None:
    assert fit_reason("bad \udcff byte") == "bad ? byte"


def test_codes_are_listed_once_in_their_range() -> None:
    named = {value for name, value in vars(close).items() if name.isupper() and isinstance(value, int)} - {REASON_LIMIT}
    assert named == set(CODES)
    assert all(4000 <= code <= 4999 for code in CODES)
    assert all(len(entry.meaning.encode()) <= REASON_LIMIT for entry in CODES.values())
    assert (CLOSE_BAD_FRAME, CLOSE_TOO_LARGE) == (close.BAD_FRAME, close.TOO_LARGE)


def test_what_an_agent_does_next() -> None:
    assert {code for code, entry in CODES.items() if entry.next is Next.STOP} == {
        close.REFUSED,
        close.REPLACED,
        close.RELEASED,
    }
    assert next_of(close.SHUTTING_DOWN) is Next.ANOTHER
    assert next_of(1006) is next_of(4999) is Next.AGAIN
    assert set(RETRYABLE) == {RefusedCode.RETRY, RefusedCode.IN_USE, RefusedCode.TOO_MANY}


def test_a_heartbeats_number_may_be_anything_that_comes_back() -> None:
    assert encode(decode_from_agent(encode(Heartbeat(number=2**40)))) == encode(Heartbeat(number=2**40))
