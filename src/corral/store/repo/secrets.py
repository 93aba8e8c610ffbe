# SPDX-License-Identifier: Apache-2.0
"""Secrets of unfinished runs, sealed: the key is in a file, never in the database."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from corral.model.ids import RunId
from corral.store.tables import secrets


def add_all(connection: Connection, run_id: RunId, sealed: dict[str, bytes]) -> None:
    if sealed:
        rows = [{"run_id": run_id, "name": name, "sealed": value} for name, value in sealed.items()]
        connection.execute(insert(secrets), rows)


def of_run(connection: Connection, run_id: RunId) -> dict[str, bytes]:
    query = select(secrets.c.name, secrets.c.sealed).where(secrets.c.run_id == run_id)
    return {row.name: row.sealed for row in connection.execute(query)}


def wipe(connection: Connection, run_id: RunId) -> int:
    """Forget all of a run's secrets; how many."""
    return connection.execute(delete(secrets).where(secrets.c.run_id == run_id)).rowcount
