# SPDX-License-Identifier: Apache-2.0
"""Which keys the configuration has, with their types, bounds and defaults: also the JSON Schema for editors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from corral.cli.config.sizes import parse_size
from corral.model.views import Clean

CONFIG_VERSION = 1
NAME = r"^[a-z0-9][a-z0-9-]{0,62}$(?!\n)"
"""``$`` alone also matches before a newline at the end."""

Name = Annotated[str, Meta(pattern=NAME)]
Seconds = Annotated[float, Meta(ge=0, le=30 * 86400)]
Agents = Annotated[int, Meta(ge=0, le=100_000)]
Cores = Annotated[float, Meta(gt=0, le=1_000_000)]
Money = Annotated[float, Meta(ge=0, le=1e9)]
Size = str | int
"""A number of bytes, with k, m, g or t (binary)."""


class SideConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cores and bytes of one instance."""

    cpu: Annotated[float, Meta(gt=0, le=4096)] | UnsetType = UNSET
    memory: Size | UnsetType = UNSET


class ResourcesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``requests`` are what caps count, ``limits`` what is enforced; what one side leaves out is as on the other."""

    requests: SideConfig = SideConfig()
    limits: SideConfig = SideConfig()


class WindowConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``days``: names (``mon``) or ranges (``mon-fri``). ``from`` and ``to``: ``HH:MM`` in the time zone; a ``to`` at
    or before ``from`` is on the next day."""

    days: str | tuple[str, ...] = "mon-sun"
    start: str = field(name="from")
    end: str = field(name="to")
    timezone: str = "UTC"
    min_idle: Agents


class WebhookConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``secret``: a file below ``secrets/`` in the state directory, or ``$VARIABLE`` of the server."""

    url: str
    secret: str
    timeout: Annotated[float, Meta(ge=1, le=600)] = 30.0
    allow_plain_http: bool = False


class ExecConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``command``: program and arguments, no shell. ``env``: names of the server's variables that it sees."""

    command: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1, max_length=256)]
    directory: str = ""
    env: tuple[str, ...] = ()
    timeout: Annotated[float, Meta(ge=1, le=86400)] = 600.0


class WorkflowConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``name``: of a workflow that was registered with the server."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    timeout: Annotated[float, Meta(ge=1, le=86400)] = 1800.0


class ProvisionerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who makes and destroys the instances of an event pool: exactly one."""

    webhook: WebhookConfig | UnsetType = UNSET
    exec: ExecConfig | UnsetType = UNSET
    workflow: WorkflowConfig | UnsetType = UNSET


class PoolConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source of agents. ``user``: whom its jobs run as; empty: the server's choice (a uid of its own for each
    agent where the server is root). ``inherit_env``: names, or prefixes ending in ``*``, of the server's variables
    that jobs see. Timeouts are seconds."""

    name: Name
    backend: str
    labels: tuple[str, ...] = ()
    mandatory: tuple[str, ...] = ()
    max_agents: Agents
    max_running: Agents | None = None
    max_cpu: Cores | None = None
    max_memory: Size | None = None
    resources: ResourcesConfig = ResourcesConfig()
    min_idle: Agents = 0
    schedule: tuple[WindowConfig, ...] = ()
    machine_pool: str = ""
    cost_per_hour: Money = 0.0
    provisioner: ProvisionerConfig | UnsetType = UNSET
    user: str = ""
    inherit_env: tuple[str, ...] | None = None
    default: bool = False
    spawn_timeout: Annotated[float, Meta(ge=1, le=86400)] = 300.0
    idle_timeout: Seconds = 300.0


class MachinePoolConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cores and bytes of one machine that the pools naming it share."""

    name: Name
    max_cpu: Cores | None = None
    max_memory: Size | None = None


class RetentionConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of ended runs."""

    runs: Annotated[int, Meta(ge=0)] = 1000
    size: Size = "20g"


class LimitsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Beyond them a step goes on; its log says what is missing."""

    step_log: Size = "2g"
    run_log: Size = "10g"


class TimingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds. Their meanings are in docs/configuration.md."""

    heartbeat_interval: Annotated[float, Meta(ge=0.1, le=600)] = 20.0
    agent_dead_after: Annotated[float, Meta(ge=0.3, le=3600)] = 60.0
    lost_after: Annotated[float, Meta(ge=1, le=86400)] = 120.0
    stranded_after: Annotated[float, Meta(ge=1, le=30 * 86400)] = 1800.0
    dispatch_ack_timeout: Annotated[float, Meta(ge=1, le=600)] = 10.0
    queue_timeout: Annotated[float, Meta(ge=1, le=30 * 86400)] = 86400.0
    unroutable_after: Seconds = 120.0
    inventory_every: Annotated[float, Meta(ge=10, le=86400)] = 600.0
    flap_grace: Annotated[float, Meta(ge=1, le=86400)] = 120.0


class PoolsFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of ``pools.d``: pools and nothing else."""

    version: int
    pools: tuple[PoolConfig, ...] = ()


class ServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. ``urls``: where agents find this coordinator, default: where it listens. ``uids``: as root, the
    range from which each agent gets a uid of its own. ``allow_root``: jobs may run as root.
    ``metrics_public``: ``/metrics`` asks nobody for a token, not even callers from elsewhere."""

    version: int
    listen: str = ""
    urls: tuple[str, ...] = ()
    work_dir: str = ""
    allow_root: bool = False
    metrics_public: bool = False
    log_format: Literal["console", "json"] = "console"
    uids: Annotated[str, Meta(pattern=r"^[0-9]{1,10}-[0-9]{1,10}$")] = "64000-64999"
    max_agents: Annotated[int, Meta(ge=0, le=1_000_000)] = 1000
    max_cpu: Cores | None = None
    max_memory: Size | None = None
    max_cost_per_hour: Money | None = None
    concurrent_creates: Annotated[int, Meta(ge=1, le=1000)] = 8
    creates_per_job: Annotated[int, Meta(ge=1, le=1000)] = 5
    creates_per_second: Annotated[float, Meta(gt=0, le=10_000)] | None = None
    creates_burst: Annotated[int, Meta(ge=1, le=100_000)] = 10
    provision_backoff_base: Annotated[float, Meta(ge=1, le=86400)] = 30.0
    provision_backoff_max: Annotated[float, Meta(ge=1, le=86400)] = 900.0
    provisioner_slots: Annotated[int, Meta(ge=1, le=100)] = 2
    machine_pools: tuple[MachinePoolConfig, ...] = ()
    retention: RetentionConfig = RetentionConfig()
    limits: LimitsConfig = LimitsConfig()
    timing: TimingConfig = TimingConfig()
    pools: tuple[PoolConfig, ...] = ()

    def changed(self) -> tuple[tuple[str, str, str], ...]:
        """Settings that differ from their defaults: name, value, default. Pools are no settings."""
        return tuple(_changed(self, ServerConfig(version=CONFIG_VERSION), ""))

    def keep(self) -> Clean:
        return Clean(keep_runs=self.retention.runs, keep_bytes=parse_size(self.retention.size))

    def uid_range(self) -> range:
        first, _, last = self.uids.partition("-")
        return range(int(first), int(last) + 1)


def _changed(given: Struct, usual: Struct, prefix: str) -> Iterator[tuple[str, str, str]]:
    for name in given.__struct_fields__:
        value, default = getattr(given, name), getattr(usual, name)
        if isinstance(value, Struct):
            yield from _changed(value, default, f"{prefix}{name}.")
        elif value != default and name not in ("version", "pools", "machine_pools"):
            yield prefix + name, _shown(value), _shown(default)


def _shown(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value) or "none"
