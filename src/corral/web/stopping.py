# SPDX-License-Identifier: Apache-2.0
"""The moment from which open streams end, so that a stopping server waits for nobody."""

from __future__ import annotations

import asyncio


class Stopping:
    """Set once. Streams that end because of it carry no end event, so their readers come back."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def begin(self) -> None:
        self._event.set()

    @property
    def begun(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()
