# SPDX-License-Identifier: Apache-2.0
"""Instances that a provisioner listed and no provision here wants."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from corral.model.ids import AgentId
from corral.model.records import Sighting
from corral.store.repo.rows import BUMP, add_row, change, columns, many
from corral.store.tables import sightings

_SIGHTING = columns(sightings, Sighting)


def every(connection: Connection) -> tuple[Sighting, ...]:
    query = select(*_SIGHTING).order_by(sightings.c.first_listed_at, sightings.c.agent_id, sightings.c.provider_id)
    return many(Sighting, connection.execute(query))


def of_target(connection: Connection, key: str) -> tuple[Sighting, ...]:
    query = select(*_SIGHTING).where(sightings.c.target_key == key).order_by(sightings.c.agent_id)
    return many(Sighting, connection.execute(query))


def seen(
    connection: Connection, key: str, agent_id: AgentId, provider_id: str, *, pool: str, hourly: float, listed_at: int
) -> None:
    """One more complete listing has it; ``listed_at``: when that listing was asked for."""
    where = {"target_key": key, "agent_id": agent_id, "provider_id": provider_id}
    if change(connection, sightings, where, {"last_listed_at": listed_at, "listings": BUMP, "cost_per_hour": hourly}):
        return
    first = {"pool": pool, "cost_per_hour": hourly, "first_listed_at": listed_at, "last_listed_at": listed_at}
    add_row(connection, sightings, {**where, **first})


def forget(connection: Connection, row: Sighting) -> None:
    connection.execute(
        delete(sightings).where(
            sightings.c.target_key == row.target_key,
            sightings.c.agent_id == row.agent_id,
            sightings.c.provider_id == row.provider_id,
        )
    )
