# SPDX-License-Identifier: Apache-2.0
"""The last line each running job printed, for progress displays: in memory, bounded, never decided upon."""

from __future__ import annotations

from collections import OrderedDict

from corral.model.ids import JobId

JOBS = 2000
WIDTH = 200
"""Bytes of a line that are kept."""


class LastLines:
    def __init__(self) -> None:
        self._lines: OrderedDict[JobId, bytes] = OrderedDict()

    def note(self, job_id: JobId, data: bytes) -> None:
        """Look at the end of what a job just printed."""
        tail = data[-4 * WIDTH :].rstrip(b"\r\n")
        line = tail[max(tail.rfind(b"\n"), tail.rfind(b"\r")) + 1 :][:WIDTH]
        if not line.strip():
            return
        self._lines[job_id] = line
        self._lines.move_to_end(job_id)
        if len(self._lines) > JOBS:
            self._lines.popitem(last=False)

    def get(self, job_id: JobId) -> str:
        return self._lines.get(job_id, b"").decode(errors="replace")

    def forget(self, job_id: JobId) -> None:
        self._lines.pop(job_id, None)
