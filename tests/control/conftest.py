# SPDX-License-Identifier: Apache-2.0
"""Control's transactions run on real SQL in memory, one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from corral.store.inline import InlineDatabase
from tests.clocks import ManualClock
from tests.control.worlds import World


@pytest.fixture
def world() -> Iterator[World]:
    clock = ManualClock()
    with asyncio.Runner() as runner:
        yield World(InlineDatabase(clock), clock, runner)
