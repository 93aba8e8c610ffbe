# SPDX-License-Identifier: Apache-2.0
"""Every metric of a coordinator, declared once: the loops count them, ``levels`` computes the gauges, the reference
page, the alert rules and the dashboard are checked against them."""

from __future__ import annotations

from corral.decide.scaling import NotDone
from corral.model.events import Verdict
from corral.model.failures import BackendKind
from corral.model.states import AgentState, DeliveryState, JobState, ProvisionState, RunState
from corral.runtime.metrics import Kind, Label, Metric
from corral.wire.messages import RefusedCode

METRICS: list[Metric] = []
SERVICES = ("dispatcher", "scaler", "host", "sweeper", "outbox")
PLACES = ("state", "logs", "work")

_POOL = Label(name="pool")
_OUTCOME = Label(name="outcome", values=("succeeded", "failed"))
_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_WAITS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


def _metric(kind: Kind, name: str, help: str, *labels: Label, buckets: tuple[float, ...] = ()) -> Metric:
    metric = Metric(name=f"corral_{name}", kind=kind, help=help, labels=labels, buckets=buckets)
    METRICS.append(metric)
    return metric


def _gauge(name: str, help: str, *labels: Label) -> Metric:
    return _metric(Kind.GAUGE, name, help, *labels)


def _counter(name: str, help: str, *labels: Label) -> Metric:
    return _metric(Kind.COUNTER, name, help, *labels)


def _label(name: str, values: object) -> Label:
    return Label(name=name, values=tuple(str(value) for value in values))  # type: ignore[attr-defined]


# --- the process -------------------------------------------------------------------------------------------

BUILD_INFO = _gauge("build_info", "1, with the release as label.", Label(name="version"))
START_TIME = _gauge("start_time_seconds", "When this coordinator started, Unix time.")
EPOCH_COUNTER = _gauge("lease_epoch", "Counter of this coordinator's term; it rises with every change of holder.")
EPOCH_GENERATION = _gauge("lease_generation", "Generation of the database's timeline, the first part of an epoch.")
EPOCH_BEHIND = _gauge("targets_epoch_behind", "Provisioners that have seen a higher epoch than ours: they refuse us.")
SERVICE_AGE = _gauge(
    "service_last_pass_age_seconds",
    "Seconds since a service completed a pass; before the first one, since the coordinator started.",
    _label("service", SERVICES),
)
SERVICE_PASSES = _counter("service_passes_total", "Passes of a service.", _label("service", SERVICES), _OUTCOME)
SERVICE_SECONDS = _metric(
    Kind.HISTOGRAM, "service_pass_seconds", "What a pass took.", _label("service", SERVICES), buckets=_FAST
)
DATABASE_WRITE = _metric(
    Kind.HISTOGRAM,
    "database_write_seconds",
    "From asking for a write to its durable commit, waiting in line included.",
    buckets=_FAST,
)
DATABASE_ERRORS = _counter("database_write_errors_total", "Writes that the database did not take.")
DISK_FREE = _gauge("disk_free_bytes", "Bytes free where the server keeps things.", _label("place", PLACES))

# --- runs and jobs -----------------------------------------------------------------------------------------

RUNS = _gauge("runs", "Runs that are kept, by state.", _label("state", RunState))
JOBS = _gauge("jobs", "Jobs of runs that are kept, by state.", _label("state", JobState))
JOBS_OLDEST = _gauge("jobs_queued_oldest_seconds", "How long the job queued first has waited; 0 with no queue.")
JOBS_UNROUTABLE = _gauge("jobs_unroutable", "Queued jobs that no pool and no known agent could ever run.")
JOBS_WAITING = _gauge(
    "jobs_waiting", "Queued jobs for which no instance is made now, by reason.", _label("reason", NotDone)
)
JOBS_ENDED = _counter(
    "jobs_ended_total", "Jobs that ended.", Label(name="result", values=("succeeded", "failed", "cancelled", "skipped"))
)
JOB_WAIT = _metric(Kind.HISTOGRAM, "job_wait_seconds", "From queued to offered to an agent.", buckets=_WAITS)
DISPATCH = _metric(Kind.HISTOGRAM, "dispatch_seconds", "From an offer to its acceptance by the agent.", buckets=_FAST)
OFFERS = _counter(
    "offers_total",
    "Offers to agents, by answer.",
    Label(name="answer", values=("accepted", "late", "declined")),
)

# --- agents and logs ---------------------------------------------------------------------------------------

AGENTS = _gauge("agents", "Agents that have not ended, by state.", _POOL, _label("state", [*AgentState][:3]))
AGENTS_IDLE = _gauge("agents_idle", "Agents that could take a job now.", _POOL)
AGENTS_BUSY = _gauge("agents_busy", "Agents with a job.", _POOL)
SESSIONS = _gauge("sessions", "Agents connected to this coordinator.")
REGISTRATIONS = _counter(
    "registrations_total",
    "Agents that said hello, by what they were told.",
    _label("outcome", ["welcome", *RefusedCode]),
)
CLAIMS = _counter(
    "claim_redemptions_total",
    "Hellos with a claim code, by what they were told.",
    _label("outcome", ["welcome", *RefusedCode]),
)
LOG_BYTES = _counter("log_bytes_total", "Bytes of logs stored.")
LOGS_STALLED = _gauge("logs_stalled", "Agents whose log the store does not take now; their jobs are slowed.")

# --- pools and provisions ----------------------------------------------------------------------------------

PROVISIONS = _gauge("provisions", "Provisions that are not gone, by state.", _POOL, _label("state", [*ProvisionState]))
POOL_MAX = _gauge("pool_max_agents", "The pool's max_agents.", _POOL)
POOL_ROOM = _gauge("pool_headroom_agents", "Agents that the pool may still get under its own max_agents.", _POOL)
POOL_CPU = _gauge("pool_requested_cpu_cores", "Cores that the pool's provisions request.", _POOL)
POOL_MEMORY = _gauge("pool_requested_memory_bytes", "Bytes that the pool's provisions request.", _POOL)
POOL_COST = _gauge("pool_cost_per_hour", "What the pool's provisions cost, in the configuration's currency.", _POOL)
POOL_QUEUED = _gauge("pool_queued_jobs", "Queued jobs whose first choice is this pool.", _POOL)
WARM_TARGET = _gauge("pool_warm_target_agents", "The pool's min_idle outside of its schedule.", _POOL)
BACKOFF = _gauge("pool_backoff_seconds", "Seconds until the pool creates again after failures; 0: now.", _POOL)
FAILURES_IN_ROW = _gauge("pool_failures_in_a_row", "Failed creations since the last success.", _POOL)
CLUSTER_MAX = _gauge("cluster_max_agents", "The cluster's max_agents.")
CLUSTER_ROOM = _gauge("cluster_headroom_agents", "Agents that the cluster may still get.")
CLUSTER_COST = _gauge("cluster_cost_per_hour", "What all provisions that are not gone cost.")
FAILURES = _counter(
    "provision_failures_total",
    "Provisions that failed, as the failure tracker records them.",
    _POOL,
    _label("backend", BackendKind),
    Label(name="bound", values=("true", "false")),
)
FAILURES_DROPPED = _gauge("failures_dropped", "Records of failures that had to go for newer ones.")
CREATES = _counter("instance_creates_total", "Calls that create an instance on this host.", _POOL, _OUTCOME)
CREATE_SECONDS = _metric(
    Kind.HISTOGRAM,
    "instance_create_seconds",
    "What creating an instance on this host took.",
    _label("backend", BackendKind),
    buckets=_WAITS,
)
DESTROYS = _counter("instance_destroys_total", "Calls that destroy an instance on this host.", _POOL, _OUTCOME)
ABANDONED = _gauge("provisions_abandoned", "Instances that could not be confirmed gone: they may still cost money.")
LEAKED_COST = _gauge("leaked_cost_per_hour", "What abandoned instances and strays may cost.")
STRAYS = _gauge("strays", "Instances that a provisioner listed and no provision wants.")
GHOSTS = _gauge("ghosts", "Active provisions of event pools that their provisioner's last listing lacked.")

# --- outbox ------------------------------------------------------------------------------------------------

DELIVERIES = _gauge("deliveries", "Events to provisioners that are kept, by state.", _label("state", DeliveryState))
DELIVERY_LAG = _gauge("deliveries_lag_seconds", "Age of the oldest event that is due and not answered; 0: none.")
DELIVERY_TRIES = _gauge("deliveries_attempts_max", "Most attempts that an event which is still pending has had.")
DELIVERY_ANSWERS = _gauge("deliveries_answered", "Kept events by their last answer.", _label("verdict", Verdict))
