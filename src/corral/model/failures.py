# SPDX-License-Identifier: Apache-2.0
"""Failed provisions of the recent past, as an operator asks about them."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class BackendKind(StrEnum):
    """Kinds of backend that a failure may be of; a closed set, so that it can label a metric."""

    CONTAINER = "container"
    PROCESS = "process"
    FIRECRACKER = "firecracker"
    QEMU = "qemu"
    EVENT = "event"
    UNKNOWN = "unknown"


def backend_kind(name: str) -> BackendKind:
    """The kind of that name; ``unknown`` for one this release does not know."""
    return BackendKind(name) if name in set(BackendKind) else BackendKind.UNKNOWN


class Failure(Struct, frozen=True, kw_only=True):
    """One provision that failed. ``bound``: a job waited for it. ``at``: milliseconds since the Unix epoch."""

    pool: str
    backend: BackendKind
    bound: bool
    detail: str
    at: int


class PoolFailures(Struct, frozen=True, kw_only=True):
    """The failures of one pool in a window; ``backend``, ``detail`` and ``at`` are the latest one's."""

    backend: BackendKind
    bound: int
    unbound: int
    detail: str
    at: int
