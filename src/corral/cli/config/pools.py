# SPDX-License-Identifier: Apache-2.0
"""From what stands in the file to the values that the coordinator works with."""

from __future__ import annotations

import platform

from msgspec import UNSET, UnsetType

from corral.cli.config.shape import (
    ExecConfig,
    MachinePoolConfig,
    PoolConfig,
    ProvisionerConfig,
    ServerConfig,
    SideConfig,
    WebhookConfig,
    WindowConfig,
    WorkflowConfig,
)
from corral.cli.config.sizes import parse_size
from corral.cli.config.windows import parse_days, parse_time
from corral.model.events import Exec, Target, Webhook, WorkflowTarget
from corral.model.labels import RESERVED_PREFIX, labels
from corral.model.pools import Caps, Machine, Pool, Window


def host_labels() -> tuple[str, ...]:
    """What a pool of processes on this host offers by itself."""
    return (platform.system().lower(), platform.machine().lower())


def to_pool(config: PoolConfig) -> Pool:
    own = labels((*config.labels, *host_labels())) if config.backend == "process" else labels(config.labels)
    given = labels((f"{RESERVED_PREFIX}pool:{config.name}", f"{RESERVED_PREFIX}backend:{config.backend}"))
    requests, limits = config.resources.requests, config.resources.limits
    return Pool(
        name=config.name,
        backend=config.backend,
        labels=own | given,
        mandatory=labels(config.mandatory),
        max_agents=config.max_agents,
        max_running=config.max_running,
        max_cpu=config.max_cpu,
        max_memory=_bytes(config.max_memory),
        min_idle=config.min_idle,
        schedule=tuple(_window(window) for window in config.schedule),
        user=config.user,
        inherit_env=config.inherit_env,
        spawn_timeout=config.spawn_timeout,
        idle_timeout=config.idle_timeout,
        default=config.default,
        cpu=_cpu(requests, limits),
        memory=_memory(requests, limits),
        cpu_limit=_cpu(limits, requests),
        memory_limit=_memory(limits, requests),
        cost_per_hour=config.cost_per_hour,
        machine=config.machine_pool,
        target=None if config.provisioner is UNSET else _target(config.provisioner),
    )


def to_caps(config: ServerConfig) -> Caps:
    return Caps(
        max_agents=config.max_agents,
        max_cpu=config.max_cpu,
        max_memory=_bytes(config.max_memory),
        max_cost_per_hour=config.max_cost_per_hour,
        concurrent_creates=config.concurrent_creates,
        creates_per_job=config.creates_per_job,
        creates_per_second=config.creates_per_second,
        creates_burst=config.creates_burst,
        machines=tuple(_machine(machine) for machine in config.machine_pools),
        backoff_base=config.provision_backoff_base,
        backoff_max=config.provision_backoff_max,
        provisioner_slots=config.provisioner_slots,
    )


def _machine(config: MachinePoolConfig) -> Machine:
    return Machine(name=config.name, max_cpu=config.max_cpu, max_memory=_bytes(config.max_memory))


def _window(config: WindowConfig) -> Window:
    return Window(
        days=parse_days(config.days),
        start=parse_time(config.start),
        end=parse_time(config.end),
        timezone=config.timezone,
        min_idle=config.min_idle,
    )


def _target(config: ProvisionerConfig) -> Target | None:
    for given in (config.webhook, config.exec, config.workflow):
        match given:
            case WebhookConfig():
                return Webhook(url=given.url, secret=given.secret, timeout=given.timeout)
            case ExecConfig():
                return Exec(command=given.command, directory=given.directory, env=given.env, timeout=given.timeout)
            case WorkflowConfig():
                return WorkflowTarget(workflow=given.name, timeout=given.timeout)
    return None


def _cpu(side: SideConfig, other: SideConfig) -> float | None:
    """One side of the resources, mirrored from the other where it is left out."""
    cores = other.cpu if isinstance(side.cpu, UnsetType) else side.cpu
    return None if isinstance(cores, UnsetType) else cores


def _memory(side: SideConfig, other: SideConfig) -> int | None:
    size = other.memory if isinstance(side.memory, UnsetType) else side.memory
    return None if isinstance(size, UnsetType) else parse_size(size)


def _bytes(size: str | int | None) -> int | None:
    return None if size is None else parse_size(size)
