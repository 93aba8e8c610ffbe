# SPDX-License-Identifier: Apache-2.0
"""Provisioners that events go to, and what they were told and said about all their instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select

from corral.model.events import Target
from corral.model.records import Provisioner
from corral.model.states import ProvisionState
from corral.store.repo.rows import add_row, change, columns, many, one
from corral.store.tables import provisions, targets

_TARGET = columns(targets, Provisioner)


def every(connection: Connection) -> tuple[Provisioner, ...]:
    return many(Provisioner, connection.execute(select(*_TARGET).order_by(targets.c.key)))


def get(connection: Connection, key: str) -> Provisioner | None:
    return one(Provisioner, connection.execute(select(*_TARGET).where(targets.c.key == key)).first())


def known(connection: Connection, wanted: Mapping[str, Target]) -> None:
    """Enter what is not there yet, and how each is reached now."""
    rows = {row.key: row for row in every(connection)}
    for key, target in wanted.items():
        row = rows.get(key)
        if row is None:
            add_row(connection, targets, {"key": key, "target": target})
        elif row.target != target:
            write(connection, key, target=target)


def write(connection: Connection, key: str, **values: Any) -> None:
    change(connection, targets, {"key": key}, values)


def in_use(connection: Connection) -> dict[str, Target]:
    """Of every event provision that is not gone: the provisioner that it was asked of."""
    query = (
        select(provisions.c.target_key, provisions.c.target)
        .where(provisions.c.state != ProvisionState.GONE, provisions.c.target.is_not(None))
        .distinct()
    )
    return {row.target_key: row.target for row in connection.execute(query)}
