# SPDX-License-Identifier: Apache-2.0
"""Agents, their provisions and claims.

An offer and a cordon are both a compare-and-set on the one agent row: an offer needs *neither cordoned nor held, and
unassigned* and the offerer's session, a cordon needs *unassigned*. So no interleaving assigns a cordoned agent. A hold
is an operator's word: it may be said at any time, and the job in hand goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from corral.model.ids import AgentId, JobId, RunId
from corral.model.labels import Labels
from corral.model.records import Agent, Hold, PoolHealth, Provision
from corral.model.states import AGENT, PROVISION, AgentEvent, AgentState, ProvisionEvent, ProvisionState
from corral.store.repo.rows import NOW, NULL, change, columns, many, one
from corral.store.tables import agents, claims, db_now, pool_health, provisions
from corral.wire.messages import Facts

_AGENT = columns(agents, Agent)
_PROVISION = columns(provisions, Provision)
_SESSION = select(agents.c.session).where(agents.c.id == bindparam("id"))
_AGENT_GET = select(*_AGENT).where(agents.c.id == bindparam("id"))
_ONLINE_AT = select(agents.c.id, agents.c.session).where(
    agents.c.coordinator_id == bindparam("coordinator_id"), agents.c.state == AgentState.ONLINE
)
_LIVE = select(*_AGENT).where(agents.c.state != AgentState.ENDED).order_by(agents.c.created_at, agents.c.id)
_SILENT = select(agents.c.assignment).where(
    agents.c.assignment.is_not(None),
    agents.c.state == AgentState.OFFLINE,
    agents.c.disconnected_at <= bindparam("since"),
)
_LIVE_PROVISIONS = (
    select(*_PROVISION)
    .where(provisions.c.state != ProvisionState.GONE)
    .order_by(provisions.c.requested_at, provisions.c.agent_id)
)
_OF_HOST = (
    select(*_PROVISION)
    .where(provisions.c.host_id == bindparam("host_id"), provisions.c.state.in_(bindparam("states", expanding=True)))
    .order_by(provisions.c.requested_at, provisions.c.agent_id)
)
_HEALTH = select(*columns(pool_health, PoolHealth))
# Asked in every pass of a loop: building these costs several times what running them does.
LIVE = (ProvisionState.REQUESTED, ProvisionState.ACTIVE, ProvisionState.RELEASING, ProvisionState.ABANDONED)


# --- agents ------------------------------------------------------------------------------------------------


def add(
    connection: Connection,
    *,
    id: AgentId,
    pool: str,
    kind: str,
    labels: Labels,
    project: str,
    key_digest: str | None = None,
) -> None:
    connection.execute(
        insert(agents).values(
            id=id,
            pool=pool,
            kind=kind,
            labels=labels,
            project=project,
            key_digest=key_digest,
            state=AGENT.initial,
            created_at=db_now(),
        )
    )


def get(connection: Connection, agent_id: AgentId) -> Agent | None:
    return one(Agent, connection.execute(_AGENT_GET, {"id": agent_id}).first())


def session_of(connection: Connection, agent_id: AgentId) -> int | None:
    return connection.execute(_SESSION, {"id": agent_id}).scalar()


def some(connection: Connection, agent_ids: Iterable[AgentId]) -> tuple[Agent, ...]:
    return many(Agent, connection.execute(select(*_AGENT).where(agents.c.id.in_(tuple(agent_ids)))))


def live(connection: Connection) -> tuple[Agent, ...]:
    return many(Agent, connection.execute(_LIVE))


def static(connection: Connection) -> tuple[Agent, ...]:
    """Agents by token that have not ended, longest known first."""
    query = select(*_AGENT).where(agents.c.kind == "static", agents.c.state != AgentState.ENDED)
    return many(Agent, connection.execute(query.order_by(agents.c.created_at, agents.c.id)))


def busy_by_pool(connection: Connection) -> dict[str, int]:
    """How many agents of each pool have a job."""
    query = select(agents.c.pool, func.count()).where(agents.c.assignment.is_not(None)).group_by(agents.c.pool)
    return {row[0]: row[1] for row in connection.execute(query)}


def silent_with_job(connection: Connection, since: int) -> tuple[JobId, ...]:
    """Jobs whose agent has had no session since that moment."""
    return tuple(connection.execute(_SILENT, {"since": since}).scalars())


def online_at(connection: Connection, coordinator_id: str) -> tuple[tuple[AgentId, int], ...]:
    """(agent, session) of every agent that is connected to this coordinator, as far as was recorded."""
    rows = connection.execute(_ONLINE_AT, {"coordinator_id": coordinator_id})
    return tuple((row.id, row.session) for row in rows)


def facts(connection: Connection, agent_ids: Iterable[AgentId]) -> dict[AgentId, Facts]:
    query = select(agents.c.id, agents.c.facts).where(agents.c.id.in_(tuple(agent_ids)), agents.c.facts.is_not(None))
    return {row.id: row.facts for row in connection.execute(query)}


def assign(connection: Connection, agent_id: AgentId, *, session: int, job_id: JobId, attempt: int) -> bool:
    """The offer's half on the agent row; False: cordoned, assigned, or another session by now."""
    where = {
        "id": agent_id,
        "session": session,
        "state": AgentState.ONLINE,
        "assignment": NULL,
        "cordon_reason": NULL,
        "hold": NULL,
    }
    values = {"assignment": job_id, "assigned_attempt": attempt, "ever_assigned": True, "idle_since": None}
    return change(connection, agents, where, values) == 1


def unassign(
    connection: Connection, agent_id: AgentId, *, job_id: JobId, attempt: int, cordon: str | None = None
) -> bool:
    """Free the agent of this attempt (and of no other), cordoning it in the same write where asked."""
    values: dict[str, Any] = {"assignment": None, "assigned_attempt": None, "idle_since": NOW}
    if cordon is not None:
        values["cordon_reason"] = cordon
    return change(connection, agents, {"id": agent_id, "assignment": job_id, "assigned_attempt": attempt}, values) == 1


def cordon(connection: Connection, agent_id: AgentId, reason: str) -> bool:
    """Nothing is offered to it any more; False: it is assigned, or cordoned already."""
    done = connection.execute(
        update(agents)
        .where(agents.c.id == agent_id, agents.c.assignment.is_(None), agents.c.cordon_reason.is_(None))
        .values(cordon_reason=reason, version=agents.c.version + 1)
    )
    return done.rowcount == 1


def uncordon(connection: Connection, agent_id: AgentId) -> bool:
    """Take back Corral's own cordon; an operator's hold stays. False: there was none."""
    done = connection.execute(
        update(agents)
        .where(agents.c.id == agent_id, agents.c.cordon_reason.is_not(None))
        .values(cordon_reason=None, missed_acks=0, version=agents.c.version + 1)
    )
    return done.rowcount == 1


def hold(connection: Connection, agent_id: AgentId, what: Hold, *, by: str, hand_back_at: int | None = None) -> bool:
    """Nothing is offered to it any more, whatever it has in hand. False: it has ended."""
    done = connection.execute(
        update(agents)
        .where(agents.c.id == agent_id, agents.c.state != AgentState.ENDED)
        .values(hold=what, held_by=by, held_at=db_now(), hand_back_at=hand_back_at, version=agents.c.version + 1)
    )
    return done.rowcount == 1


def set_key(connection: Connection, agent_id: AgentId, key_digest: str) -> None:
    """The key that a static agent uses now."""
    connection.execute(
        update(agents).where(agents.c.id == agent_id).values(key_digest=key_digest, version=agents.c.version + 1)
    )


def unhold(connection: Connection, agent_id: AgentId) -> None:
    connection.execute(
        update(agents)
        .where(agents.c.id == agent_id)
        .values(hold=None, held_by=None, held_at=None, hand_back_at=None, version=agents.c.version + 1)
    )


def missed_ack(connection: Connection, agent_id: AgentId) -> int:
    """Count one offer that was not answered in time; how many in a row."""
    connection.execute(update(agents).where(agents.c.id == agent_id).values(missed_acks=agents.c.missed_acks + 1))
    count: int | None = connection.execute(select(agents.c.missed_acks).where(agents.c.id == agent_id)).scalar()
    return count or 0


_ANSWERED = update(agents).where(agents.c.id == bindparam("agent"), agents.c.missed_acks > 0).values(missed_acks=0)


def answered(connection: Connection, agent_id: AgentId) -> None:
    connection.execute(_ANSWERED, {"agent": agent_id})


def knock(connection: Connection, agent_id: AgentId) -> None:
    """A verified hello, whatever it will be answered."""
    connection.execute(
        update(agents).where(agents.c.id == agent_id).values(knocked_at=db_now(), version=agents.c.version + 1)
    )


def register(
    connection: Connection,
    agent: Agent,
    *,
    coordinator_id: str,
    boot_id: str,
    number: int,
    facts: Facts,
    labels: Labels,
) -> int | None:
    """A new session of the agent on this coordinator: its number, or None when the row changed meanwhile.

    ``number``: the agent's own count of its connections.
    """
    if AGENT.advance(agent.state, AgentEvent.REGISTER) is not AgentState.ONLINE:
        return None
    done = connection.execute(
        update(agents)
        .where(agents.c.id == agent.id, agents.c.version == agent.version)
        .values(
            state=AgentState.ONLINE,
            session=agents.c.session + 1,
            coordinator_id=coordinator_id,
            boot_id=boot_id,
            connection=number,
            facts=facts,
            labels=labels,
            connected_at=db_now(),
            disconnected_at=None,
            idle_since=db_now(),
            version=agents.c.version + 1,
        )
    )
    return agent.session + 1 if done.rowcount == 1 else None


def disconnect(connection: Connection, agent_id: AgentId, session: int) -> bool:
    """This session ended; False: a newer one is there."""
    done = connection.execute(
        update(agents)
        .where(agents.c.id == agent_id, agents.c.session == session, agents.c.state == AgentState.ONLINE)
        .values(state=AgentState.OFFLINE, disconnected_at=db_now(), version=agents.c.version + 1)
    )
    return done.rowcount == 1


def disconnect_all(connection: Connection, coordinator_id: str) -> int:
    """At a coordinator's start: none of its former sessions is left."""
    done = connection.execute(
        update(agents)
        .where(agents.c.coordinator_id == coordinator_id, agents.c.state == AgentState.ONLINE)
        .values(state=AgentState.OFFLINE, disconnected_at=db_now(), version=agents.c.version + 1)
    )
    return done.rowcount


def end(connection: Connection, agent_id: AgentId) -> None:
    connection.execute(
        update(agents)
        .where(agents.c.id == agent_id, agents.c.state != AgentState.ENDED)
        .values(state=AgentState.ENDED, ended_at=db_now(), version=agents.c.version + 1)
    )


# --- claims ------------------------------------------------------------------------------------------------


def add_claim(connection: Connection, *, digest: str, agent_id: AgentId, prefix: str) -> None:
    connection.execute(insert(claims).values(digest=digest, agent_id=agent_id, prefix=prefix, created_at=db_now()))


def claim_owner(connection: Connection, digest: str) -> tuple[AgentId, str | None] | None:
    """(agent, digest of the key it is bound to) of a claim."""
    row = connection.execute(select(claims.c.agent_id, claims.c.key_digest).where(claims.c.digest == digest)).first()
    return None if row is None else (row.agent_id, row.key_digest)


def redeem(connection: Connection, *, digest: str, agent_id: AgentId, key_digest: str) -> bool:
    """Bind the key if the claim is unspent or bound to this very key already: a lost answer can be asked again.
    False also where another agent has this key."""
    others = select(agents.c.id).where(agents.c.key_digest == key_digest, agents.c.id != agent_id)
    if connection.execute(others).first() is not None:
        return False
    done = connection.execute(
        update(claims)
        .where(
            claims.c.digest == digest,
            claims.c.agent_id == agent_id,
            (claims.c.key_digest.is_(None)) | (claims.c.key_digest == key_digest),
        )
        .values(key_digest=key_digest, redeemed_at=func.coalesce(claims.c.redeemed_at, db_now()))
    )
    if done.rowcount != 1:
        return False
    connection.execute(
        update(agents).where(agents.c.id == agent_id).values(key_digest=key_digest, version=agents.c.version + 1)
    )
    return True


# --- provisions --------------------------------------------------------------------------------------------


def add_provision(connection: Connection, **values: Any) -> None:
    connection.execute(insert(provisions).values(state=PROVISION.initial, requested_at=db_now(), **values))


def provision(connection: Connection, agent_id: AgentId) -> Provision | None:
    return one(Provision, connection.execute(select(*_PROVISION).where(provisions.c.agent_id == agent_id)).first())


def live_provisions(connection: Connection) -> tuple[Provision, ...]:
    """Every provision that is not gone."""
    return many(Provision, connection.execute(_LIVE_PROVISIONS))


def provisions_of_host(connection: Connection, host_id: str, states: Iterable[ProvisionState]) -> tuple[Provision, ...]:
    return many(Provision, connection.execute(_OF_HOST, {"host_id": host_id, "states": tuple(states)}))


def some_provisions(connection: Connection, agent_ids: Iterable[AgentId]) -> tuple[Provision, ...]:
    return many(Provision, connection.execute(select(*_PROVISION).where(provisions.c.agent_id.in_(tuple(agent_ids)))))


def provisions_of_job(connection: Connection, job_id: JobId) -> tuple[Provision, ...]:
    query = select(*_PROVISION).where(provisions.c.job_id == job_id).order_by(provisions.c.requested_at)
    return many(Provision, connection.execute(query))


def count_live(connection: Connection, pool: str | None = None) -> int:
    """Provisions that hold a slot, of one pool or of all."""
    query = select(func.count()).where(provisions.c.state.in_(LIVE))
    if pool is not None:
        query = query.where(provisions.c.pool == pool)
    found: int = connection.execute(query).scalar_one()
    return found


def count_creating(connection: Connection) -> int:
    """Provisions whose agent has not registered and whose creation has not failed."""
    query = select(func.count()).where(provisions.c.state == ProvisionState.REQUESTED, provisions.c.failed_at.is_(None))
    found: int = connection.execute(query).scalar_one()
    return found


def advance_provision(connection: Connection, row: Provision, event: ProvisionEvent, **values: Any) -> bool:
    """Move the provision by one event, from the version it was read in; False: somebody was first, or nothing moves."""
    if not PROVISION.changes(row.state, event):
        return False
    after = PROVISION.advance(row.state, event)
    values["state"] = after
    if after is ProvisionState.RELEASING:
        values.setdefault("released_at", NOW)
        values.setdefault("release_next_at", NOW)
    if after is ProvisionState.GONE:
        values.setdefault("gone_at", NOW)
        values["claim_sealed"] = None
    where = {"agent_id": row.agent_id, "state": row.state, "version": row.version}
    return change(connection, provisions, where, values) == 1


def change_provision(connection: Connection, row: Provision, **values: Any) -> bool:
    """Write columns other than the state, from the version it was read in."""
    return change(connection, provisions, {"agent_id": row.agent_id, "version": row.version}, values) == 1


def note_ended(connection: Connection, agent_id: AgentId, detail: str) -> bool:
    """The backend saw the instance end by itself; the leader takes it from there."""
    done = connection.execute(
        update(provisions)
        .where(
            provisions.c.agent_id == agent_id,
            provisions.c.ended_at.is_(None),
            provisions.c.state.in_((ProvisionState.REQUESTED, ProvisionState.ACTIVE)),
        )
        .values(ended_at=db_now(), error=detail, version=provisions.c.version + 1)
    )
    return done.rowcount == 1


def not_ended(connection: Connection, agent_ids: Iterable[AgentId]) -> tuple[AgentId, ...]:
    """Those whose instance counts as running, or that still have a job."""
    wanted = (
        provisions.c.state.in_((ProvisionState.REQUESTED, ProvisionState.ACTIVE)) & provisions.c.ended_at.is_(None)
    ) | (agents.c.assignment.is_not(None))
    query = select(provisions.c.agent_id).join(agents, agents.c.id == provisions.c.agent_id)
    query = query.where(provisions.c.agent_id.in_(tuple(agent_ids)), wanted).order_by(provisions.c.agent_id)
    return tuple(connection.execute(query).scalars())


def gone_before(connection: Connection, agent_ids: Iterable[AgentId], moment: int) -> tuple[AgentId, ...]:
    """Those that were accounted as gone by then."""
    query = select(provisions.c.agent_id).where(
        provisions.c.agent_id.in_(tuple(agent_ids)),
        provisions.c.state == ProvisionState.GONE,
        provisions.c.gone_at < moment,
    )
    return tuple(connection.execute(query.order_by(provisions.c.agent_id)).scalars())


def config_acked(connection: Connection, agent_id: AgentId) -> None:
    """The agent holds its key: what carried the claim is not needed any more."""
    connection.execute(
        update(provisions)
        .where(provisions.c.agent_id == agent_id)
        .values(config_acked_at=func.coalesce(provisions.c.config_acked_at, db_now()), claim_sealed=None)
    )


def sealed_claim(connection: Connection, agent_id: AgentId) -> bytes | None:
    return connection.execute(select(provisions.c.claim_sealed).where(provisions.c.agent_id == agent_id)).scalar()


def purge_gone(connection: Connection, older_than: int) -> int:
    """Delete rows of instances gone for longer than this (microseconds), their agents and claims with them."""
    old = select(provisions.c.agent_id).where(
        provisions.c.state == ProvisionState.GONE, provisions.c.gone_at < db_now() - older_than
    )
    ids = tuple(connection.execute(old.limit(500)).scalars())
    if ids:
        connection.execute(delete(provisions).where(provisions.c.agent_id.in_(ids)))
        connection.execute(delete(agents).where(agents.c.id.in_(ids)))
    return len(ids)


# --- pool health -------------------------------------------------------------------------------------------


def health(connection: Connection) -> tuple[PoolHealth, ...]:
    return many(PoolHealth, connection.execute(_HEALTH))


def pool_failed(connection: Connection, pool: str, error: str, pause: int) -> None:
    """One more failure in a row; creations wait ``pause`` microseconds."""
    values = {"backoff_began_at": db_now(), "backoff_until": db_now() + pause, "last_error": error}
    done = connection.execute(
        update(pool_health).where(pool_health.c.pool == pool).values(failures=pool_health.c.failures + 1, **values)
    )
    if done.rowcount == 0:
        connection.execute(insert(pool_health).values(pool=pool, failures=1, **values))


def pool_error(connection: Connection, pool: str, error: str) -> None:
    """The latest error, without one more failure."""
    connection.execute(update(pool_health).where(pool_health.c.pool == pool).values(last_error=error))


def pool_succeeded(connection: Connection, pool: str) -> None:
    connection.execute(delete(pool_health).where(pool_health.c.pool == pool))


def provisions_of_run(connection: Connection, run_id: RunId) -> dict[JobId, Provision]:
    """The latest provision made for each job of a run."""
    query = select(*_PROVISION).where(provisions.c.run_id == run_id).order_by(provisions.c.requested_at)
    rows = many(Provision, connection.execute(query))
    return {row.job_id: row for row in rows if row.job_id is not None}
