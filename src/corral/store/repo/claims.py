# SPDX-License-Identifier: Apache-2.0
"""Claims: single-use codes with which an agent binds its own key to its provision."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, func, select, update

from corral.model.ids import AgentId
from corral.store.repo.rows import NOW, add_row, change
from corral.store.tables import agents, claims, db_now

_OWNER = select(claims.c.agent_id, claims.c.key_digest).where(claims.c.digest == bindparam("digest"))
_OTHERS = select(agents.c.id).where(agents.c.key_digest == bindparam("key"), agents.c.id != bindparam("agent"))
_REDEEM = (
    update(claims)
    .where(
        claims.c.digest == bindparam("claim"),
        claims.c.agent_id == bindparam("agent"),
        (claims.c.key_digest.is_(None)) | (claims.c.key_digest == bindparam("key")),
    )
    .values(key_digest=bindparam("key"), redeemed_at=func.coalesce(claims.c.redeemed_at, db_now()))
)


def add(connection: Connection, *, digest: str, agent_id: AgentId, prefix: str) -> None:
    add_row(connection, claims, {"digest": digest, "agent_id": agent_id, "prefix": prefix, "created_at": NOW})


def owner(connection: Connection, digest: str) -> tuple[AgentId, str | None] | None:
    """(agent, digest of the key it is bound to) of a claim."""
    row = connection.execute(_OWNER, {"digest": digest}).first()
    return None if row is None else (row.agent_id, row.key_digest)


def redeem(connection: Connection, *, digest: str, agent_id: AgentId, key_digest: str) -> bool:
    """Bind the key if the claim is unspent or bound to this very key already: a lost answer can be asked again.
    False also where another agent has this key."""
    names = {"claim": digest, "agent": agent_id, "key": key_digest}
    if connection.execute(_OTHERS, {"key": key_digest, "agent": agent_id}).first() is not None:
        return False
    if connection.execute(_REDEEM, names).rowcount != 1:
        return False
    change(connection, agents, {"id": agent_id}, {"key_digest": key_digest})
    return True
