# SPDX-License-Identifier: Apache-2.0
"""Claims: single-use codes with which an agent binds its own key to its provision."""

from __future__ import annotations

from sqlalchemy import Connection, func, insert, select, update

from corral.model.ids import AgentId
from corral.store.tables import agents, claims, db_now


def add(connection: Connection, *, digest: str, agent_id: AgentId, prefix: str) -> None:
    connection.execute(insert(claims).values(digest=digest, agent_id=agent_id, prefix=prefix, created_at=db_now()))


def owner(connection: Connection, digest: str) -> tuple[AgentId, str | None] | None:
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
