# SPDX-License-Identifier: Apache-2.0
"""Tokens: made, stored by their digest, revoked. A static agent is one token: its key and its agent row."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from corral.control.api import Role
from corral.control.registration import digest, lose_job
from corral.control.settle import SECOND, Wake
from corral.model.errors import Fault, NotFound, Refused
from corral.model.ids import AgentId, TokenId
from corral.model.labels import MAX_LABELS, label_fault, labels, reserved
from corral.model.records import Token
from corral.model.views import NewToken
from corral.runtime.chance import Chance, agent_id, secret_token, token_id
from corral.store.repo import agents, tokens

TOKEN_PREFIX = "corral_"
AGENT_ROLE = "agent"
PREFIX_SHOWN = 14
"""Characters of a token that are stored to recognise it by."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """``text`` is shown once. An agent's is ``AGENT_ID.KEY``; only the key is secret."""

    id: TokenId
    new: NewToken
    text: str
    secret: str
    agent_id: AgentId | None


def faults_of(new: NewToken) -> list[Fault]:
    roles = [*Role, AGENT_ROLE]
    faults = []
    if new.role not in roles:
        faults.append(Fault(path="role", message=f"no role {new.role!r}", remedy=f"one of {', '.join(roles)}"))
    if new.labels and new.role != AGENT_ROLE:
        faults.append(Fault(path="labels", message="only an agent's token has labels", remedy="role agent"))
    if new.role == AGENT_ROLE and not new.labels:
        faults.append(Fault(path="labels", message="an agent without labels fits no job", remedy="name one at least"))
    if len(new.labels) > MAX_LABELS:
        faults.append(Fault(path="labels", message=f"{len(new.labels)} labels; the limit is {MAX_LABELS}"))
    for index, label in enumerate(new.labels):
        problem = label_fault(label) or (f"label {label!r} is reserved" if reserved(label) else None)
        if problem is not None:
            faults.append(Fault(path=f"labels[{index}]", message=problem))
    return faults


def make(new: NewToken, chance: Chance, *, agent: AgentId | None = None) -> Made:
    """``agent``: another key of this static agent, instead of a new one."""
    if new.role == AGENT_ROLE:
        identity = agent or agent_id(chance)
        key = secret_token(chance, "key_")
        return Made(id=token_id(chance), new=new, text=f"{identity}.{key}", secret=key, agent_id=identity)
    text = secret_token(chance, TOKEN_PREFIX)
    return Made(id=token_id(chance), new=new, text=text, secret=text, agent_id=None)


def store(connection: Connection, made: Made, by: str) -> Token:
    """``by``: id of the token with which it is made."""
    new = made.new
    if made.agent_id is not None:
        agents.add(
            connection,
            id=made.agent_id,
            pool="",
            kind="static",
            labels=labels(new.labels),
            project="local",
            key_digest=digest(made.secret),
        )
    return _add(connection, made, by)


def _add(connection: Connection, made: Made, by: str) -> Token:
    return tokens.add(
        connection,
        id=made.id,
        name=made.new.name,
        role=made.new.role,
        digest=digest(made.secret),
        prefix=made.text[:PREFIX_SHOWN],
        project="local",
        agent_id=made.agent_id,
        created_by=by,
    )


def rotate(connection: Connection, token_id: TokenId, grace: float, chance: Chance, by: str) -> tuple[Made, Token]:
    """A new token in the place of this one, which goes on working for ``grace`` seconds, or until a static agent has
    registered with the new one.

    :raises NotFound: no such token. :raises Refused: it is revoked, or was replaced before.
    """
    row = tokens.get(connection, token_id)
    if row is None:
        raise NotFound(f"no token {token_id}")
    made = make(NewToken(name=row.name, role=row.role), chance, agent=row.agent_id)
    if not tokens.replace(connection, token_id, by=made.id, grace=int(grace * SECOND)):
        how = "was revoked" if row.revoked_at is not None else f"was replaced by {row.replaced_by} already"
        raise Refused(f"token {token_id} {how}")
    return made, _add(connection, made, by)


def revoke(connection: Connection, token_id: TokenId, wake: Wake) -> tuple[Token, bool]:
    """The token, and whether its agent has to go now: it has no other key, or it is the one it uses. Its job is settled
    in the same transaction, not when somebody misses the agent. The agent itself ends with its last token: revoking one
    that a rotation replaced ends that key alone.

    :raises NotFound: no such token.
    :raises Refused: it is the last admin token.
    """
    row = tokens.get(connection, token_id)
    if row is None:
        raise NotFound(f"no token {token_id}")
    if row.role == Role.ADMIN and tokens.is_last(connection, token_id, Role.ADMIN):
        raise Refused("this is the last admin token; create another one first")
    used = tokens.is_agents_key(connection, token_id)
    tokens.revoke(connection, token_id)
    if row.agent_id is not None and row.revoked_at is None:
        used = _end_key(connection, row.agent_id, wake, used=used)
    after = tokens.get(connection, token_id)
    assert after is not None
    return after, used


def _end_key(connection: Connection, agent_id: AgentId, wake: Wake, *, used: bool) -> bool:
    """``used``: the agent registered with it. Whether the agent has to go."""
    agent = agents.get(connection, agent_id)
    last = not tokens.live_of_agent(connection, agent_id)
    if agent is not None and (used or last):
        lose_job(connection, agent, "the agent's token was revoked", wake)
    if last:
        agents.end(connection, agent_id)
    return used or last
