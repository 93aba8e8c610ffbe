# SPDX-License-Identifier: Apache-2.0
"""Schema revisions, by the version each one leads to. Additive between neighbouring releases.

Each is frozen text, not derived from ``tables``: what version 2 was does not change when version 3 comes. They run on
SQLite; on PostgreSQL the first schema is version 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alembic.operations import Operations

_EVENTS = """
ALTER TABLE runs ADD COLUMN dedupe TEXT;
ALTER TABLE runs ADD COLUMN provisioning BOOLEAN NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN provisioning BOOLEAN NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX runs_by_dedupe ON runs (dedupe);
CREATE UNIQUE INDEX lease_term ON lease (name, generation, counter);
ALTER TABLE provisions ADD COLUMN mandatory TEXT NOT NULL DEFAULT '';
ALTER TABLE provisions ADD COLUMN target TEXT;
ALTER TABLE provisions ADD COLUMN target_key TEXT NOT NULL DEFAULT '';
ALTER TABLE provisions ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0;
ALTER TABLE provisions ADD COLUMN cost_per_hour FLOAT NOT NULL DEFAULT 0;
ALTER TABLE provisions ADD COLUMN machine TEXT NOT NULL DEFAULT '';
ALTER TABLE provisions ADD COLUMN provisioning BOOLEAN NOT NULL DEFAULT 0;
CREATE TABLE deliveries (
    id TEXT NOT NULL,
    position BIGINT NOT NULL,
    agent_id TEXT,
    pool TEXT NOT NULL,
    target TEXT NOT NULL,
    target_key TEXT NOT NULL,
    kind TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    evidence TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    refusals INTEGER NOT NULL,
    created_at BIGINT NOT NULL,
    next_at BIGINT NOT NULL,
    deadline_at BIGINT,
    first_sent_at BIGINT,
    sent_at BIGINT,
    send_deadline BIGINT,
    answered_at BIGINT,
    ended_at BIGINT,
    last TEXT NOT NULL,
    error TEXT NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT deliveries_state CHECK (state IN ('pending', 'sending', 'delivered', 'failed', 'dropped'))
);
CREATE INDEX deliveries_by_agent ON deliveries (agent_id, sequence);
CREATE INDEX deliveries_by_state ON deliveries (state, next_at);
CREATE TABLE targets (
    "key" TEXT NOT NULL,
    target TEXT NOT NULL,
    told_epoch TEXT NOT NULL,
    asked_at BIGINT,
    told_at BIGINT,
    listed_at BIGINT,
    listing_supported BOOLEAN,
    stale_since BIGINT,
    error TEXT NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY ("key")
);
CREATE TABLE sightings (
    target_key TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    provider_id TEXT NOT NULL,
    pool TEXT NOT NULL,
    cost_per_hour FLOAT NOT NULL,
    first_listed_at BIGINT NOT NULL,
    last_listed_at BIGINT NOT NULL,
    listings INTEGER NOT NULL,
    PRIMARY KEY (target_key, agent_id, provider_id)
);
CREATE TABLE buckets (
    name TEXT NOT NULL,
    tokens FLOAT NOT NULL,
    filled_at BIGINT NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE failures (
    id INTEGER NOT NULL,
    pool TEXT NOT NULL,
    backend TEXT NOT NULL,
    bound BOOLEAN NOT NULL,
    detail TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX failures_by_time ON failures (at);
CREATE TABLE workflows (
    name TEXT NOT NULL,
    project TEXT NOT NULL,
    spec TEXT NOT NULL,
    lock_hash TEXT NOT NULL,
    source_hash TEXT,
    source_size BIGINT,
    registered_at BIGINT NOT NULL,
    registered_by TEXT NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (name)
);
"""


def _events(operations: Operations) -> None:
    """2: the user's own provisioners, caps over resources and cost, registered workflows, recent failures."""
    for statement in _EVENTS.split(";\n"):
        if statement.strip():
            operations.execute(statement)


REVISIONS: dict[int, Callable[[Operations], None]] = {2: _events}
"""Version 1 is the first schema; it is created from ``corral.store.tables`` and needs no revision."""
