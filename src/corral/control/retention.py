# SPDX-License-Identifier: Apache-2.0
"""Ended runs are removed, oldest first, until both bounds hold: their rows, their logs, and sources nobody needs."""

from __future__ import annotations

from corral.model.ids import RunId, SourceHash
from corral.model.views import Clean, Cleaned
from corral.store.interface import Database, LogStore, SourceStore
from corral.store.repo import runs, workflows
from corral.store.repo.installation import now

BATCH = 100
"""Runs deleted in one transaction: long deletes would hold up the writer."""


AWAITS_ITS_RUN = 3600 * 1_000_000
"""Microseconds for which an archive that no run names is kept: it is uploaded before its run is created."""
PROVISIONING_KEPT = 200
"""Ended runs that worked for provisioners: enough to look for what went wrong an hour ago in a busy pool, and they take
no place from users' runs."""
PROVISIONING_SHARE = 10
"""One part in so many of the bytes kept may be theirs."""


async def clean(database: Database, logs: LogStore, sources: SourceStore, how: Clean) -> Cleaned:
    """Remove what exceeds ``how``. A run that has not ended is never touched."""
    users, own = await database.read(
        lambda c: (runs.ended_oldest_first(c), runs.ended_oldest_first(c, provisioning=True))
    )
    usage = await logs.usage()
    stored = await sources.list()
    few = Clean(keep_runs=min(how.keep_runs, PROVISIONING_KEPT), keep_bytes=how.keep_bytes // PROVISIONING_SHARE)
    mine = _doomed(own, usage, stored, few)
    left = how.keep_bytes - sum(usage.get(run_id, 0) for run_id, _ in own[len(mine) :])
    doomed = mine + _doomed(users, usage, stored, Clean(keep_runs=how.keep_runs, keep_bytes=left))
    freed = 0
    for start in range(0, len(doomed), BATCH):
        batch = doomed[start : start + BATCH]
        await _forget(database, batch)
        for run_id in batch:
            freed += await logs.delete_run(run_id)
    freed += await _orphaned_logs(database, logs, usage)
    removed = {source for run_id, source in users + own if run_id in set(doomed)}
    freed += await _unused_sources(database, sources, removed)
    return Cleaned(runs=len(doomed), bytes=freed)


async def _forget(database: Database, batch: tuple[RunId, ...]) -> None:
    await database.write(lambda c: runs.forget(c, batch))


def _doomed(
    ended: tuple[tuple[RunId, str | None], ...],
    usage: dict[RunId, int],
    sources: dict[SourceHash, int],
    how: Clean,
) -> tuple[RunId, ...]:
    """The oldest, as many as it takes. A source counts with the newest run that uses it."""
    kept_bytes = 0
    counted: set[str] = set()
    for index, (run_id, source) in enumerate(reversed(ended)):
        size = usage.get(run_id, 0)
        if source is not None and source not in counted:
            counted.add(source)
            size += sources.get(SourceHash(source), 0)
        kept_bytes += size
        if index >= how.keep_runs or kept_bytes > how.keep_bytes:
            return tuple(run for run, _ in ended[: len(ended) - index])
    return ()


async def _orphaned_logs(database: Database, logs: LogStore, usage: dict[RunId, int]) -> int:
    """Logs whose run is not there any more: a removal that was interrupted after its rows."""
    freed = 0
    for run_id in usage:
        if await database.read(lambda c, run_id=run_id: runs.get(c, run_id) is None):  # type: ignore[misc]
            freed += await logs.delete_run(run_id)
    return freed


async def _unused_sources(database: Database, sources: SourceStore, removed: set[str | None]) -> int:
    """Listed first, read after: an archive uploaded in between is not in the list. ``removed``: those whose runs were
    just removed; any other may still wait for its run."""
    listed = await sources.list()
    used, moment = await database.read(lambda c: (runs.sources_in_use(c) | workflows.sources(c), now(c)))
    freed = 0
    for hash, size in listed.items():
        if hash in used:
            continue
        stored_at = await sources.stored_at(hash)
        if hash in removed or (stored_at is not None and moment - stored_at >= AWAITS_ITS_RUN):
            await sources.delete(hash)
            freed += size
    return freed
