# SPDX-License-Identifier: Apache-2.0
"""What the coordinator offers to whoever speaks for a user: the web room adapts it to HTTP, nothing more.

Every method raises the errors of ``corral.model.errors``; the web room turns them into problem+json.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from corral.control.link import Link
from corral.model.events import Listing, ProvisionReport
from corral.model.ids import AgentId, JobId, RunId, SourceHash, TokenId
from corral.model.leaks import EpochView, LedgerView, ReportView
from corral.model.views import (
    AgentView,
    Clean,
    Cleaned,
    CreatedToken,
    DiagnoseView,
    DrainAgent,
    JobView,
    NewRun,
    NewToken,
    Page,
    PoolView,
    ProvisionView,
    RegisterWorkflows,
    ReloadView,
    Rerun,
    RotateToken,
    RunView,
    ServerView,
    TokenView,
    WhyView,
    WorkflowView,
)


class Role(StrEnum):
    """Viewer, operator and admin each include the ones before; a provisioner may say what became of instances, and
    nothing else, which an admin may too."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    PROVISIONER = "provisioner"

    def opens(self, needed: Role) -> bool:
        """Whether whoever has this role may do what ``needed`` may."""
        if Role.PROVISIONER in (self, needed):
            return self in (needed, Role.ADMIN)
        ranks = list(Role)
        return ranks.index(self) >= ranks.index(needed)


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Who asks."""

    token_id: TokenId
    name: str
    role: Role


@dataclass(frozen=True, kw_only=True)
class LogPart:
    """Bytes of one step's log. ``final``: nothing follows ``offset + len(data)``."""

    step: int
    offset: int
    data: bytes
    final: bool


@dataclass(frozen=True, kw_only=True)
class ServiceHealth:
    name: str
    healthy: bool
    detail: str = ""


class Api(Protocol):
    """Implemented by :class:`corral.control.coordinator.Coordinator`."""

    # --- who ---

    async def authenticate(self, token: str) -> Principal:
        """:raises Unauthenticated: unknown or revoked. Constant time in the token's content."""
        ...

    async def create_token(self, new: NewToken, *, by: str = "") -> CreatedToken:
        """``by``: id of the token with which it is asked; empty: the server itself."""
        ...

    async def tokens(self) -> tuple[TokenView, ...]: ...
    async def rotate_token(self, token_id: TokenId, how: RotateToken, *, by: str = "") -> CreatedToken:
        """:raises Refused: it is revoked, or was replaced before."""
        ...

    async def revoke_token(self, token_id: TokenId) -> TokenView:
        """The job of a static agent that has no other key is settled at once."""
        ...

    # --- health ---

    async def server(self) -> ServerView: ...
    async def health(self) -> tuple[ServiceHealth, ...]:
        """Ready when all are healthy: database writable, loops making progress."""
        ...

    async def diagnose(self, only: str = "") -> DiagnoseView:
        """Everything an operator would look at. ``only``: a check, or the beginning of its name. Bounded to seconds.

        :raises NotFound: no check has such a name.
        """
        ...

    async def metrics(self) -> bytes:
        """Text for Prometheus."""
        ...

    # --- runs and jobs ---

    async def create_run(self, new: NewRun) -> RunView:
        """:raises Invalid: every fault of lock, workflow name, job names, secrets missing, source unknown."""
        ...

    async def runs(
        self, *, project: str = "local", cursor: str = "", limit: int = 50, provisioning: bool = False
    ) -> Page[RunView]:
        """Newest first, without jobs. ``limit`` 1 to 200. ``provisioning``: the runs that work for provisioners,
        instead of all others."""
        ...

    async def run(self, run_id: RunId) -> RunView:
        """With its jobs, without their steps."""
        ...

    def watch_run(self, run_id: RunId) -> AsyncIterator[RunView]:
        """The run now, and again after each change, at most ten times a second; ends after the terminal one."""
        ...

    async def cancel_run(self, run_id: RunId, *, force: bool = False) -> RunView:
        """Idempotent; a second call with ``force`` kills. :raises Refused: the run has ended."""
        ...

    async def rerun(self, run_id: RunId, how: Rerun) -> RunView: ...
    async def job(self, job_id: JobId) -> JobView:
        """With steps and attempts."""
        ...

    async def why(self, job_id: JobId) -> WhyView: ...
    async def clean(self, how: Clean) -> Cleaned:
        """Remove ended runs, oldest first, with their logs and the sources that no run needs any more, until both
        bounds hold. A run that goes on is never touched."""
        ...

    # --- registered workflows ---

    async def register_workflows(self, wanted: RegisterWorkflows, *, by: str = "") -> tuple[WorkflowView, ...]:
        """All of them or none; what was registered under the same names is replaced.

        :raises Invalid: every fault of lock, names, source, and of what a provisioner must be.
        """
        ...

    async def workflows(self, *, project: str = "local") -> tuple[WorkflowView, ...]:
        """By name."""
        ...

    async def workflow(self, name: str) -> WorkflowView: ...
    async def remove_workflow(self, name: str) -> WorkflowView:
        """:raises Refused: a pool's provisioner is this workflow, or there are instances that only it can destroy."""
        ...

    # --- logs ---

    async def read_log(
        self, job_id: JobId, *, attempt: int | None = None, step: int, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """Raw bytes of one step (attempt None: the latest). :raises NotFound: no such job, attempt or step."""
        ...

    async def log_size(self, job_id: JobId, *, attempt: int | None = None, step: int) -> tuple[int, bool]:
        """Bytes stored, and whether that is final."""
        ...

    def follow_log(
        self, job_id: JobId, *, attempt: int | None = None, step: int = 0, offset: int = 0
    ) -> AsyncIterator[LogPart]:
        """All steps in order from (step, offset) on, as bytes arrive; ends when the job's last log is final."""
        ...

    # --- sources ---

    async def put_source(self, hash: SourceHash, chunks: AsyncIterator[bytes]) -> int: ...
    async def source_size(self, hash: SourceHash) -> int | None: ...
    async def read_source(self, agent_id: AgentId, key: str, hash: SourceHash) -> AsyncIterator[bytes]:
        """For agents. :raises Unauthenticated: the key does not verify. :raises Forbidden: not its job's source."""
        ...

    # --- agents and pools ---

    async def agents(self) -> tuple[AgentView, ...]:
        """All whose instance is not gone, newest first."""
        ...

    async def cordon_agent(self, agent_id: AgentId, *, by: str = "") -> AgentView:
        """Nothing is offered to it any more; the job in hand goes on. :raises Refused: it has ended, or drains."""
        ...

    async def uncordon_agent(self, agent_id: AgentId) -> AgentView:
        """:raises Refused: it has ended, or its instance is being given back."""
        ...

    async def drain_agent(self, agent_id: AgentId, how: DrainAgent, *, by: str = "") -> AgentView:
        """As a cordon, and after the job in hand it ends. :raises Refused: it has ended."""
        ...

    async def pools(self) -> tuple[PoolView, ...]: ...
    async def provisions(self, *, state: str = "", pool: str = "") -> tuple[ProvisionView, ...]:
        """The records of instances, newest first; without a state those that are not gone."""
        ...

    async def provision(self, agent_id: AgentId) -> ProvisionView:
        """With its story and its events. :raises NotFound: no such provision."""
        ...

    async def retry_provision(self, agent_id: AgentId, *, by: str = "") -> ProvisionView:
        """Try again to end an abandoned one. :raises Refused: it is not abandoned."""
        ...

    async def forget_provision(self, agent_id: AgentId, *, by: str = "") -> ProvisionView:
        """Somebody looked: an abandoned one does not exist. :raises Refused: it is not abandoned."""
        ...

    # --- provisioners ---

    async def report_provision(self, agent_id: AgentId, said: ProvisionReport) -> ReportView:
        """:raises NotFound: no provision of a provisioner's."""
        ...

    async def take_listing(self, listing: Listing) -> LedgerView:
        """:raises NotFound: it answers no request of this coordinator's."""
        ...

    async def ledger(self) -> LedgerView:
        """What is abandoned, stray or missing, what it costs, and what needs somebody."""
        ...

    async def inventory_now(self) -> LedgerView:
        """Every provisioner is asked for its instances at once; the answer is what is known before that."""
        ...

    async def reload_config(self) -> ReloadView:
        """Read the configuration again, all of it or none. :raises Invalid: every fault; nothing has changed."""
        ...

    async def approve_strays(self, *, by: str = "") -> EpochView: ...
    async def raise_epoch(self, *, by: str = "") -> EpochView: ...
    async def serve_agent(self, link: Link) -> None:
        """Own one agent's connection until it ends."""
        ...
