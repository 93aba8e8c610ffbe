# SPDX-License-Identifier: Apache-2.0
"""What a run sees of an event, and what it must not see."""

from __future__ import annotations

import msgspec
import pytest

from corral.model.events import CloudEvent, EventKind, Inventory, Resources, ScaleDown, ScaleUp
from corral.model.ids import AgentId, ClusterId
from corral.model.triggers import CLAIM_SECRET, EVENT_KEYS, EVENT_LIMIT, EVENT_PREFIX, UnreadableEvent, read_event

CLAIM = "claim_c4n4ry"


def encoded(kind: EventKind, data: ScaleUp | ScaleDown | Inventory) -> bytes:
    return msgspec.json.encode(
        CloudEvent(
            specversion="1.0",
            id="evt_1",
            source="/corral/c",
            type=kind,
            time="2026-01-01T00:00:00Z",
            subject="agent_1",
            datacontenttype="application/json",
            data=data,
        )
    )


def scale_up() -> bytes:
    return encoded(
        EventKind.SCALE_UP,
        ScaleUp(
            cluster_id=ClusterId("c"),
            agent_id=AgentId("agent_1"),
            sequence=1,
            epoch="1.2",
            pool="cloud",
            labels=("gpu", "linux"),
            mandatory_labels=(),
            resources=Resources(cpu=2.5),
            coordinator_urls=("http://a", "http://b"),
            claim_code=CLAIM,
            run_id="run_1",
        ),
    )


def test_a_scale_up_is_flat_text_and_its_claim_code_a_secret() -> None:
    seen = read_event(scale_up())
    assert seen.values == {
        "kind": "event",
        "id": "evt_1",
        "type": "corral.scaler.scale-up.v1",
        "source": "/corral/c",
        "subject": "agent_1",
        "time": "2026-01-01T00:00:00Z",
        "cluster_id": "c",
        "agent_id": "agent_1",
        "sequence": "1",
        "epoch": "1.2",
        "pool": "cloud",
        "labels": "gpu,linux",
        "mandatory_labels": "",
        "resources_cpu": "2.5",
        "coordinator_urls": "http://a,http://b",
        "run_id": "run_1",
    }
    assert seen.secrets == {CLAIM_SECRET: CLAIM}
    assert CLAIM not in repr(seen.values)


def test_every_key_of_every_event_is_one_that_an_author_may_name() -> None:
    down = ScaleDown(
        cluster_id=ClusterId("c"),
        agent_id=AgentId("agent_1"),
        sequence=2,
        epoch="1.2",
        pool="cloud",
        reason="idle",
        evidence={"idle_for": "300"},
        provider_id="i-1",
    )
    inventory = Inventory(cluster_id=ClusterId("c"), epoch="1.2", request="req_1")
    events = (scale_up(), encoded(EventKind.SCALE_DOWN, down), encoded(EventKind.INVENTORY, inventory))
    keys = {key for event in events for key in read_event(event).values}
    assert "evidence_idle_for" in keys
    assert {key for key in keys if not key.startswith(EVENT_PREFIX)} <= set(EVENT_KEYS)
    assert read_event(events[1]).secrets == {CLAIM_SECRET: ""}


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"id": 1}', b'{"id": "a", "type": "b", "data": 3}'])
def test_what_is_no_event_is_refused_without_a_word_of_its_content(data: bytes) -> None:
    with pytest.raises(UnreadableEvent):
        read_event(data)
    with pytest.raises(UnreadableEvent, match="limit"):
        read_event(b" " * (EVENT_LIMIT + 1))
    with pytest.raises(UnreadableEvent) as caught:
        read_event(scale_up()[:-1])
    assert CLAIM not in str(caught.value)
