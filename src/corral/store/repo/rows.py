# SPDX-License-Identifier: Apache-2.0
"""From result rows to records, and the two shapes of write that repositories make.

Building a statement costs more than running it on an embedded database, so each shape is built once for its set of
columns and then only given values.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Insert, Row, Table, Update, bindparam, func, insert, select, update
from sqlalchemy.sql.elements import ColumnElement

from corral.store.tables import db_now

R = TypeVar("R", bound=msgspec.Struct)


class Special(enum.Enum):
    """Values that are not data: the database's clock, one more than before, and no value."""

    NOW = "now"
    BUMP = "bump"
    NULL = "null"


NOW = Special.NOW
BUMP = Special.BUMP
NULL = Special.NULL

Shape = tuple[tuple[str, Special | None], ...]


def columns(table: Table, record: type[msgspec.Struct]) -> list[ColumnElement[Any]]:
    """The table's columns that the record has, in the record's order."""
    return [table.c[name] for name in record.__struct_fields__]


def one(record: type[R], row: Row[Any] | None) -> R | None:
    return None if row is None else record(**row._mapping)


def many(record: type[R], rows: Any) -> tuple[R, ...]:
    names = record.__struct_fields__
    return tuple(record(**dict(zip(names, row, strict=True))) for row in rows)


def change(connection: Connection, table: Table, where: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    """Compare-and-set: rows whose columns equal ``where`` (``NULL``: are null) get ``values``; how many there were.

    A table with a ``version`` has it raised by every change.
    """
    statement = _update(table, _shape(where), _shape(values))
    parameters = {f"w_{name}": value for name, value in where.items() if not isinstance(value, Special)}
    parameters |= {f"v_{name}": value for name, value in values.items() if not isinstance(value, Special)}
    return connection.execute(statement, parameters).rowcount


def add_row(connection: Connection, table: Table, values: Mapping[str, Any]) -> None:
    """Insert one row; ``NOW`` is the database's clock."""
    statement = _insert(table, _shape(values))
    connection.execute(
        statement, {f"v_{name}": value for name, value in values.items() if not isinstance(value, Special)}
    )


def _shape(values: Mapping[str, Any]) -> Shape:
    return tuple((name, value if isinstance(value, Special) else None) for name, value in values.items())


@cache
def _update(table: Table, where: Shape, values: Shape) -> Update:
    conditions = [
        table.c[name].is_(None)
        if special is NULL
        else table.c[name] == bindparam(f"w_{name}", type_=table.c[name].type)
        for name, special in where
    ]
    assigned = {name: _assigned(table, name, special) for name, special in values}
    if "version" in table.c:
        assigned.setdefault("version", table.c.version + 1)
    return update(table).where(*conditions).values(assigned)


@cache
def _insert(table: Table, values: Shape) -> Insert:
    return insert(table).values({name: _assigned(table, name, special) for name, special in values})


def _assigned(table: Table, name: str, special: Special | None) -> Any:
    match special:
        case Special.NOW:
            return db_now()
        case Special.BUMP:
            return table.c[name] + 1
        case Special.NULL:
            return None
        case None:
            return bindparam(f"v_{name}", type_=table.c[name].type)


def one_at_a_time(connection: Connection, name: str) -> None:
    """Wait until no other transaction that asked for this name is open, and keep the next ones waiting until this one
    ends. A statement of its own: what is counted in a later one sees what those before it committed. SQLite has one
    writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(name))))
