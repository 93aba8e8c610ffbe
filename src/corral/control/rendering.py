# SPDX-License-Identifier: Apache-2.0
"""Events as bytes: the only place where a claim code leaves its seal."""

from __future__ import annotations

import msgspec

from corral.model.events import (
    SPEC_VERSION,
    CloudEvent,
    EventKind,
    Inventory,
    Resources,
    ScaleDown,
    ScaleUp,
)
from corral.model.ids import ClusterId
from corral.model.records import Delivery, Provision
from corral.model.secret import Secret
from corral.runtime.clock import rfc3339

REDACTED = "[redacted]"
"""Stands for the claim code wherever an event is shown."""


def epoch_text(epoch: tuple[int, int]) -> str:
    return f"{epoch[0]}.{epoch[1]}"


def scale_event(
    row: Delivery,
    provision: Provision,
    claim: Secret | None,
    *,
    cluster_id: ClusterId,
    epoch: tuple[int, int],
    urls: tuple[str, ...],
) -> bytes:
    """``claim`` None: for showing, or a scale-down."""
    data: ScaleUp | ScaleDown
    if row.kind is EventKind.SCALE_UP:
        data = ScaleUp(
            cluster_id=cluster_id,
            agent_id=provision.agent_id,
            sequence=row.sequence,
            epoch=epoch_text(epoch),
            pool=row.pool,
            labels=tuple(sorted(provision.labels)),
            mandatory_labels=tuple(sorted(provision.mandatory)),
            resources=Resources(cpu=provision.cpu, memory=provision.memory),
            coordinator_urls=urls,
            claim_code=claim.reveal() if claim is not None else REDACTED,
            job_id=provision.job_id,
            run_id=provision.run_id,
        )
    else:
        data = ScaleDown(
            cluster_id=cluster_id,
            agent_id=provision.agent_id,
            sequence=row.sequence,
            epoch=epoch_text(epoch),
            pool=row.pool,
            reason=row.reason,
            evidence=row.evidence,
            provider_id=provision.provider_id,
        )
    return _encode(row.kind, row.id, str(provision.agent_id), row.created_at, data)


def inventory_event(data: Inventory, event_id: str, moment: int) -> bytes:
    return _encode(EventKind.INVENTORY, event_id, str(data.cluster_id), moment, data)


def _encode(kind: EventKind, event_id: str, subject: str, moment: int, data: ScaleUp | ScaleDown | Inventory) -> bytes:
    return msgspec.json.encode(
        CloudEvent(
            specversion=SPEC_VERSION,
            id=event_id,
            source=f"/corral/{data.cluster_id}",
            type=kind,
            time=rfc3339(moment),
            subject=subject,
            datacontenttype="application/json",
            data=msgspec.to_builtins(data),
        )
    )
