# SPDX-License-Identifier: Apache-2.0
"""A database whose writes are timed, whichever engine it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from corral.model.errors import StoreUnavailable
from corral.runtime.clock import Clock
from corral.store.interface import Database

T = TypeVar("T")


class MeasuredDatabase:
    """``on_write``: seconds of each committed write. ``on_error``: one that the database did not take."""

    def __init__(
        self, inner: Database, clock: Clock, on_write: Callable[[float], None], on_error: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._on_write = on_write
        self._on_error = on_error

    async def write(self, fn: Callable[[Connection], T]) -> T:
        began = self._clock.monotonic()
        try:
            value = await self._inner.write(fn)
        except StoreUnavailable:
            self._on_error()
            raise
        self._on_write(self._clock.monotonic() - began)
        return value

    async def read(self, fn: Callable[[Connection], T]) -> T:
        return await self._inner.read(fn)

    async def close(self) -> None:
        await self._inner.close()
