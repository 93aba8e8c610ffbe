# SPDX-License-Identifier: Apache-2.0
"""How much log one run may have. What is beyond it is not stored, and stated: in the log, in the step's record, and by
the run's ``log incomplete``."""

from __future__ import annotations

from collections import OrderedDict

from sqlalchemy import Connection

from corral.model.ids import RunId
from corral.model.states import STEP
from corral.store.interface import Database, LogKey, LogStore
from corral.store.repo import jobs

RUN_LOG_LIMIT = 10 * 1024**3
"""Bytes of all logs of one run, unless the configuration says otherwise."""
RUNS = 1000
"""Runs whose sizes are remembered; those longest without news are counted again when they print."""


class RunQuota:
    """Counts what was let through, so that a replay is not counted twice. One per coordinator."""

    def __init__(self, database: Database, logs: LogStore, limit: int) -> None:
        self.limit = limit
        self._database = database
        self._logs = logs
        self._ends: OrderedDict[RunId, dict[LogKey, int]] = OrderedDict()
        self._cut: dict[RunId, set[LogKey]] = {}

    async def admits(self, key: LogKey, offset: int, size: int) -> bool:
        """Whether these bytes may be stored; a log that was cut once stays cut, for it can have no gap."""
        ends = await self._known(key.run_id)
        if self.cut(key):
            return False
        if key not in ends:
            ends[key] = (await self._logs.info(key)).size
        end = max(ends[key], offset + size)
        # A gap can only be where a coordinator before this one cut it: nothing else was ever acknowledged unstored.
        if offset > ends[key] or sum(ends.values()) - ends[key] + end > self.limit:
            self._cut.setdefault(key.run_id, set()).add(key)
            return False
        ends[key] = end
        return True

    def cut(self, key: LogKey) -> bool:
        return key in self._cut.get(key.run_id, ())

    def marker(self, missing: int) -> bytes:
        """The log's last words."""
        return (
            f"\n[corral: the run's log limit of {self.limit} bytes is reached; {missing} bytes are not kept]\n".encode()
        )

    async def _known(self, run_id: RunId) -> dict[LogKey, int]:
        ends = self._ends.get(run_id)
        if ends is None:
            found = await self._database.read(lambda c: _printed(c, run_id))
            ends = {key: (await self._logs.info(key)).size if size is None else size for key, size in found.items()}
            ends = self._ends.setdefault(run_id, ends)
            while len(self._ends) > RUNS:
                oldest, _ = self._ends.popitem(last=False)
                self._cut.pop(oldest, None)
        self._ends.move_to_end(run_id)
        return ends


def _printed(connection: Connection, run_id: RunId) -> dict[LogKey, int | None]:
    """The logs of a run so far; None: it is still written to."""
    return {
        LogKey(run_id=run_id, job_id=step.job_id, attempt=step.attempt, step=step.number): (
            step.log_size or 0 if step.state in STEP.terminal else None
        )
        for step in jobs.steps_of_run(connection, run_id)
    }
