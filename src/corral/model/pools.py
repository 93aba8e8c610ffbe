# SPDX-License-Identifier: Apache-2.0
"""A configured source of instances."""

from __future__ import annotations

from msgspec import Struct

from corral.model.labels import NO_LABELS, Labels


class Pool(Struct, frozen=True, kw_only=True):
    """``labels`` are its own and the reserved ones Corral adds. ``inherit_env`` None: the documented default.
    Durations are seconds. ``max_agents`` counts every provision of the pool that is not gone, ``max_running`` the jobs
    that its agents have at the same time; None: as many as it has agents."""

    name: str
    backend: str
    labels: Labels
    mandatory: Labels = NO_LABELS
    max_agents: int
    max_running: int | None = None
    user: str = ""
    inherit_env: tuple[str, ...] | None = None
    spawn_timeout: float = 300.0
    idle_timeout: float = 300.0
    default: bool = False
    draining: bool = False
    cpu: float | None = None
    memory: int | None = None


class Caps(Struct, frozen=True, kw_only=True):
    """Cluster-wide bounds. ``concurrent_creates``: requested at the same time and not yet registered, per host."""

    max_agents: int = 1000
    concurrent_creates: int = 8
    creates_per_job: int = 5
