# SPDX-License-Identifier: Apache-2.0
"""Rows as frozen values: what repositories return and decisions read. Moments are microseconds (database time)."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from corral.model.events import EventKind, Target
from corral.model.ids import AgentId, JobId, RunId
from corral.model.labels import Labels
from corral.model.spec import JobSpec, NeedSpec, Scalar, WorkflowSpec
from corral.model.states import AgentState, AttemptState, DeliveryState, JobState, ProvisionState, RunState, StepState


class Run(Struct, frozen=True, kw_only=True):
    """``workflow_env``: what the author set; ``env``: what the run was started with, above everything.
    ``provisioning``: it works for a provisioner."""

    id: RunId
    project: str
    workflow: str
    title: str
    state: RunState
    reason: str
    detail: str
    lock_hash: str
    source_hash: str | None
    source_size: int | None
    workflow_env: dict[str, str]
    env: dict[str, str]
    event: dict[str, str]
    job_filter: tuple[str, ...]
    original: str
    provisioning: bool
    cancel_requested_at: int | None
    cancel_force: bool
    cancel_reason: str
    log_incomplete: bool
    created_at: int
    started_at: int | None
    finished_at: int | None
    deadline_at: int | None
    jobs_total: int
    jobs_finished: int
    version: int


class ListedJob(Struct, frozen=True, kw_only=True):
    """A job without its specification: what lists show.

    ``attempt``: number of the latest attempt, 0 before the first. ``tries``: attempts that were started. ``offers``:
    offers since it was last queued that nobody took."""

    id: JobId
    run_id: RunId
    ordinal: int
    name: str
    base: str
    state: JobState
    reason: str
    detail: str
    matrix: dict[str, Scalar]
    needs: tuple[NeedSpec, ...]
    labels: Labels
    excludes: Labels
    attempt: int
    tries: int
    offers: int
    creates: int
    agent_id: AgentId | None
    outputs: dict[str, str]
    created_at: int
    queued_at: int | None
    ready_at: int | None
    started_at: int | None
    finished_at: int | None
    deadline_at: int | None
    cancel_deadline_at: int | None
    cancel_sent_force: bool
    unroutable_since: int | None
    version: int


class Job(ListedJob, frozen=True, kw_only=True):
    spec: JobSpec


class Attempt(Struct, frozen=True, kw_only=True):
    job_id: JobId
    number: int
    agent_id: AgentId
    state: AttemptState
    reason: str
    detail: str
    sequence: int
    boot_id: str
    offered_at: int
    offer_deadline_at: int
    started_at: int | None
    began_at: int | None
    finished_at: int | None


class Step(Struct, frozen=True, kw_only=True):
    """``log_size``: bytes of its log, once known; ``log_missing``: printed bytes that are not among them."""

    job_id: JobId
    attempt: int
    number: int
    state: StepState
    reason: str
    detail: str
    exit_code: int | None
    signal: int | None
    tries: int
    outputs: dict[str, str]
    log_size: int | None
    log_digest: str
    log_missing: int
    started_at: int | None
    finished_at: int | None


class Hold(StrEnum):
    """What an operator asked of an agent."""

    CORDON = "cordon"
    """Nothing is offered to it any more."""
    DRAIN = "drain"
    """Nor that, and after the job in hand it ends."""


class Agent(Struct, frozen=True, kw_only=True):
    """``kind``: ``provisioned`` (a backend made its instance) or ``static`` (a token). ``cordon_reason``: Corral's own
    cordon; ``hold``: an operator's; None: there is none. ``hand_back_at``: when a draining agent gives up the job it
    has in hand. ``session`` rises at every registration; ``connection`` is the agent's own count in ``boot_id``."""

    id: AgentId
    project: str
    pool: str
    kind: str
    state: AgentState
    labels: Labels
    key_digest: str | None
    boot_id: str
    connection: int
    session: int
    coordinator_id: str | None
    assignment: JobId | None
    assigned_attempt: int | None
    ever_assigned: bool
    cordon_reason: str | None
    hold: Hold | None
    held_by: str | None
    held_at: int | None
    hand_back_at: int | None
    missed_acks: int
    created_at: int
    knocked_at: int | None
    connected_at: int | None
    disconnected_at: int | None
    idle_since: int | None
    ended_at: int | None
    version: int


class Provision(Struct, frozen=True, kw_only=True):
    """``failed_at``: the backend gave up creating it. ``ended_at``: the backend saw it end by itself.

    ``target`` and ``target_key``: its provisioner, frozen when it was asked for; None and empty for other backends.
    ``sequence``: of its latest event. ``cause``: ``job``, ``warm`` or ``manual``. ``provisioning``: made for a run that
    makes and ends instances itself."""

    agent_id: AgentId
    pool: str
    backend: str
    host_id: str | None
    state: ProvisionState
    labels: Labels
    mandatory: Labels
    target: Target | None
    target_key: str
    sequence: int
    cost_per_hour: float
    machine: str
    provisioning: bool
    cause: str
    job_id: JobId | None
    run_id: RunId | None
    cpu: float | None
    memory: int | None
    owner_id: str | None
    adopted_by: str | None
    adopted_at: int | None
    provider_id: str
    requested_at: int
    sent_at: int | None
    created_at: int | None
    deadline_at: int | None
    config_acked_at: int | None
    failed_at: int | None
    ended_at: int | None
    error: str
    release_reason: str
    released_at: int | None
    release_attempts: int
    release_next_at: int | None
    gone_at: int | None
    version: int


class Token(Struct, frozen=True, kw_only=True):
    """``created_by``: the token that made it. ``replaced_by``: the one that a rotation made in its place;
    ``expires_at``: until when this one still opens anything then."""

    id: str
    project: str
    name: str
    role: str
    prefix: str
    agent_id: AgentId | None
    created_at: int
    last_used_at: int | None
    revoked_at: int | None
    created_by: str | None
    replaced_by: str | None
    expires_at: int | None


class PoolHealth(Struct, frozen=True, kw_only=True):
    """``failures``: in a row since the last success."""

    pool: str
    failures: int
    backoff_began_at: int | None
    backoff_until: int | None
    last_error: str


class Delivery(Struct, frozen=True, kw_only=True):
    """One event in the outbox. ``sent_at`` and ``send_deadline``: of the latest send, recorded before it was made; it
    may still arrive until the deadline. ``last``: what the latest send came to (a ``Verdict``; empty: not known).
    ``refusals``: sends that were answered, and refused."""

    id: str
    position: int
    agent_id: AgentId | None
    pool: str
    target: Target
    target_key: str
    kind: EventKind
    sequence: int
    state: DeliveryState
    reason: str
    evidence: dict[str, str]
    attempts: int
    refusals: int
    created_at: int
    next_at: int
    deadline_at: int | None
    first_sent_at: int | None
    sent_at: int | None
    send_deadline: int | None
    answered_at: int | None
    ended_at: int | None
    last: str
    error: str
    version: int


class Provisioner(Struct, frozen=True, kw_only=True):
    """A user's provisioner as one installation knows it. ``told_epoch``: the latest term whose inventory request it
    received. ``listed_at``: its last complete listing. ``stale_since``: it refuses us for a higher epoch."""

    key: str
    target: Target
    told_epoch: str
    asked_at: int | None
    told_at: int | None
    listed_at: int | None
    listing_supported: bool | None
    stale_since: int | None
    error: str
    version: int


class Sighting(Struct, frozen=True, kw_only=True):
    """An instance that a provisioner listed and nobody here wants. ``listings``: complete ones in a row."""

    target_key: str
    agent_id: AgentId
    provider_id: str
    pool: str
    cost_per_hour: float
    first_listed_at: int
    last_listed_at: int
    listings: int


class RegisteredWorkflow(Struct, frozen=True, kw_only=True):
    """``version``: how often it was registered."""

    name: str
    project: str
    spec: WorkflowSpec
    lock_hash: str
    source_hash: str | None
    source_size: int | None
    registered_at: int
    registered_by: str
    version: int
