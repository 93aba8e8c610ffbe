# SPDX-License-Identifier: Apache-2.0
"""The one way in: every cap counted again in the transaction that writes the provision.

Several creations of a plan share a transaction; each is let in or refused by itself, and what is let in counts for the
next. Provision, agent, claim and, for a user's own provisioner, the event are written together or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from corral.control.registration import digest
from corral.decide.scaling.room import Holding, Refusal, Room, close, held
from corral.decide.scaling.terms import Creation, NotDone
from corral.model.events import target_key
from corral.model.ids import AgentId, CoordinatorId
from corral.model.pools import EVENT, Caps, Pool
from corral.model.secret import Secret
from corral.store.repo import agents, buckets, deliveries, jobs
from corral.store.repo import claims as claims_rows
from corral.store.repo import pool_health as pool_health_rows
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import now
from corral.store.repo.lease import LEASE, fence
from corral.store.repo.rows import one_at_a_time

CLAIM_PREFIX_LENGTH = 12
CREATES = "creates"
"""Name of the bucket that ``creates_per_second`` fills."""
DELIVERY_DEADLINE = 10 * 60 * 1_000_000
"""Microseconds in which a provisioner has to be reached for a new instance: its job waits meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """The right to lead: every transaction of the scaler checks it first."""

    holder: CoordinatorId
    epoch: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One creation of a plan with what it is to be known by. ``sealed``: the claim, as it is stored."""

    creation: Creation
    pool: Pool
    identity: AgentId
    claim: Secret
    sealed: bytes


def tokens(connection: Connection, caps: Caps) -> float | None:
    """Creations that the rate allows now; None: any number."""
    if caps.creates_per_second is None:
        return None
    return buckets.available(connection, CREATES, rate=caps.creates_per_second, burst=caps.creates_burst)


def room(connection: Connection, pools: Sequence[Pool], caps: Caps) -> Room:
    """What the caps allow, counted from the rows of this transaction."""
    moment = now(connection)
    found = Room(caps=caps, now=moment, tokens=tokens(connection, caps))
    health = {row.pool: row for row in pool_health_rows.every(connection)}
    found.closed = close(pools, health, moment)
    for row in provisions_rows.held(connection):
        found.hold(holding_of(row))
    return found


def holding_of(row: provisions_rows.Held) -> Holding:
    """What alike provisions count for."""
    return held(
        row.pool,
        row.state,
        machine=row.machine,
        event=row.backend == EVENT,
        failed=row.failed,
        provisioning=row.provisioning,
        cpu=row.cpu,
        memory=row.memory,
        cost=row.cost,
        count=row.count,
    )


def admit(connection: Connection, term: Term, requests: Sequence[Request], caps: Caps) -> tuple[Refusal | None, ...]:
    """Let in what fits, in order; for each why it was refused, or None.

    :raises Conflict: the term is over; nothing is written.
    """
    fence(connection, LEASE, term.holder, term.epoch)
    one_at_a_time(connection, LEASE)
    pools = {request.pool.name: request.pool for request in requests}
    left = room(connection, tuple(pools.values()), caps)
    before = left.tokens
    answers = tuple(_one(connection, term, request, left) for request in requests)
    if left.tokens is not None and left.tokens != before:
        buckets.leave(connection, CREATES, left.tokens)
    return answers


def _one(connection: Connection, term: Term, request: Request, left: Room) -> Refusal | None:
    refused = left.refuses(request.pool, request.creation) or _job_refuses(connection, request, left.caps)
    if refused is not None:
        return refused
    left.take(request.pool, request.creation)
    _write(connection, term, request)
    return None


def _job_refuses(connection: Connection, request: Request, caps: Caps) -> Refusal | None:
    """The job may have begun elsewhere or have ended since the plan was made; and no job is created for without end."""
    job_id = request.creation.job_id
    if job_id is None:
        return None
    creates = jobs.creates_of_queued(connection, job_id)
    if creates is None:
        detail = f"job {job_id} does not wait any more"
        return Refusal(reason=NotDone.NOT_WAITING, pool=request.pool.name, detail=detail)
    if creates >= caps.creates_per_job:
        detail = f"{creates} instances were made for job {job_id} and none of them ran it"
        return Refusal(reason=NotDone.CREATES_EXHAUSTED, pool=request.pool.name, detail=detail)
    return None


def _write(connection: Connection, term: Term, request: Request) -> None:
    creation, pool, identity = request.creation, request.pool, request.identity
    event = pool.target if pool.event else None
    agents.add(connection, id=identity, pool=pool.name, kind="provisioned", labels=creation.labels, project="local")
    provisions_rows.add(
        connection,
        agent_id=identity,
        pool=pool.name,
        backend=pool.backend,
        host_id=None if pool.event else term.holder,
        labels=creation.labels,
        mandatory=creation.mandatory,
        target=event,
        target_key=target_key(event) if event is not None else "",
        sequence=1 if event is not None else 0,
        cost_per_hour=pool.cost_per_hour,
        machine=pool.machine,
        provisioning=creation.provisioning,
        cause="warm" if creation.job_id is None else "job",
        job_id=creation.job_id,
        run_id=creation.run_id,
        cpu=creation.cpu,
        memory=creation.memory,
        owner_id=term.holder,
        claim_sealed=request.sealed,
    )
    code = request.claim.reveal()
    claims_rows.add(connection, digest=digest(code), agent_id=identity, prefix=code[:CLAIM_PREFIX_LENGTH])
    if creation.job_id is not None:
        jobs.count_create(connection, creation.job_id)
    if event is not None:
        row = provisions_rows.get(connection, identity)
        assert row is not None
        deliveries.scale_up(connection, row, deadline=DELIVERY_DEADLINE)
