# SPDX-License-Identifier: Apache-2.0
"""What the API shows: the bodies of ``/api/v1``, shared by server and client.

Times are RFC 3339 UTC strings with microseconds (``2025-01-31T10:00:00.000000Z``); durations are seconds.
"""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct

from corral.model.spec import GitSource, Lock, Scalar, SourceRef

T = TypeVar("T")


class Page(Struct, Generic[T], frozen=True, kw_only=True):
    """``next``: cursor of the next page, empty at the end."""

    items: tuple[T, ...]
    next: str = ""


class StepView(Struct, frozen=True, kw_only=True):
    index: int
    name: str
    state: str
    reason: str = ""
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    started_at: str | None = None
    finished_at: str | None = None
    log_size: int | None = None
    """Bytes of the whole log; None while it is not final."""
    log_stored: int = 0
    log_digest: str = ""
    log_missing: int = 0
    """Bytes known to be lost or dropped."""


class AttemptView(Struct, frozen=True, kw_only=True):
    number: int
    state: str
    agent_id: str
    reason: str = ""
    detail: str = ""
    offered_at: str = ""
    started_at: str | None = None
    began_at: str | None = None
    finished_at: str | None = None


class JobView(Struct, frozen=True, kw_only=True):
    """``queued``, ``provisioned``, ``running``, ``total``: seconds waiting for an agent to be asked for, for it to
    come up, executing, and altogether; None where it did not get that far."""

    id: str
    run_id: str
    name: str
    state: str
    reason: str = ""
    detail: str = ""
    labels: tuple[str, ...] = ()
    matrix: dict[str, Scalar] = {}
    needs: tuple[str, ...] = ()
    attempt: int = 0
    agent_id: str = ""
    outputs: dict[str, str] = {}
    created_at: str = ""
    queued_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    queued: float | None = None
    provisioned: float | None = None
    running: float | None = None
    total: float | None = None
    waiting_for: str = ""
    """One sentence while it waits: why it does not run yet."""
    last_line: str = ""
    steps: tuple[StepView, ...] = ()
    attempts: tuple[AttemptView, ...] = ()


class RunView(Struct, frozen=True, kw_only=True):
    id: str
    project: str
    workflow: str
    title: str
    state: str
    reason: str = ""
    detail: str = ""
    original: str = ""
    """The run that this one re-runs."""
    provisioning: bool = False
    """It works for a provisioner."""
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    jobs_total: int = 0
    jobs_finished: int = 0
    log_incomplete: bool = False
    jobs: tuple[JobView, ...] = ()


class NewRun(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``jobs``: names to run (with all they need), empty: all. ``secrets`` are kept only while jobs are unfinished.
    The source is an archive that was uploaded (``source``), a commit that agents fetch (``git``), or nothing."""

    lock: Lock
    workflow: str
    source: SourceRef | None = None
    git: GitSource | None = None
    title: str = ""
    jobs: tuple[str, ...] = ()
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    event: dict[str, str] = {}
    project: str = "local"


class Rerun(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    failed_only: bool = False
    secrets: dict[str, str] = {}


class CancelRun(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    force: bool = False


class Clean(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may stay: at most ``keep_runs`` ended runs with at most ``keep_bytes`` of logs and sources altogether."""

    keep_runs: Annotated[int, Meta(ge=0, le=2**31)] = 50
    keep_bytes: Annotated[int, Meta(ge=0, le=2**53)] = 2 * 1024**3


class Cleaned(Struct, frozen=True, kw_only=True):
    """What was removed."""

    runs: int
    bytes: int


class LogEvent(Struct, frozen=True, kw_only=True):
    """Data of one ``log`` event. ``data``: base64 of the bytes from ``offset`` on; ``final``: the step's last."""

    step: int
    offset: int
    data: str
    final: bool


class AgentView(Struct, frozen=True, kw_only=True):
    """``cordon_reason``: Corral's own cordon. ``hold``: an operator's (``cordon`` or ``drain``), by whom (a token's
    id) and since when. ``name``: of a static agent's token."""

    id: str
    name: str = ""
    pool: str
    kind: str
    state: str
    labels: tuple[str, ...]
    job_id: str = ""
    cordon_reason: str = ""
    hold: str = ""
    held_by: str = ""
    held_at: str | None = None
    provision_state: str = ""
    host: str = ""
    version: str = ""
    created_at: str = ""
    last_seen_at: str | None = None
    cause: str = ""


class DrainAgent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hand_back_after``: seconds after which a job in hand is given up and settled by its policy for loss; None: it
    ends by itself, at the latest by its own timeout."""

    hand_back_after: Annotated[float, Meta(ge=0, le=30 * 86400)] | None = None


class DeliveryView(Struct, frozen=True, kw_only=True):
    """One event to a user's own provisioner. ``last``: what its latest sending came to."""

    id: str
    kind: str
    sequence: int
    state: str
    reason: str = ""
    evidence: dict[str, str] = {}
    attempts: int = 0
    last: str = ""
    error: str = ""
    created_at: str
    sent_at: str | None = None
    ended_at: str | None = None


class ProvisionView(Struct, frozen=True, kw_only=True):
    """The record of one instance that was asked for. ``cost``: what it has cost so far, from when it was asked for
    until it was gone, at ``cost_per_hour``. ``story`` and ``deliveries``: only where one is shown."""

    id: str
    pool: str
    backend: str
    state: str
    cause: str
    job_id: str = ""
    run_id: str = ""
    labels: tuple[str, ...] = ()
    cpu: float | None = None
    memory: int | None = None
    cost_per_hour: float = 0.0
    cost: float = 0.0
    provider_id: str = ""
    requested_at: str
    sent_at: str | None = None
    registered_at: str | None = None
    released_at: str | None = None
    gone_at: str | None = None
    release_reason: str = ""
    release_attempts: int = 0
    error: str = ""
    age: float = 0.0
    """Seconds since it was asked for, until it was gone."""
    story: tuple[str, ...] = ()
    deliveries: tuple[DeliveryView, ...] = ()


class PoolView(Struct, frozen=True, kw_only=True):
    name: str
    backend: str
    labels: tuple[str, ...]
    max_agents: int
    max_running: int | None = None
    user: str = ""
    isolation: str = ""
    agents: int = 0
    """What ``max_agents`` counts: every provision that is not gone, but those that were given up on."""
    idle: int = 0
    busy: int = 0
    queued: int = 0
    waiting_reason: str = ""
    last_error: str = ""
    draining: bool = False
    """Removed from the configuration: nothing new is made in it, and it is forgotten with its last agent."""


class ReloadView(Struct, frozen=True, kw_only=True):
    """What a reload changed, by the names of pools. ``at_next_start``: settings that were changed in the file and are
    read only when the server starts."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    """They drain."""
    caps_changed: bool = False
    at_next_start: tuple[str, ...] = ()


class WhyView(Struct, frozen=True, kw_only=True):
    """``sentences``: the story, oldest first. ``fix``: the smallest change that would let the job run."""

    job_id: str
    name: str
    state: str
    code: str = ""
    sentences: tuple[str, ...] = ()
    fix: str = ""


class TokenView(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    role: str
    prefix: str
    created_at: str
    last_used_at: str | None = None
    revoked_at: str | None = None
    agent_id: str = ""
    """Of a static agent's token."""
    created_by: str = ""
    """Id of the token with which it was made."""
    replaced_by: str = ""
    """Id of the token that a rotation made in its place."""
    expires_at: str | None = None
    """When a replaced token stops working."""


class NewToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``role``: viewer, operator, admin, or agent. ``labels`` go with agent only: the token is a static agent."""

    name: Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$")]
    role: str
    labels: tuple[str, ...] = ()


class RotateToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``grace``: seconds for which the old token works beside the new one."""

    grace: Annotated[float, Meta(ge=0, le=30 * 86400)] = 3600.0


class CreatedToken(Struct, frozen=True, kw_only=True):
    """The only time that ``token`` is shown."""

    token: str
    view: TokenView


class ServerView(Struct, frozen=True, kw_only=True):
    version: str
    cluster_id: str
    coordinator_id: str
    epoch: str
    started_at: str


class Problem(Struct, frozen=True, kw_only=True):
    """``application/problem+json``; ``faults`` lists every fault of an invalid body."""

    type: str
    title: str
    status: int
    code: str
    detail: str = ""
    retry_after: float | None = None
    faults: tuple[str, ...] = ()


class DiagnoseRow(Struct, frozen=True, kw_only=True):
    """What one check found. ``status``: ok, warning, failed or skipped. ``seconds``: what it took."""

    group: str
    name: str
    status: str
    message: str
    remedy: str = ""
    seconds: float = 0.0


class DiagnoseView(Struct, frozen=True, kw_only=True):
    """``status``: the worst of the rows, ``skipped`` counting as ok."""

    status: str
    at: str
    rows: tuple[DiagnoseRow, ...]


class RegisterWorkflows(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``workflows``: names of those to register, empty: every one that declares an event. The source is an archive that
    was uploaded; it is kept as long as one of them is registered."""

    lock: Lock
    workflows: tuple[str, ...] = ()
    source: SourceRef | None = None
    project: str = "local"


class WorkflowView(Struct, frozen=True, kw_only=True):
    """A registered workflow. ``pools``: whose provisioner it is. ``version``: how often it was registered.
    ``registered_by``: id of the token."""

    name: str
    project: str
    description: str = ""
    events: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    lock_hash: str
    source_hash: str = ""
    source_size: int | None = None
    registered_at: str
    registered_by: str = ""
    version: int = 1
