# SPDX-License-Identifier: Apache-2.0
"""The conformance suite runs over every database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.store.inline import InlineDatabase
from corral.store.interface import Database
from corral.store.sqlite import SqliteDatabase
from tests.clocks import ManualClock
from tests.postgres import clocked, server
from tests.store.databases import Hand


@pytest.fixture(params=["sqlite", "inline", "postgres"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hand]:
    clock = ManualClock()
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        database: Database
        if request.param == "sqlite":
            database = SqliteDatabase.open(tmp_path / "corral.db", clock)
        elif request.param == "inline":
            database = InlineDatabase(clock)
        else:
            database = stack.enter_context(clocked(server().database(), clock))
        yield Hand(database, clock, runner)
        runner.run(database.close())
