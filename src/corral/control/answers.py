# SPDX-License-Identifier: Apache-2.0
"""What a provisioner's answer changes, each in one fenced transaction."""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import Connection

from corral.control.scaler import Term, note_failure
from corral.decide import delivering
from corral.decide.delivering import Consequence
from corral.model.events import Answer, EventKind, Verdict
from corral.model.ids import AgentId
from corral.model.pools import Backoff
from corral.model.records import Delivery, Provision
from corral.model.states import DeliveryEvent, DeliveryState, ProvisionEvent, ProvisionState
from corral.runtime.clock import SECOND
from corral.store.repo import agents, deliveries, targets
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import now
from corral.store.repo.lease import LEASE, fence
from corral.store.repo.rows import NOW

log = logging.getLogger(__name__)


def answered(
    connection: Connection, term: Term, delivery_id: str, answer: Answer, chance: float, pace: Backoff
) -> None:
    """One send came to ``answer``. ``chance``: for the pause before the next."""
    fence(connection, LEASE, term.holder, term.epoch)
    row = deliveries.get(connection, delivery_id)
    if row is None or row.state is not DeliveryState.SENDING or row.agent_id is None:
        return
    note_epoch(connection, row.target_key, answer)
    provision = _with_id(connection, row.agent_id, answer.provider_id)
    state = provision.state if provision is not None else None
    meaning = delivering.meaning(row.kind, answer.verdict, state, last=row.last)
    refusals = row.refusals + (meaning.provision is Consequence.REFUSED)
    moment = now(connection)
    values: dict[str, Any] = {"answered_at": moment, "last": str(answer.verdict), "refusals": refusals}
    if meaning.event is not DeliveryEvent.DELIVER:
        values["error"] = answer.detail
    event, consequence = meaning.event, meaning.provision
    if event is DeliveryEvent.AGAIN and delivering.too_late(row, moment):
        event, consequence = DeliveryEvent.FAIL, Consequence.CREATE_FAILED
    if event is DeliveryEvent.AGAIN:
        wait = max(delivering.pause(row.attempts, chance, answer.retry_after), meaning.again_after)
        values["next_at"] = moment + int(wait * SECOND)
    given_up = _given_up(row, event, refusals, answer, moment)
    deliveries.advance(connection, row, DeliveryEvent.FAIL if given_up else event, **values)
    if provision is not None:
        _follow(connection, row, provision, consequence, answer, pace)
        if given_up:
            _abandon(connection, row.agent_id, refusals, answer)


def _given_up(row: Delivery, event: DeliveryEvent, refusals: int, answer: Answer, moment: int) -> bool:
    down = row.kind is EventKind.SCALE_DOWN and event is DeliveryEvent.AGAIN
    return down and delivering.exhausted(row, refusals=refusals, verdict=answer.verdict, now=moment)


def _follow(
    connection: Connection, row: Delivery, provision: Provision, consequence: Consequence, answer: Answer, pace: Backoff
) -> None:
    match consequence:
        case Consequence.CREATE_FAILED:
            create_failed(connection, provision.agent_id, answer.detail or "the provisioner refused it", pace)
        case Consequence.GONE:
            gone(connection, provision.agent_id)
        case Consequence.REFUSED:
            tries = provision.release_attempts + 1
            provisions_rows.write(connection, provision, release_attempts=tries, error=answer.detail)
        case Consequence.REAPPEARED:
            provisions_rows.advance(connection, provision, ProvisionEvent.REAPPEARED, gone_at=None, release_attempts=0)
        case Consequence.NOTHING:
            if row.kind is EventKind.SCALE_UP and answer.verdict in (Verdict.DONE, Verdict.ALREADY):
                _created(connection, provision.agent_id)


def _created(connection: Connection, agent_id: AgentId) -> None:
    row = provisions_rows.get(connection, agent_id)
    if row is not None and row.created_at is None:
        provisions_rows.write(connection, row, created_at=NOW)


def create_failed(connection: Connection, agent_id: AgentId, error: str, pace: Backoff) -> None:
    """For good; the scaler releases it, and a scale-down follows."""
    row = provisions_rows.get(connection, agent_id)
    if row is None or row.state is not ProvisionState.REQUESTED or row.failed_at is not None:
        return
    provisions_rows.write(connection, row, failed_at=NOW, error=error)
    note_failure(connection, row, error, pace)


def gone(connection: Connection, agent_id: AgentId) -> None:
    """Its end is confirmed."""
    row = provisions_rows.get(connection, agent_id)
    if row is None or row.state not in (ProvisionState.RELEASING, ProvisionState.ABANDONED):
        return
    if provisions_rows.advance(connection, row, ProvisionEvent.GONE):
        agents.end(connection, agent_id)


def _abandon(connection: Connection, agent_id: AgentId, refusals: int, answer: Answer) -> None:
    row = provisions_rows.get(connection, agent_id)
    if row is None:
        return
    why = f"after {refusals} refusals" if refusals >= delivering.RELEASE_ATTEMPTS_MAX else "nothing confirmed its end"
    error = f"{why}: {answer.detail}"
    if provisions_rows.advance(connection, row, ProvisionEvent.EXHAUSTED, error=error):
        log.error("ABANDONED: provision %s could not be destroyed, %s; it may still cost money", agent_id, error)


def store_provider_id(connection: Connection, agent_id: AgentId, provider_id: str) -> None:
    """Whatever it came with: also the id in an error is the instance's."""
    row = provisions_rows.get(connection, agent_id)
    if row is not None and provider_id and row.provider_id != provider_id:
        provisions_rows.write(connection, row, provider_id=provider_id)


def _with_id(connection: Connection, agent_id: AgentId, provider_id: str) -> Provision | None:
    store_provider_id(connection, agent_id, provider_id)
    return provisions_rows.get(connection, agent_id)


def note_epoch(connection: Connection, key: str, answer: Answer) -> None:
    """A target that knows a higher epoch refuses this term, although its lease was written just now."""
    row = targets.get(connection, key)
    if row is None or answer.verdict in (Verdict.UNANSWERED, Verdict.LATER):
        return
    if answer.verdict is Verdict.STALE and row.stale_since is None:
        log.error("EPOCH_BEHIND: %s has seen a higher epoch than ours; see `corral cluster raise-epoch`", key)
        targets.write(connection, key, stale_since=NOW, error=answer.detail)
    elif answer.verdict is not Verdict.STALE and row.stale_since is not None:
        targets.write(connection, key, stale_since=None)


def settle_unsent(connection: Connection, term: Term, seen: Delivery, pace: Backoff) -> None:
    """A scale-up that is not sent (again): its agent is here already, it is not wanted, or it is too late."""
    fence(connection, LEASE, term.holder, term.epoch)
    row = deliveries.get(connection, seen.id)
    if row is None or row.state is not DeliveryState.PENDING or row.agent_id is None:
        return
    provision = provisions_rows.get(connection, row.agent_id)
    state = provision.state if provision is not None else None
    if state is ProvisionState.ACTIVE:
        deliveries.advance(connection, row, DeliveryEvent.DELIVER)
    elif state is not ProvisionState.REQUESTED:
        deliveries.advance(connection, row, DeliveryEvent.DROP if row.first_sent_at is None else DeliveryEvent.FAIL)
    else:
        reason = row.error or "it was never reached"
        error = f"the provisioner did not take it in time: {reason}"
        deliveries.advance(connection, row, DeliveryEvent.FAIL, error=error)
        create_failed(connection, row.agent_id, error, pace)


def not_sent(connection: Connection, term: Term, row: Delivery) -> None:
    """The send was recorded too slowly, and not made."""
    fence(connection, LEASE, term.holder, term.epoch)
    current = deliveries.get(connection, row.id)
    if current is not None:
        deliveries.advance(connection, current, DeliveryEvent.AGAIN, send_deadline=None, error="recorded too slowly")


def inventory_answered(connection: Connection, term: Term, key: str, answer: Answer) -> None:
    fence(connection, LEASE, term.holder, term.epoch)
    note_epoch(connection, key, answer)
    if delivering.received(answer.verdict):
        told = f"{term.epoch[0]}.{term.epoch[1]}"
        targets.write(connection, key, told_epoch=told, told_at=NOW, error="")
    else:
        targets.write(connection, key, error=answer.detail)
