# SPDX-License-Identifier: Apache-2.0
"""Finding a coordinator: rounds over every known URL, with a growing, jittered pause between rounds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from corral.agent.interface import Dial, Link
from corral.model.errors import TemporaryError
from corral.runtime.chance import Chance
from corral.runtime.clock import Clock

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 5.0
"""Seconds for one URL: longer than any healthy handshake, short enough to try five in half a minute."""
BACKOFF_FIRST = 1.0
BACKOFF_MAX = 60.0
"""Seconds; full jitter below them keeps a fleet from dialling in step."""


class Rounds:
    """The URLs and the backoff between rounds over them."""

    def __init__(self, urls: Iterable[str], *, dial: Dial, clock: Clock, chance: Chance) -> None:
        self._configured = tuple(urls)
        self._urls = list(dict.fromkeys(self._configured))
        self._dial = dial
        self._clock = clock
        self._chance = chance
        self._rounds = 0
        self._answered = ""
        self._not_before = 0.0

    @property
    def urls(self) -> tuple[str, ...]:
        """Known URLs, the one that answered last first."""
        return tuple(sorted(self._urls, key=lambda url: url != self._answered))

    def learn(self, urls: Iterable[str]) -> None:
        """The coordinators there are now, as ``welcome`` names them; the configured ones are kept behind."""
        self._urls = list(dict.fromkeys((*urls, *self._configured)))

    def registered(self) -> None:
        """A session was made: the next trouble starts with a short pause again."""
        self._rounds = 1

    def put_last(self, url: str) -> None:
        """The next round begins elsewhere."""
        if url in self._urls:
            self._urls.remove(url)
            self._urls.append(url)

    def wait_at_least(self, seconds: float) -> None:
        """A coordinator asked for this pause."""
        self._not_before = max(self._not_before, self._clock.monotonic() + seconds)

    async def connect(self) -> tuple[str, Link]:
        """Dial until somebody answers; the URL and the connection."""
        while True:
            await self._clock.sleep(self._pause())
            for url in tuple(self._urls):
                link = await self._try(url)
                if link is not None:
                    self._answered = url
                    return url, link

    def _pause(self) -> float:
        """Seconds before this round; none before the very first, whose start is nobody else's."""
        limit = min(BACKOFF_FIRST * 2 ** min(self._rounds - 1, 10), BACKOFF_MAX) if self._rounds else 0.0
        self._rounds += 1
        return max(self._chance.uniform(0.0, limit), self._not_before - self._clock.monotonic(), 0.0)

    async def _try(self, url: str) -> Link | None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await self._dial.dial(url)
        except TimeoutError:
            log.info("no answer from %s within %g s", url, CONNECT_TIMEOUT)
        except TemporaryError as error:
            log.info("cannot reach %s: %s", url, error)
        return None
