# SPDX-License-Identifier: Apache-2.0
"""API tokens: only their SHA-256 is stored."""

from __future__ import annotations

from sqlalchemy import Connection, func, insert, select, update

from corral.model.ids import AgentId, TokenId
from corral.model.records import Token
from corral.store.repo.rows import columns, many, one
from corral.store.tables import db_now, tokens

_COLUMNS = columns(tokens, Token)


def add(
    connection: Connection,
    *,
    id: TokenId,
    name: str,
    role: str,
    digest: str,
    prefix: str,
    project: str,
    agent_id: AgentId | None = None,
) -> Token:
    connection.execute(
        insert(tokens).values(
            id=id,
            name=name,
            role=role,
            digest=digest,
            prefix=prefix,
            project=project,
            agent_id=agent_id,
            created_at=db_now(),
        )
    )
    token = get(connection, id)
    assert token is not None
    return token


def get(connection: Connection, token_id: TokenId) -> Token | None:
    return one(Token, connection.execute(select(*_COLUMNS).where(tokens.c.id == token_id)).first())


def by_digest(connection: Connection, digest: str) -> Token | None:
    """The API token, unless it was revoked. An agent's key opens nothing here."""
    query = select(*_COLUMNS).where(
        tokens.c.digest == digest, tokens.c.revoked_at.is_(None), tokens.c.agent_id.is_(None)
    )
    return one(Token, connection.execute(query).first())


def every(connection: Connection) -> tuple[Token, ...]:
    return many(Token, connection.execute(select(*_COLUMNS).order_by(tokens.c.created_at, tokens.c.id)))


def count_live(connection: Connection, role: str) -> int:
    query = select(func.count()).where(tokens.c.role == role, tokens.c.revoked_at.is_(None))
    found: int = connection.execute(query).scalar_one()
    return found


def revoke(connection: Connection, token_id: TokenId) -> bool:
    done = connection.execute(
        update(tokens).where(tokens.c.id == token_id, tokens.c.revoked_at.is_(None)).values(revoked_at=db_now())
    )
    return done.rowcount == 1


def used(connection: Connection, token_id: TokenId) -> None:
    connection.execute(update(tokens).where(tokens.c.id == token_id).values(last_used_at=db_now()))
