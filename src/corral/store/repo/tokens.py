# SPDX-License-Identifier: Apache-2.0
"""API tokens: only their SHA-256 is stored."""

from __future__ import annotations

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.sql.elements import ColumnElement

from corral.model.ids import AgentId, TokenId
from corral.model.records import Token
from corral.store.repo.rows import columns, many, one
from corral.store.tables import agents, db_now, tokens

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
    created_by: str | None = None,
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
            created_by=created_by,
            created_at=db_now(),
        )
    )
    token = get(connection, id)
    assert token is not None
    return token


def get(connection: Connection, token_id: TokenId) -> Token | None:
    return one(Token, connection.execute(select(*_COLUMNS).where(tokens.c.id == token_id)).first())


def by_digest(connection: Connection, digest: str) -> Token | None:
    """The API token, unless it is over. An agent's key opens nothing here."""
    query = select(*_COLUMNS).where(tokens.c.digest == digest, tokens.c.agent_id.is_(None), _live())
    return one(Token, connection.execute(query).first())


def _live() -> ColumnElement[bool]:
    """Neither revoked nor replaced for longer than its grace."""
    return tokens.c.revoked_at.is_(None) & (tokens.c.expires_at.is_(None) | (tokens.c.expires_at > db_now()))


def of_key(connection: Connection, agent_id: AgentId, digest: str) -> tuple[Token, bool] | None:
    """The static agent's token with this key, and whether it still opens anything."""
    query = select(*_COLUMNS, _live().label("live")).where(tokens.c.agent_id == agent_id, tokens.c.digest == digest)
    row = connection.execute(query).first()
    if row is None:
        return None
    *values, live = row
    return Token(**dict(zip(Token.__struct_fields__, values, strict=True))), bool(live)


def names_of_agents(connection: Connection) -> dict[AgentId, str]:
    """What the static agents are called: as their newest token is."""
    query = select(tokens.c.agent_id, tokens.c.name).where(tokens.c.agent_id.is_not(None)).order_by(tokens.c.created_at)
    return {row.agent_id: row.name for row in connection.execute(query)}


def replace(connection: Connection, token_id: TokenId, *, by: TokenId, grace: int) -> bool:
    """A rotation: ``by`` takes its place, it opens nothing after ``grace`` microseconds. False: it is over already."""
    done = connection.execute(
        update(tokens)
        .where(tokens.c.id == token_id, tokens.c.replaced_by.is_(None), tokens.c.revoked_at.is_(None))
        .values(replaced_by=by, expires_at=db_now() + grace)
    )
    return done.rowcount == 1


def expire(connection: Connection, replaced_by: TokenId) -> None:
    """The new key was used: the one it replaces is not needed any more."""
    connection.execute(
        update(tokens)
        .where(tokens.c.replaced_by == replaced_by, tokens.c.expires_at > db_now())
        .values(expires_at=db_now())
    )


def every(connection: Connection) -> tuple[Token, ...]:
    return many(Token, connection.execute(select(*_COLUMNS).order_by(tokens.c.created_at, tokens.c.id)))


def is_last(connection: Connection, token_id: TokenId, role: str) -> bool:
    """It works, and no other token of this role works for good."""
    lasting = (tokens.c.id == token_id) | tokens.c.expires_at.is_(None)
    query = select(tokens.c.id).where(tokens.c.role == role, _live(), lasting)
    return tuple(connection.execute(query).scalars()) == (token_id,)


def live_of_agent(connection: Connection, agent_id: AgentId) -> int:
    """How many keys of a static agent work."""
    found: int = connection.execute(select(func.count()).where(tokens.c.agent_id == agent_id, _live())).scalar_one()
    return found


def is_agents_key(connection: Connection, token_id: TokenId) -> bool:
    """The static agent of this token registered with it last."""
    query = select(agents.c.id).where(
        agents.c.key_digest == select(tokens.c.digest).where(tokens.c.id == token_id).scalar_subquery()
    )
    return connection.execute(query).first() is not None


def revoke(connection: Connection, token_id: TokenId) -> bool:
    done = connection.execute(
        update(tokens).where(tokens.c.id == token_id, tokens.c.revoked_at.is_(None)).values(revoked_at=db_now())
    )
    return done.rowcount == 1


def used(connection: Connection, token_id: TokenId) -> None:
    connection.execute(update(tokens).where(tokens.c.id == token_id).values(last_used_at=db_now()))
