# SPDX-License-Identifier: Apache-2.0
"""A job's secrets: those it was given and those its steps register in ``$CORRAL_MASK`` (one value per line)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

from corral.agent.masking import Masker

FILE_LIMIT = 1024 * 1024
"""Bytes of the file that are read."""


class JobMasks:
    """Shared by the pumps of one job. Values are only ever added."""

    def __init__(self, values: Iterable[str], file: Path) -> None:
        self._values = list(values)
        self._file = file
        self._read = 0
        self._lock = threading.Lock()
        file.touch(mode=0o600)

    def masker(self) -> Masker:
        """For one stream; call :meth:`learn` with it before each piece."""
        return Masker(self._values)

    def learn(self, masker: Masker) -> None:
        """Add what a step has registered since. A line counts when it is complete, so a step that writes the file
        and then prints is never too early."""
        with self._lock:
            for value in self._new_lines():
                self._values.append(value)
                masker.add(value)

    def masked(self, text: str) -> str:
        """``text`` as a log would show it."""
        return self.masked_bytes(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def masked_bytes(self, data: bytes) -> bytes:
        """``data`` as a log would show it."""
        masker = self.masker()
        return masker.feed(data) + masker.flush()

    def _new_lines(self) -> list[str]:
        try:
            if self._file.stat().st_size <= self._read or self._read >= FILE_LIMIT:
                return []
            with open(os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                file.seek(self._read)
                data = file.read(FILE_LIMIT - self._read)
        except OSError:
            # The step removed it: nothing new, and nothing that was known is forgotten.
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return [line.decode("utf-8", "surrogateescape").rstrip("\r") for line in whole.split(b"\n") if line.strip()]
