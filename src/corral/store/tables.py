# SPDX-License-Identifier: Apache-2.0
"""The schema: one set of tables for SQLite and PostgreSQL.

Moments (``*_at``) are microseconds since the Unix epoch by the *database's* clock (:func:`db_now`). Structured
columns hold JSON text whose shape is a type of ``corral.model``. CHECK constraints on states come from the state
machines. ``project`` is there from the first schema so that a later release can separate tenants.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    false,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from corral.model.events import EventKind, Target
from corral.model.records import Hold
from corral.model.spec import JobSpec, NeedSpec, Scalar, WorkflowSpec
from corral.model.states import AgentState, AttemptState, DeliveryState, JobState, ProvisionState, RunState, StepState
from corral.wire.messages import Facts

SCHEMA_VERSION = 2
"""Raised by each migration; a database with a higher one is refused."""

T = TypeVar("T")


class Packed(TypeDecorator[T], Generic[T]):
    """JSON text of one msgspec type."""

    impl = Text
    cache_ok = True

    def __init__(self, type_: Any) -> None:
        super().__init__()
        # Named like the parameter: SQLAlchemy tells two types apart by their parameters' attributes.
        self.type_ = type_
        self._decoder = msgspec.json.Decoder(type_)

    def process_bind_param(self, value: T | None, dialect: Any) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: Any, dialect: Any) -> T | None:
        return None if value is None else self._decoder.decode(value)


class LabelSet(TypeDecorator[frozenset[str]]):
    """Sorted labels, separated by blanks: readable in a database shell."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: frozenset[str] | None, dialect: Any) -> str | None:
        return None if value is None else " ".join(sorted(value))

    def process_result_value(self, value: Any, dialect: Any) -> frozenset[str] | None:
        return None if value is None else frozenset(value.split())


E = TypeVar("E", bound=StrEnum)


class State(TypeDecorator[E], Generic[E]):
    """A state by its value."""

    impl = Text
    cache_ok = True

    def __init__(self, enum: type[E]) -> None:
        super().__init__()
        self.enum = enum

    def process_bind_param(self, value: E | None, dialect: Any) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: Any, dialect: Any) -> E | None:
        return None if value is None else self.enum(value)


class db_now(FunctionElement[int]):
    """Microseconds since the Unix epoch by the database's own clock."""

    type = BigInteger()
    inherit_cache = True


@compiles(db_now)
def _now(element: Any, compiler: Any, **kw: Any) -> str:
    """A function of the connection on SQLite, of the schema on PostgreSQL: there the statement's own moment
    (``clock_timestamp()``), not the transaction's."""
    return "corral_now()"


def _state(name: str, enum: type[StrEnum]) -> tuple[Any, CheckConstraint]:
    values = ", ".join(f"'{member}'" for member in enum)
    return (
        Column("state", State(enum), nullable=False),
        CheckConstraint(f"state IN ({values})", name=f"{name}_state"),
    )


metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

lease = Table(
    "lease",
    metadata,
    Column("name", Text, primary_key=True),
    Column("generation", BigInteger, nullable=False),
    Column("counter", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("term_started_at", BigInteger, nullable=False),
    Column("renewed_at", BigInteger, nullable=False),
    # A change of holder touches a key and so waits for transactions fenced FOR KEY SHARE; a renewal passes them.
    Index("lease_term", "name", "generation", "counter", unique=True),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("digest", Text, nullable=False, unique=True),
    Column("prefix", Text, nullable=False),
    Column("agent_id", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("last_used_at", BigInteger),
    Column("revoked_at", BigInteger),
    Column("created_by", Text),
    Column("replaced_by", Text),
    Column("expires_at", BigInteger),
    Index("tokens_by_agent", "agent_id"),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("workflow", Text, nullable=False),
    Column("title", Text, nullable=False),
    *_state("runs", RunState),
    Column("reason", Text, nullable=False, default=""),
    Column("detail", Text, nullable=False, default=""),
    Column("spec", Packed[WorkflowSpec](WorkflowSpec), nullable=False),
    Column("lock_hash", Text, nullable=False),
    Column("source_hash", Text),
    Column("source_size", BigInteger),
    Column("workflow_env", Packed[dict[str, str]](dict[str, str]), nullable=False),
    Column("env", Packed[dict[str, str]](dict[str, str]), nullable=False),
    Column("event", Packed[dict[str, str]](dict[str, str]), nullable=False),
    Column("job_filter", Packed[tuple[str, ...]](tuple[str, ...]), nullable=False),
    Column("original", Text, nullable=False, default=""),
    Column("dedupe", Text),
    Column("provisioning", Boolean, nullable=False, default=False, server_default=false()),
    Column("cancel_requested_at", BigInteger),
    Column("cancel_force", Boolean, nullable=False, default=False),
    Column("cancel_reason", Text, nullable=False, default=""),
    Column("log_incomplete", Boolean, nullable=False, default=False),
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("deadline_at", BigInteger),
    Column("jobs_total", Integer, nullable=False),
    Column("jobs_finished", Integer, nullable=False, default=0),
    Column("version", Integer, nullable=False, default=1),
    Index("runs_by_creation", "project", "created_at", "id"),
    Index("runs_by_state", "state"),
    Index("runs_by_dedupe", "dedupe", unique=True),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("base", Text, nullable=False),
    *_state("jobs", JobState),
    Column("reason", Text, nullable=False, default=""),
    Column("detail", Text, nullable=False, default=""),
    Column("spec", Packed[JobSpec](JobSpec), nullable=False),
    Column("matrix", Packed[dict[str, Scalar]](dict[str, Scalar]), nullable=False),
    Column("needs", Packed[tuple[NeedSpec, ...]](tuple[NeedSpec, ...]), nullable=False),
    Column("labels", LabelSet, nullable=False),
    Column("excludes", LabelSet, nullable=False),
    Column("cpu", Float),
    Column("memory", BigInteger),
    Column("attempt", Integer, nullable=False, default=0),
    Column("tries", Integer, nullable=False, default=0),
    Column("offers", Integer, nullable=False, default=0),
    Column("creates", Integer, nullable=False, default=0),
    Column("provisioning", Boolean, nullable=False, default=False, server_default=false()),
    Column("agent_id", Text),
    Column("outputs", Packed[dict[str, str]](dict[str, str]), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("queued_at", BigInteger),
    Column("ready_at", BigInteger),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("deadline_at", BigInteger),
    Column("cancel_deadline_at", BigInteger),
    Column("cancel_sent_force", Boolean, nullable=False, default=False),
    Column("unroutable_since", BigInteger),
    Column("version", Integer, nullable=False, default=1),
    Index("jobs_by_run", "run_id", "ordinal", unique=True),
    Index("jobs_by_state", "state", "ready_at"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("agent_id", Text, nullable=False),
    *_state("attempts", AttemptState),
    Column("reason", Text, nullable=False, default=""),
    Column("detail", Text, nullable=False, default=""),
    Column("sequence", Integer, nullable=False, default=0),
    Column("boot_id", Text, nullable=False),
    Column("offered_at", BigInteger, nullable=False),
    Column("offer_deadline_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("began_at", BigInteger),
    Column("finished_at", BigInteger),
    Index("attempts_by_state", "state", "offer_deadline_at"),
)

steps = Table(
    "steps",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),
    *_state("steps", StepState),
    Column("reason", Text, nullable=False, default=""),
    Column("detail", Text, nullable=False, default=""),
    Column("exit_code", Integer),
    Column("signal", Integer),
    Column("tries", Integer, nullable=False, default=1),
    Column("outputs", Packed[dict[str, str]](dict[str, str]), nullable=False),
    Column("log_size", BigInteger),
    Column("log_digest", Text, nullable=False, default=""),
    Column("log_missing", BigInteger, nullable=False, default=0),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
)

agents = Table(
    "agents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("kind", Text, nullable=False),
    *_state("agents", AgentState),
    Column("labels", LabelSet, nullable=False),
    Column("key_digest", Text, unique=True),
    Column("boot_id", Text, nullable=False, default=""),
    Column("connection", Integer, nullable=False, default=0),
    Column("session", Integer, nullable=False, default=0),
    Column("coordinator_id", Text),
    Column("assignment", Text),
    Column("assigned_attempt", Integer),
    Column("ever_assigned", Boolean, nullable=False, default=False),
    Column("cordon_reason", Text),
    Column("hold", State(Hold)),
    Column("held_by", Text),
    Column("held_at", BigInteger),
    Column("hand_back_at", BigInteger),
    Column("missed_acks", Integer, nullable=False, default=0),
    Column("facts", Packed[Facts](Facts)),
    Column("created_at", BigInteger, nullable=False),
    Column("knocked_at", BigInteger),
    Column("connected_at", BigInteger),
    Column("disconnected_at", BigInteger),
    Column("idle_since", BigInteger),
    Column("ended_at", BigInteger),
    Column("version", Integer, nullable=False, default=1),
    Index("agents_by_state", "state"),
)

provisions = Table(
    "provisions",
    metadata,
    Column("agent_id", Text, ForeignKey("agents.id"), primary_key=True),
    Column("pool", Text, nullable=False),
    Column("backend", Text, nullable=False),
    Column("host_id", Text),
    *_state("provisions", ProvisionState),
    Column("labels", LabelSet, nullable=False),
    Column("mandatory", LabelSet, nullable=False, default=frozenset(), server_default=""),
    Column("target", Packed[Target](Target)),
    Column("target_key", Text, nullable=False, default="", server_default=""),
    Column("sequence", Integer, nullable=False, default=0, server_default="0"),
    Column("cost_per_hour", Float, nullable=False, default=0.0, server_default="0"),
    Column("machine", Text, nullable=False, default="", server_default=""),
    Column("provisioning", Boolean, nullable=False, default=False, server_default=false()),
    Column("cause", Text, nullable=False),
    Column("job_id", Text),
    Column("run_id", Text),
    Column("cpu", Float),
    Column("memory", BigInteger),
    Column("owner_id", Text),
    Column("adopted_by", Text),
    Column("adopted_at", BigInteger),
    Column("provider_id", Text, nullable=False, default=""),
    Column("claim_sealed", LargeBinary),
    Column("requested_at", BigInteger, nullable=False),
    Column("sent_at", BigInteger),
    Column("created_at", BigInteger),
    Column("deadline_at", BigInteger),
    Column("config_acked_at", BigInteger),
    Column("failed_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("error", Text, nullable=False, default=""),
    Column("release_reason", Text, nullable=False, default=""),
    Column("released_at", BigInteger),
    Column("release_attempts", Integer, nullable=False, default=0),
    Column("release_next_at", BigInteger),
    Column("gone_at", BigInteger),
    Column("version", Integer, nullable=False, default=1),
    Index("provisions_by_state", "state"),
    Index("provisions_by_job", "job_id"),
    Index("provisions_by_run", "run_id"),
)

claims = Table(
    "claims",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("agent_id", Text, ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
    Column("prefix", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("key_digest", Text),
    Column("redeemed_at", BigInteger),
    Index("claims_by_agent", "agent_id"),
)

pool_health = Table(
    "pool_health",
    metadata,
    Column("pool", Text, primary_key=True),
    Column("failures", Integer, nullable=False),
    Column("backoff_began_at", BigInteger),
    Column("backoff_until", BigInteger),
    Column("last_error", Text, nullable=False, default=""),
)

secrets = Table(
    "secrets",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", Text, primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("agent_id", Text),
    Column("pool", Text, nullable=False),
    Column("target", Packed[Target](Target), nullable=False),
    Column("target_key", Text, nullable=False),
    Column("kind", State(EventKind), nullable=False),
    Column("sequence", Integer, nullable=False),
    *_state("deliveries", DeliveryState),
    Column("reason", Text, nullable=False, default=""),
    Column("evidence", Packed[dict[str, str]](dict[str, str]), nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("refusals", Integer, nullable=False, default=0),
    Column("created_at", BigInteger, nullable=False),
    Column("next_at", BigInteger, nullable=False),
    Column("deadline_at", BigInteger),
    Column("first_sent_at", BigInteger),
    Column("sent_at", BigInteger),
    Column("send_deadline", BigInteger),
    Column("answered_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("last", Text, nullable=False, default=""),
    Column("error", Text, nullable=False, default=""),
    Column("version", Integer, nullable=False, default=1),
    Index("deliveries_by_state", "state", "next_at"),
    Index("deliveries_by_agent", "agent_id", "sequence"),
)

targets = Table(
    "targets",
    metadata,
    Column("key", Text, primary_key=True),
    Column("target", Packed[Target](Target), nullable=False),
    Column("told_epoch", Text, nullable=False, default=""),
    Column("asked_at", BigInteger),
    Column("told_at", BigInteger),
    Column("listed_at", BigInteger),
    Column("listing_supported", Boolean),
    Column("stale_since", BigInteger),
    Column("error", Text, nullable=False, default=""),
    Column("version", Integer, nullable=False, default=1),
)

sightings = Table(
    "sightings",
    metadata,
    Column("target_key", Text, primary_key=True),
    Column("agent_id", Text, primary_key=True),
    Column("provider_id", Text, primary_key=True),
    Column("pool", Text, nullable=False, default=""),
    Column("cost_per_hour", Float, nullable=False, default=0.0),
    Column("first_listed_at", BigInteger, nullable=False),
    Column("last_listed_at", BigInteger, nullable=False),
    Column("listings", Integer, nullable=False, default=1),
)

buckets = Table(
    "buckets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("tokens", Float, nullable=False),
    Column("filled_at", BigInteger, nullable=False),
)

failures = Table(
    "failures",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("pool", Text, nullable=False),
    Column("backend", Text, nullable=False),
    Column("bound", Boolean, nullable=False),
    Column("detail", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("failures_by_time", "at"),
)

workflows = Table(
    "workflows",
    metadata,
    Column("name", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("spec", Packed[WorkflowSpec](WorkflowSpec), nullable=False),
    Column("lock_hash", Text, nullable=False),
    Column("source_hash", Text),
    Column("source_size", BigInteger),
    Column("registered_at", BigInteger, nullable=False),
    Column("registered_by", Text, nullable=False, default=""),
    Column("version", Integer, nullable=False, default=1),
)
