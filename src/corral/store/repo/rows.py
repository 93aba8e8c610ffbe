# SPDX-License-Identifier: Apache-2.0
"""From result rows to records."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from sqlalchemy import Row, Table
from sqlalchemy.sql.elements import ColumnElement

R = TypeVar("R", bound=msgspec.Struct)


def columns(table: Table, record: type[msgspec.Struct]) -> list[ColumnElement[Any]]:
    """The table's columns that the record has, in the record's order."""
    return [table.c[name] for name in record.__struct_fields__]


def one(record: type[R], row: Row[Any] | None) -> R | None:
    return None if row is None else record(**row._mapping)


def many(record: type[R], rows: Any) -> tuple[R, ...]:
    return tuple(record(**row._mapping) for row in rows)
