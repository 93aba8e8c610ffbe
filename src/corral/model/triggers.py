# SPDX-License-Identifier: Apache-2.0
"""Events that start workflows: their names, and what of an event a run sees.

A workflow declares the names (``on=event(...)``). Its expressions see the event flat, as texts: ``event.pool``; what
lies inside another value has its name before it, ``event.resources_cpu``; a list is separated by commas. What is
secret in an event is not among them: it becomes a secret of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from corral.model.errors import PermanentError
from corral.model.events import EventKind

RESERVED_EVENTS = "corral."
"""Names that begin so are Corral's own."""
KNOWN_EVENTS = tuple(kind.value for kind in EventKind)
PROVISIONER_EVENTS = frozenset(KNOWN_EVENTS)
"""A workflow that declares one of these works for a pool."""

CLAIM_SECRET = "CORRAL_CLAIM_CODE"
"""The secret that holds a scale-up's claim code; empty in a run for any other event."""

EVENT_KEYS = (
    "kind",
    "id",
    "type",
    "source",
    "subject",
    "time",
    "cluster_id",
    "agent_id",
    "sequence",
    "epoch",
    "pool",
    "labels",
    "mandatory_labels",
    "resources_cpu",
    "resources_memory",
    "coordinator_urls",
    "job_id",
    "run_id",
    "reason",
    "provider_id",
    "request",
)
EVENT_PREFIX = "evidence_"
"""And any key that begins so: the facts that a scale-down rests on."""
LOCAL_KEYS = ("kind", "commit", "branch", "repository")
"""What a run has that a person began."""

EVENT_LIMIT = 256 * 1024
"""Bytes of one event: it travels in one protocol frame (1 MiB) with its job (512 KiB)."""
SHOWN_LIMIT = 64
"""Keys below ``evidence``: more would be somebody's data, not facts."""


class UnreadableEvent(PermanentError):
    code = "unreadable_event"
    status = 422


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str
    data: dict[str, object]
    source: str = ""
    subject: str = ""
    time: str = ""


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """An event as a run gets it. ``values`` hold no secret; ``secrets`` by name."""

    type: str
    subject: str
    values: Mapping[str, str]
    secrets: Mapping[str, str]


def read_event(data: bytes) -> Trigger:
    """What a CloudEvent (JSON) says to a workflow. :raises UnreadableEvent: it is none; says nothing of its content."""
    if len(data) > EVENT_LIMIT:
        raise UnreadableEvent(f"the event has {len(data)} bytes; the limit is {EVENT_LIMIT}")
    try:
        event = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UnreadableEvent("the event is not a CloudEvent in JSON") from None
    about = {
        "kind": "event",
        "id": event.id,
        "type": event.type,
        "source": event.source,
        "subject": event.subject,
        "time": event.time,
    }
    claim = event.data.get("claim_code")
    shown = {name: value for name, value in event.data.items() if name != "claim_code"}
    return Trigger(
        type=event.type,
        subject=event.subject,
        values={**_flat(shown), **about},
        secrets={CLAIM_SECRET: claim if isinstance(claim, str) else ""},
    )


def _flat(data: Mapping[str, object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            below = {str(key): inner for key, inner in list(value.items())[:SHOWN_LIMIT]}
            found |= {f"{name}_{key}": text for key, text in _flat(below).items()}
        elif value is not None:
            found[name] = _text(value)
    return found


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return ",".join(_text(item) for item in value)
    return msgspec.json.encode(value).decode()
