# SPDX-License-Identifier: Apache-2.0
"""What a kind of instance can do. One conformance suite holds every implementation to this contract.

- ``create`` is idempotent by agent id and cleans up after itself: when it raises, nothing of the instance is left,
  or ``destroy`` finds and removes it.
- ``destroy`` is idempotent and legal in every state, also before an id is known; an absent instance is success.
- Every call stops at its deadline (seconds); a hung call never holds a slot.
- Whatever is created carries cluster id, pool and agent id from the first call, so that a restart finds it and no
  other installation's things are touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from corral.model.errors import PermanentError, TemporaryError
from corral.model.ids import AgentId, ClusterId
from corral.model.labels import Labels
from corral.model.secret import Secret


class NoCapacity(TemporaryError):
    """The host or provider has no room now. The caller backs the pool off and tries the next fitting one."""

    code = "no_capacity"


class Transient(TemporaryError):
    """It failed in a way that may pass. The caller destroys, then retries with backoff."""

    code = "backend_transient"


class Misconfigured(PermanentError):
    """The pool's configuration cannot work on this host. The caller backs off and shows the sentence."""

    code = "backend_misconfigured"


class Denied(PermanentError):
    """The host or provider refuses us (rights, quota for good). The caller backs off and shows the sentence."""

    code = "backend_denied"


class Isolation(StrEnum):
    NONE = "none"
    """Same user as the coordinator: for trusted code only."""
    USER = "user"
    CONTAINER = "container"
    VM = "vm"
    EXTERNAL = "external"


@dataclass(frozen=True, kw_only=True)
class InstanceSpec:
    """What to create. ``limits``: cores and bytes the kernel shall enforce, None: unlimited.
    ``claim_code`` is handed over so that no other user of the host can read it, never in argv."""

    cluster_id: ClusterId
    agent_id: AgentId
    pool: str
    labels: Labels
    claim_code: Secret
    coordinator_urls: tuple[str, ...]
    cpu_limit: float | None = None
    memory_limit: int | None = None
    user: str = ""
    inherit_env: tuple[str, ...] | None = None
    """Names or ``PREFIX_*`` patterns of the coordinator's variables that jobs see; None: the documented default."""
    single_use: bool = True


@dataclass(frozen=True, kw_only=True)
class Created:
    provider_id: str


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One instance of ours that exists. ``ended``: it is still there, but its agent is not running any more."""

    agent_id: AgentId
    pool: str
    provider_id: str
    ended: bool = False
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """News that an instance ended by itself. ``detail``: exit code, signal, out of memory, as a sentence."""

    agent_id: AgentId
    detail: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One result of ``check``. ``level``: ok, warning or failed."""

    level: str
    message: str
    remedy: str = ""


class Backend(Protocol):
    """One kind of instance on this host."""

    kind: str
    local: bool
    can_list: bool
    isolation: Isolation

    async def create(self, spec: InstanceSpec, deadline: float) -> Created:
        """Bring the instance up, or find the one already up under the same agent id.

        :raises NoCapacity: no room now.
        :raises Transient: may work later.
        :raises Misconfigured: will not work until the configuration changes.
        :raises Denied: will not work until rights or quota change.
        """
        ...

    async def destroy(self, agent_id: AgentId, deadline: float) -> None:
        """Return only when the instance and all it ran are confirmed gone, traces on the host included.

        :raises Transient: not confirmed yet; call again.
        """
        ...

    async def forget_claim(self, agent_id: AgentId) -> None:
        """The agent holds its key: wipe what carried the claim. Idempotent; an absent instance is success."""
        ...

    async def list(self) -> tuple[Instance, ...]:
        """Every instance of this cluster id on this host, ended ones included."""
        ...

    async def check(self) -> tuple[Finding, ...]:
        """Can this backend work here? Bounded to 10 s by the caller."""
        ...

    def watch(self, on_ending: Callable[[Ending], None]) -> None:
        """Call ``on_ending`` (in the event loop) within a second of any instance ending by itself."""
        ...

    async def close(self) -> None:
        """Let go of instances without touching them: they outlive the coordinator (unless tied to it)."""
        ...
