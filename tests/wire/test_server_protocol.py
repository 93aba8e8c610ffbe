# SPDX-License-Identifier: Apache-2.0
"""The coordinator's side of a connection: every state, every message, and time."""

from __future__ import annotations

import pytest

from corral.wire import close
from corral.wire.codec import ProtocolError, encode
from corral.wire.messages import AGENT_DEAD_AFTER, HEARTBEAT_INTERVAL, HELLO_TIMEOUT, Heartbeat, HeartbeatAck
from corral.wire.server import LinkState, ServerProtocol
from tests.wire.frames import EXAMPLES

FRAMES = {name.removeprefix("from."): message for name, message in EXAMPLES.items() if name.startswith("from.")}
HELLO = encode(FRAMES["hello"])
ALLOWED = {
    LinkState.AWAIT_HELLO: {"hello"},
    LinkState.REGISTERING: {"heartbeat", "heartbeat_ack"},
    LinkState.OPEN: set(FRAMES) - {"hello"},
    LinkState.CLOSED: set[str](),
}


def link(state: LinkState, now: float = 0.0) -> ServerProtocol:
    protocol = ServerProtocol(now)
    if state is not LinkState.AWAIT_HELLO:
        protocol.receive(HELLO, now)
    if state in (LinkState.OPEN, LinkState.CLOSED):
        protocol.welcomed(now)
    if state is LinkState.CLOSED:
        protocol.closed()
    assert protocol.state is state
    return protocol


@pytest.mark.parametrize("state", LinkState)
@pytest.mark.parametrize("name", FRAMES)
def test_every_state_and_message(state: LinkState, name: str) -> None:
    protocol = link(state)
    if name in ALLOWED[state]:
        assert protocol.receive(encode(FRAMES[name]), 1.0) == FRAMES[name]
        assert protocol.state is (LinkState.REGISTERING if name == "hello" else state)
        return
    with pytest.raises(ProtocolError) as caught:
        protocol.receive(encode(FRAMES[name]), 1.0)
    assert caught.value.close == close.UNEXPECTED
    assert str(state) in str(caught.value)
    assert protocol.state is state


def test_a_frame_that_is_no_message_is_told_apart_from_an_unexpected_one() -> None:
    with pytest.raises(ProtocolError) as caught:
        link(LinkState.OPEN).receive(b"\xc1", 1.0)
    assert caught.value.close == close.BAD_FRAME


def test_a_hello_has_its_time() -> None:
    protocol = ServerProtocol(100.0)
    assert protocol.next_deadline() == 100 + HELLO_TIMEOUT
    assert protocol.dead(100 + HELLO_TIMEOUT - 0.001) is None
    assert protocol.dead(100 + HELLO_TIMEOUT) == close.NO_HELLO


@pytest.mark.parametrize("state", [LinkState.REGISTERING, LinkState.OPEN])
def test_silence_is_dead_and_any_byte_is_life(state: LinkState) -> None:
    protocol = link(state)
    assert protocol.dead(AGENT_DEAD_AFTER - 0.001) is None
    assert protocol.dead(AGENT_DEAD_AFTER) == close.SILENT
    protocol.receive(encode(Heartbeat(number=1)), 50.0)
    assert protocol.dead(50 + AGENT_DEAD_AFTER - 0.001) is None
    assert protocol.dead(50 + AGENT_DEAD_AFTER) == close.SILENT
    protocol.heard(80.0)
    assert protocol.dead(80 + AGENT_DEAD_AFTER - 0.001) is None


def test_a_frame_that_is_refused_was_heard_all_the_same() -> None:
    protocol = link(LinkState.OPEN)
    with pytest.raises(ProtocolError):
        protocol.receive(b"\xc1", 50.0)
    assert protocol.dead(AGENT_DEAD_AFTER) is None


def test_a_closed_line_is_not_dead() -> None:
    assert link(LinkState.CLOSED).dead(1e9) is None


def test_heartbeats_go_out_in_step_and_only_when_open() -> None:
    assert link(LinkState.REGISTERING).heartbeat_due(1e9) is None
    assert link(LinkState.CLOSED).heartbeat_due(1e9) is None
    protocol = link(LinkState.OPEN)
    assert protocol.heartbeat_due(HEARTBEAT_INTERVAL - 0.001) is None
    assert protocol.heartbeat_due(HEARTBEAT_INTERVAL) == Heartbeat(number=1)
    assert protocol.heartbeat_due(HEARTBEAT_INTERVAL) is None
    assert protocol.next_deadline() == min(AGENT_DEAD_AFTER, 2 * HEARTBEAT_INTERVAL)
    assert protocol.heartbeat_due(2 * HEARTBEAT_INTERVAL) == Heartbeat(number=2)


def test_only_a_heartbeat_is_answered_by_the_protocol_itself() -> None:
    protocol = link(LinkState.OPEN)
    answers = {name: protocol.answer(message) for name, message in FRAMES.items()}
    assert answers.pop("heartbeat") == HeartbeatAck(number=300)
    assert set(answers.values()) == {None}
