# SPDX-License-Identifier: Apache-2.0
"""Registered workflows: what an event starts. Each stands for itself; a new registration replaces it whole."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, delete, insert, select, update

from corral.model.ids import AgentId
from corral.model.records import RegisteredWorkflow
from corral.model.spec import SourceRef, WorkflowSpec
from corral.model.states import ProvisionState
from corral.store.repo.rows import columns, many, one
from corral.store.tables import db_now, provisions, workflows

_COLUMNS = columns(workflows, RegisteredWorkflow)
_OPEN = (ProvisionState.REQUESTED, ProvisionState.ACTIVE, ProvisionState.RELEASING, ProvisionState.ABANDONED)


def put(
    connection: Connection, spec: WorkflowSpec, *, project: str, lock_hash: str, source: SourceRef | None, by: str
) -> None:
    """Register, or replace what is registered under the name."""
    values = {
        "project": project,
        "spec": spec,
        "lock_hash": lock_hash,
        "source_hash": source.hash if source else None,
        "source_size": source.size if source else None,
        "registered_at": db_now(),
        "registered_by": by,
    }
    changed = connection.execute(
        update(workflows).where(workflows.c.name == spec.name).values(**values, version=workflows.c.version + 1)
    )
    if not changed.rowcount:
        connection.execute(insert(workflows).values(name=spec.name, **values))


def get(connection: Connection, name: str) -> RegisteredWorkflow | None:
    return one(RegisteredWorkflow, connection.execute(select(*_COLUMNS).where(workflows.c.name == name)).first())


def every(connection: Connection, project: str | None = None) -> tuple[RegisteredWorkflow, ...]:
    """By name; of one project, or of all."""
    query = select(*_COLUMNS).order_by(workflows.c.name)
    return many(
        RegisteredWorkflow,
        connection.execute(query if project is None else query.where(workflows.c.project == project)),
    )


def remove(connection: Connection, name: str) -> bool:
    return connection.execute(delete(workflows).where(workflows.c.name == name)).rowcount == 1


def sources(connection: Connection) -> frozenset[str]:
    """Hashes of the archives that registered workflows run on."""
    query = select(workflows.c.source_hash).where(workflows.c.source_hash.is_not(None)).distinct()
    return frozenset(connection.execute(query).scalars())


def needed_by(connection: Connection, target_keys: Iterable[str], limit: int) -> tuple[AgentId, ...]:
    """At most ``limit`` provisions that are not gone and whose events go to one of these targets."""
    query = select(provisions.c.agent_id).where(
        provisions.c.target_key.in_(tuple(target_keys)), provisions.c.state.in_(_OPEN)
    )
    return tuple(connection.execute(query.order_by(provisions.c.requested_at).limit(limit)).scalars())
