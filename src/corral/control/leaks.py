# SPDX-License-Identifier: Apache-2.0
"""The ledger of leaks as one snapshot: for operators, metrics and diagnose."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from sqlalchemy import Connection

from corral.control.inventory import Ghost, strays_held
from corral.model.leaks import Alarm, Leak, LedgerView, TargetView
from corral.model.records import Provisioner
from corral.model.states import ProvisionState
from corral.runtime.clock import SECOND, rfc3339
from corral.store.repo import deliveries, sightings, targets
from corral.store.repo import provisions as provisions_rows
from corral.store.repo.installation import now

_HOUR = 3600 * SECOND

Ledger = Callable[[], Awaitable[LedgerView]]
"""Takes the snapshot now: metrics and diagnosis show what operators are shown."""


def snapshot(
    connection: Connection, ghosts: Mapping[str, tuple[Ghost, ...]], unanswered: tuple[str, ...]
) -> LedgerView:
    """``ghosts``: by target, of the latest listings. ``unanswered``: targets that never answered this term's inventory
    request."""
    moment = now(connection)
    rows = targets.every(connection)
    leaks = _abandoned(connection, moment) + _strays(connection, moment) + _ghosts(ghosts, moment)
    waiting, lag = deliveries.lag(connection)
    return LedgerView(
        leaks=tuple(leaks),
        alarms=tuple(_alarms(leaks, rows, unanswered, strays_held(connection))),
        targets=tuple(_target(row) for row in rows),
        waiting=waiting,
        lag=lag / SECOND,
    )


def _leak(kind: str, since: int, moment: int, hourly: float, **more: str) -> Leak:
    hours = max(0, moment - since) / _HOUR
    cost = round(hours * hourly, 6)
    return Leak(kind=kind, since=rfc3339(since), hours=round(hours, 6), cost_per_hour=hourly, cost=cost, **more)


def _abandoned(connection: Connection, moment: int) -> list[Leak]:
    return [
        _leak(
            "abandoned",
            row.requested_at,
            moment,
            row.cost_per_hour,
            agent_id=row.agent_id,
            pool=row.pool,
            target=row.target_key,
            provider_id=row.provider_id,
            detail=row.error,
        )
        for row in provisions_rows.in_state(connection, ProvisionState.ABANDONED)
    ]


def _strays(connection: Connection, moment: int) -> list[Leak]:
    return [
        _leak(
            "stray",
            row.first_listed_at,
            moment,
            row.cost_per_hour,
            agent_id=row.agent_id,
            pool=row.pool,
            target=row.target_key,
            provider_id=row.provider_id,
        )
        for row in sightings.every(connection)
    ]


def _ghosts(ghosts: Mapping[str, tuple[Ghost, ...]], moment: int) -> list[Leak]:
    return [
        _leak("ghost", one.since, moment, one.cost_per_hour, agent_id=one.agent_id, pool=one.pool, target=key)
        for key, some in sorted(ghosts.items())
        for one in some
    ]


def _alarms(leaks: list[Leak], rows: tuple[Provisioner, ...], unanswered: tuple[str, ...], held: int) -> list[Alarm]:
    found = [
        Alarm(
            code="ABANDONED",
            subject=leak.agent_id,
            message=f"the instance could not be destroyed: {leak.detail}",
            remedy="look at the provider, then corral provisions retry|forget",
        )
        for leak in leaks
        if leak.kind == "abandoned"
    ]
    found += [
        Alarm(
            code="EPOCH_BEHIND",
            subject=row.key,
            message=f"it has seen a higher epoch than ours: {row.error}",
            remedy="if no other installation uses this cluster id: corral cluster raise-epoch",
        )
        for row in rows
        if row.stale_since is not None
    ]
    found += [
        Alarm(
            code="INVENTORY_UNANSWERED",
            subject=key,
            message="it did not answer this term's inventory request, and is asked to destroy all the same",
            remedy="look at the provisioner; corral provisioner verify tests it",
        )
        for key in unanswered
    ]
    if held:
        found.append(
            Alarm(
                code="STRAYS_HELD",
                subject="cluster",
                message=f"{held} unknown instances are left alone: the database was restored, or its epoch raised",
                remedy="look at them, then corral provisioner approve-strays",
            )
        )
    return found


def _target(row: Provisioner) -> TargetView:
    return TargetView(
        key=row.key.replace("\x1f", " "),
        told_epoch=row.told_epoch,
        told_at=None if row.told_at is None else rfc3339(row.told_at),
        listed_at=None if row.listed_at is None else rfc3339(row.listed_at),
        listing={None: "unknown", True: "yes", False: "no"}[row.listing_supported],
        stale=row.stale_since is not None,
        error=row.error,
    )
