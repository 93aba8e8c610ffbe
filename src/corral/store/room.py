# SPDX-License-Identifier: Apache-2.0
"""A bound on bytes held at once, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque


class Room:
    """``limit`` bytes. One request above the limit is let in when nothing else is."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def used(self) -> int:
        return self._used

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def take(self, amount: int) -> None:
        """Return when there is room; the order of calls is kept."""
        if not self._waiting and self._fits(amount):
            self._used += amount
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((amount, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(amount)
            else:
                # Cancelling the waiter cancelled its turn: the next in line must not wait behind it.
                self._admit()
            raise

    def give(self, amount: int) -> None:
        self._used -= amount
        self._admit()

    def _fits(self, amount: int) -> bool:
        return self._used == 0 or self._used + amount <= self._limit

    def _admit(self) -> None:
        while self._waiting:
            amount, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(amount):
                    return
                self._used += amount
                turn.set_result(None)
            self._waiting.popleft()
