# SPDX-License-Identifier: Apache-2.0
"""Which events are sent, and what every answer means."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide import delivering
from corral.decide.delivering import Consequence, Fence, Situation, meaning, pick
from corral.model.events import EventKind, Verdict, Webhook
from corral.model.ids import AgentId
from corral.model.records import Delivery
from corral.model.states import DELIVERY, PROVISION, DeliveryEvent, DeliveryState, ProvisionEvent, ProvisionState

UP, DOWN = EventKind.SCALE_UP, EventKind.SCALE_DOWN
STATES = (*ProvisionState, None)
SECOND = 1_000_000


def a_delivery(number: int = 1, **more: Any) -> Delivery:
    values: dict[str, Any] = {
        "id": f"agent_{number}.1",
        "position": number,
        "agent_id": AgentId(f"agent_{number}"),
        "pool": "p",
        "target": Webhook(url="http://t/", secret="s"),
        "target_key": "t",
        "kind": UP,
        "sequence": 1,
        "state": DeliveryState.PENDING,
        "reason": "",
        "evidence": {},
        "attempts": 0,
        "refusals": 0,
        "created_at": 0,
        "next_at": 0,
        "deadline_at": None,
        "first_sent_at": None,
        "sent_at": None,
        "send_deadline": None,
        "answered_at": None,
        "ended_at": None,
        "last": "",
        "error": "",
        "version": 1,
        **more,
    }
    return Delivery(**values)


TOLD = Situation(fences={"t": Fence.TOLD, "u": Fence.TOLD}, now=1000 * SECOND)


@pytest.mark.parametrize(("kind", "verdict", "state"), list(product(EventKind, Verdict, STATES)))
def test_every_answer_means_something(kind: EventKind, verdict: Verdict, state: ProvisionState | None) -> None:
    """Q14: total over kind, verdict and state; and what it means is a move of both machines."""
    found = meaning(kind, verdict, state)
    assert DELIVERY.changes(DeliveryState.SENDING, found.event)
    if found.provision is Consequence.GONE:
        assert state is not None
        assert PROVISION.advance(state, ProvisionEvent.GONE) is ProvisionState.GONE
    if found.provision is Consequence.REAPPEARED:
        assert state is ProvisionState.GONE
    if state in (ProvisionState.REQUESTED, ProvisionState.ACTIVE):
        assert found.provision is not Consequence.GONE, "only what is being released ends by an answer"


@pytest.mark.parametrize(
    ("kind", "verdict", "state", "event", "consequence"),
    [
        (UP, Verdict.DONE, ProvisionState.REQUESTED, DeliveryEvent.DELIVER, Consequence.NOTHING),
        (UP, Verdict.ALREADY, ProvisionState.REQUESTED, DeliveryEvent.DELIVER, Consequence.NOTHING),
        (UP, Verdict.ABSENT, ProvisionState.REQUESTED, DeliveryEvent.FAIL, Consequence.CREATE_FAILED),
        (UP, Verdict.UNANSWERED, ProvisionState.REQUESTED, DeliveryEvent.AGAIN, Consequence.NOTHING),
        (UP, Verdict.REFUSED, ProvisionState.ACTIVE, DeliveryEvent.DELIVER, Consequence.NOTHING),
        (UP, Verdict.UNANSWERED, ProvisionState.RELEASING, DeliveryEvent.FAIL, Consequence.NOTHING),
        (UP, Verdict.DONE, ProvisionState.GONE, DeliveryEvent.DELIVER, Consequence.REAPPEARED),
        (UP, Verdict.ABSENT, ProvisionState.GONE, DeliveryEvent.FAIL, Consequence.NOTHING),
        (DOWN, Verdict.DONE, ProvisionState.RELEASING, DeliveryEvent.DELIVER, Consequence.GONE),
        (DOWN, Verdict.ABSENT, ProvisionState.RELEASING, DeliveryEvent.DELIVER, Consequence.GONE),
        (DOWN, Verdict.ACCEPTED, ProvisionState.RELEASING, DeliveryEvent.AGAIN, Consequence.NOTHING),
        (DOWN, Verdict.REFUSED, ProvisionState.RELEASING, DeliveryEvent.AGAIN, Consequence.REFUSED),
        (DOWN, Verdict.LATER, ProvisionState.RELEASING, DeliveryEvent.AGAIN, Consequence.NOTHING),
        (DOWN, Verdict.STALE, ProvisionState.RELEASING, DeliveryEvent.AGAIN, Consequence.NOTHING),
        (DOWN, Verdict.UNANSWERED, ProvisionState.RELEASING, DeliveryEvent.AGAIN, Consequence.NOTHING),
        (DOWN, Verdict.DONE, ProvisionState.ABANDONED, DeliveryEvent.DELIVER, Consequence.GONE),
        (DOWN, Verdict.DONE, ProvisionState.ACTIVE, DeliveryEvent.DELIVER, Consequence.NOTHING),
    ],
)
def test_what_an_answer_means(
    kind: EventKind, verdict: Verdict, state: ProvisionState, event: DeliveryEvent, consequence: Consequence
) -> None:
    """L5, L7: absent is an answer, silence is none."""
    found = meaning(kind, verdict, state)
    assert (found.event, found.provision) == (event, consequence)


def test_absence_after_an_accepted_end_is_looked_at_twice() -> None:
    """L16."""
    first = meaning(DOWN, Verdict.ABSENT, ProvisionState.RELEASING, last=Verdict.ACCEPTED)
    assert (first.event, first.provision) == (DeliveryEvent.AGAIN, Consequence.NOTHING)
    assert first.again_after >= 60
    second = meaning(DOWN, Verdict.ABSENT, ProvisionState.RELEASING, last=Verdict.ABSENT)
    assert second.provision is Consequence.GONE


def test_an_earlier_send_that_may_still_arrive_holds_back_the_next() -> None:
    down = a_delivery(1, id="agent_1.2", kind=DOWN, sequence=2)
    late = {AgentId("agent_1"): {"agent_1.1": TOLD.now + 1}}
    over = {AgentId("agent_1"): {"agent_1.1": TOLD.now}}
    assert pick([down], Situation(fences=TOLD.fences, now=TOLD.now, unresolved=late)) == ()
    assert pick([down], Situation(fences=TOLD.fences, now=TOLD.now, unresolved=over)) == (down,)


def test_a_provisions_events_go_one_after_another() -> None:
    up, down = a_delivery(1), a_delivery(1, id="agent_1.2", kind=DOWN, sequence=2)
    assert pick([down, up], TOLD) == (up,)


@pytest.mark.parametrize(("fence", "sent"), [(Fence.UNASKED, []), (Fence.ASKED, [UP]), (Fence.TOLD, [UP, DOWN])])
def test_the_fence_is_up_before_anything_is_destroyed(fence: Fence, sent: list[EventKind]) -> None:
    rows = [a_delivery(1), a_delivery(2, kind=DOWN)]
    assert [row.kind for row in pick(rows, Situation(fences={"t": fence}, now=TOLD.now))] == sent


_ROWS = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from((UP, DOWN)), st.sampled_from(("t", "u")), st.integers(1, 3)),
    max_size=40,
    unique_by=lambda row: (row[0], row[3]),
)


@given(rows=_ROWS, load=st.integers(0, 4), per_target=st.integers(1, 4))
def test_a_full_target_starves_no_other(
    rows: list[tuple[int, EventKind, str, int]], load: int, per_target: int
) -> None:
    """S5: however much hangs at one target, the others are sent all they may be."""
    due = [
        a_delivery(agent, id=f"agent_{agent}.{sequence}", kind=kind, target_key=key, sequence=sequence)
        for agent, kind, key, sequence in rows
    ]
    situation = Situation(
        fences=TOLD.fences, now=TOLD.now, load={("t", UP): load, ("t", DOWN): load}, per_target=per_target
    )
    chosen = pick(due, situation)
    assert len({row.agent_id for row in chosen}) == len(chosen)
    for key, kind in product("tu", (UP, DOWN)):
        count = sum(1 for row in chosen if (row.target_key, row.kind) == (key, kind))
        free = max(0, per_target - (load if key == "t" else 0))
        heads = {}
        for row in sorted(due, key=lambda each: (each.position, each.sequence)):
            heads.setdefault(row.agent_id, row)
        waiting = sum(1 for row in heads.values() if (row.target_key, row.kind) == (key, kind))
        assert count == min(free, waiting)


@given(attempts=st.integers(0, 100), chance=st.floats(0, 0.999), asked=st.none() | st.floats(0, 1e6))
def test_pauses_are_bounded(attempts: int, chance: float, asked: float | None) -> None:
    """Full jitter from 5 s to 5 min; what was asked for is kept up to 5 min."""
    found = delivering.pause(attempts, chance, asked)
    assert 0.5 <= found <= 300
    if asked is not None:
        assert found >= min(asked, 300)
    assert delivering.pause(1, 0.999) < 5
    assert 250 < delivering.pause(20, 0.999) < 300


def test_a_scale_down_is_given_up_after_refusals_or_a_day_of_silence() -> None:
    """L10; and a day switched off is no silence, a higher epoch no refusal."""
    day = 24 * 3600 * SECOND
    row = a_delivery(kind=DOWN, first_sent_at=0, attempts=100)

    def given_up(row: Delivery, *, refusals: int = 0, verdict: Verdict = Verdict.UNANSWERED, now: int = day) -> bool:
        return delivering.exhausted(row, refusals=refusals, verdict=verdict, now=now)

    assert given_up(row)
    assert not given_up(row, now=day - 1)
    assert not given_up(a_delivery(kind=DOWN, first_sent_at=0, attempts=3))
    assert given_up(row, refusals=20, verdict=Verdict.REFUSED, now=1)
    assert not given_up(row, refusals=19, verdict=Verdict.REFUSED, now=1)
    assert not given_up(row, refusals=20, verdict=Verdict.STALE)
