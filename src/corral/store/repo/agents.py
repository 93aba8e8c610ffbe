# SPDX-License-Identifier: Apache-2.0
"""Agents.

An offer and a cordon are both a compare-and-set on the one agent row: an offer needs *neither cordoned nor held, and
unassigned* and the offerer's session, a cordon needs *unassigned*. So no interleaving assigns a cordoned agent. A hold
is an operator's word: it may be said at any time, and the job in hand goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, update

from corral.model.ids import AgentId, JobId
from corral.model.labels import Labels
from corral.model.records import Agent, Hold
from corral.model.states import AGENT, AgentEvent, AgentState
from corral.store.repo.rows import BUMP, NOW, NULL, add_row, change, columns, many, one
from corral.store.tables import agents, db_now
from corral.wire.messages import Facts

_AGENT = columns(agents, Agent)
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
    add_row(
        connection,
        agents,
        {
            "id": id,
            "pool": pool,
            "kind": kind,
            "labels": labels,
            "project": project,
            "key_digest": key_digest,
            "state": AGENT.initial,
            "created_at": NOW,
        },
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


def recordon(connection: Connection, agent_id: AgentId, before: str, after: str) -> bool:
    """Another reason for the same cordon; False: it has none, or not that one."""
    where = {"id": agent_id, "cordon_reason": before}
    return change(connection, agents, where, {"cordon_reason": after}) == 1


def uncordon(connection: Connection, agent_id: AgentId) -> bool:
    """Take back Corral's own cordon; an operator's hold stays. False: there was none."""
    done = connection.execute(
        update(agents)
        .where(agents.c.id == agent_id, agents.c.cordon_reason.is_not(None))
        .values(cordon_reason=None, missed_acks=0, version=agents.c.version + 1)
    )
    return done.rowcount == 1


def unresponsive(connection: Connection) -> tuple[AgentId, ...]:
    """Static agents that are connected and get no offers because they answered none."""
    query = select(agents.c.id).where(
        agents.c.kind == "static", agents.c.state == AgentState.ONLINE, agents.c.cordon_reason == "unresponsive"
    )
    return tuple(connection.execute(query.order_by(agents.c.id)).scalars())


def try_again(connection: Connection, agent_id: AgentId) -> bool:
    """Offers for an agent that answered none. What it missed stays counted: one more, and it is cordoned again."""
    done = connection.execute(
        update(agents)
        .where(agents.c.id == agent_id, agents.c.cordon_reason == "unresponsive")
        .values(cordon_reason=None, version=agents.c.version + 1)
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
    change(connection, agents, {"id": agent_id}, {"knocked_at": NOW})


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
    values = {
        "state": AgentState.ONLINE,
        "session": BUMP,
        "coordinator_id": coordinator_id,
        "boot_id": boot_id,
        "connection": number,
        "facts": facts,
        "labels": labels,
        "connected_at": NOW,
        "disconnected_at": None,
        "idle_since": NOW,
    }
    done = change(connection, agents, {"id": agent.id, "version": agent.version}, values)
    return agent.session + 1 if done == 1 else None


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
