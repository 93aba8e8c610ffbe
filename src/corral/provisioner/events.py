# SPDX-License-Identifier: Apache-2.0
"""An event as a provisioner's own code sees it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

SCALE_UP = "corral.scaler.scale-up.v1"
SCALE_DOWN = "corral.scaler.scale-down.v1"
INVENTORY = "corral.scaler.inventory.v1"
EVENT_LIMIT = 256 * 1024
"""Bytes of one event; Corral's own have a few thousand."""
_ID_LIMIT = 256


class Malformed(Exception):
    """It is no event of Corral's, or of a type that this release does not know."""


@dataclass(frozen=True)
class Event:
    """``epoch``: (generation, counter). ``claim_code``: hand it to the instance by file or environment, never in an
    argument, and keep it nowhere. ``provider_id``: what was reported of the instance, or is remembered of it."""

    id: str
    type: str
    cluster_id: str
    epoch: tuple[int, int]
    agent_id: str = ""
    sequence: int = 0
    pool: str = ""
    labels: tuple[str, ...] = ()
    mandatory_labels: tuple[str, ...] = ()
    cpu: float | None = None
    memory: int | None = None
    coordinator_urls: tuple[str, ...] = ()
    claim_code: str = field(default="", repr=False)
    job_id: str = ""
    run_id: str = ""
    reason: str = ""
    provider_id: str = ""
    request: str = ""


def parse(raw: bytes) -> Event:
    """:raises Malformed: with what is wrong."""
    if len(raw) > EVENT_LIMIT:
        raise Malformed(f"the event has {len(raw)} bytes; the limit is {EVENT_LIMIT}")
    try:
        envelope = json.loads(raw)
    except (ValueError, RecursionError):
        raise Malformed("the event is no JSON") from None
    data = envelope.get("data") if isinstance(envelope, dict) else None
    if not isinstance(data, dict):
        raise Malformed("the event has no data: it has to be a CloudEvent in structured mode")
    kind = envelope.get("type")
    if kind not in (SCALE_UP, SCALE_DOWN, INVENTORY):
        raise Malformed(f"events of type {str(kind)[:100]!r} are not known to this provisioner")
    resources = data.get("resources") if isinstance(data.get("resources"), dict) else {}
    return Event(
        id=_identity(envelope, "id"),
        type=kind,
        cluster_id=_identity(data, "cluster_id"),
        epoch=_epoch(data.get("epoch")),
        agent_id="" if kind == INVENTORY else _identity(data, "agent_id"),
        sequence=0 if kind == INVENTORY else _sequence(data.get("sequence")),
        pool=_text(data, "pool"),
        labels=_texts(data, "labels"),
        mandatory_labels=_texts(data, "mandatory_labels"),
        cpu=_number(resources, "cpu"),
        memory=None if (memory := _number(resources, "memory")) is None else int(memory),
        coordinator_urls=_texts(data, "coordinator_urls"),
        claim_code=_text(data, "claim_code"),
        job_id=_text(data, "job_id"),
        run_id=_text(data, "run_id"),
        reason=_text(data, "reason"),
        provider_id=_text(data, "provider_id"),
        request=_text(data, "request"),
    )


def _identity(data: dict[str, object], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value or len(value) > _ID_LIMIT or not value.isprintable():
        raise Malformed(f"{name} is missing or no printable text of at most {_ID_LIMIT} characters")
    return value


def _epoch(value: object) -> tuple[int, int]:
    generation, dot, counter = str(value).partition(".")
    numbers = (generation, counter)
    if not dot or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in numbers):
        raise Malformed("epoch is no GENERATION.COUNTER")
    return int(generation), int(counter)


def _sequence(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Malformed("sequence is no number from 0 on")
    return value


def _text(data: dict[str, object], name: str) -> str:
    value = data.get(name)
    return value if isinstance(value, str) else ""


def _texts(data: dict[str, object], name: str) -> tuple[str, ...]:
    value = data.get(name)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _number(data: object, name: str) -> float | None:
    value = data.get(name) if isinstance(data, dict) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
