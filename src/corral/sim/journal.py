# SPDX-License-Identifier: Apache-2.0
"""What happened, in order: the readable timeline of a history, and a digest by which two histories compare."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """``at``: virtual seconds."""

    at: float
    actor: str
    text: str

    def __str__(self) -> str:
        minutes, seconds = divmod(self.at, 60)
        return f"{int(minutes):4d}:{seconds:09.6f}  {self.actor:<14} {self.text}"


class Journal:
    """:param keep: hold every entry for reading; else only the digest, and the last few for a report."""

    def __init__(self, time: Callable[[], float], *, keep: bool = False) -> None:
        self._time = time
        self._digest = hashlib.sha256()
        self._entries: list[Entry] = []
        self._keep = keep
        self._names: dict[str, str] = {}
        self.count = 0

    @property
    def keeping(self) -> bool:
        """Whether anybody will read the text; the digest needs less."""
        return self._keep

    def note(self, actor: str, text: str, told: str = "") -> None:
        """``told``: shown instead of ``text``, which is what the digest is made of."""
        at = self._time()
        self.count += 1
        self._digest.update(f"{at!r} {actor} {text}\n".encode())
        if self._keep:
            self._entries.append(Entry(at, actor, told or text))

    def name(self, identity: str, short: str) -> str:
        """From now on ``identity`` is shown as ``short``."""
        self._names[identity] = short
        return short

    def short(self, identity: str) -> str:
        return self._names.get(identity, identity)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def entries(self) -> Iterator[Entry]:
        yield from self._entries
