# SPDX-License-Identifier: Apache-2.0
"""``corral.yaml``: read once, strictly, every fault at once with file, line, column and the nearest known key."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from corral.model.errors import Fault, Invalid
from corral.model.labels import MAX_LABELS, RESERVED_PREFIX, Labels, label_fault, labels, reserved
from corral.model.pools import Caps, Pool
from corral.model.views import Clean
from corral.runtime.schema import misfits
from corral.runtime.yamlfile import Document, parse_yaml

CONFIG_VERSION = 1
BACKENDS = ("process",)
_NAME = r"^[a-z0-9][a-z0-9-]{0,62}$(?!\n)"
"""``$`` alone also matches before a newline at the end."""
_SIZE = re.compile(r"(\d+)([kmgt]?)\Z", re.IGNORECASE)
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?\Z")

Seconds = Annotated[float, Meta(ge=0, le=30 * 86400)]


class PoolConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source of agents. ``user``: whom its jobs run as; empty: the server's choice (a uid of its own for each
    agent where the server is root). ``inherit_env``: names, or prefixes ending in ``*``, of the server's variables
    that jobs see. Timeouts are seconds."""

    name: Annotated[str, Meta(pattern=_NAME)]
    backend: str
    labels: tuple[str, ...] = ()
    mandatory: tuple[str, ...] = ()
    max_agents: Annotated[int, Meta(ge=0, le=100_000)]
    max_running: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    user: str = ""
    inherit_env: tuple[str, ...] | None = None
    default: bool = False
    spawn_timeout: Annotated[float, Meta(ge=1, le=86400)] = 300.0
    idle_timeout: Seconds = 300.0


class RetentionConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of ended runs. ``size``: a number of bytes with k, m, g or t (binary)."""

    runs: Annotated[int, Meta(ge=0)] = 1000
    size: str | int = "20g"


class LimitsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes: numbers of bytes with k, m, g or t (binary). Beyond them a step goes on;
    its log says what is missing."""

    step_log: str | int = "2g"
    run_log: str | int = "10g"


class TimingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds. Their meanings are in docs/configuration.md."""

    heartbeat_interval: Annotated[float, Meta(ge=0.1, le=600)] = 20.0
    agent_dead_after: Annotated[float, Meta(ge=0.3, le=3600)] = 60.0
    lost_after: Annotated[float, Meta(ge=1, le=86400)] = 120.0
    stranded_after: Annotated[float, Meta(ge=1, le=30 * 86400)] = 1800.0
    dispatch_ack_timeout: Annotated[float, Meta(ge=1, le=600)] = 10.0
    queue_timeout: Annotated[float, Meta(ge=1, le=30 * 86400)] = 86400.0
    unroutable_after: Seconds = 120.0


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
    uids: Annotated[str, Meta(pattern=r"^\d+-\d+$")] = "64000-64999"
    max_agents: Annotated[int, Meta(ge=0, le=1_000_000)] = 1000
    concurrent_creates: Annotated[int, Meta(ge=1, le=1000)] = 8
    creates_per_job: Annotated[int, Meta(ge=1, le=1000)] = 5
    retention: RetentionConfig = RetentionConfig()
    limits: LimitsConfig = LimitsConfig()
    timing: TimingConfig = TimingConfig()
    pools: tuple[PoolConfig, ...] = ()

    def caps(self) -> Caps:
        return Caps(
            max_agents=self.max_agents,
            concurrent_creates=self.concurrent_creates,
            creates_per_job=self.creates_per_job,
        )

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
        elif value != default and name not in ("version", "pools"):
            yield prefix + name, _shown(value), _shown(default)


def _shown(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value) or "none"


def parse_size(text: str | int) -> int:
    """Bytes. :raises ValueError: a unit that is not k, m, g or t, or no number."""
    found = _SIZE.match(str(text).strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size: digits, then k, m, g or t (binary)")
    return int(found[1]) * _UNITS[found[2].lower()]


def host_labels() -> tuple[str, ...]:
    """What a pool of processes on this host offers by itself."""
    return (platform.system().lower(), platform.machine().lower())


def to_pool(config: PoolConfig) -> Pool:
    own = labels((*config.labels, *host_labels())) if config.backend == "process" else labels(config.labels)
    given = labels(
        (
            f"{RESERVED_PREFIX}pool:{config.name}",
            f"{RESERVED_PREFIX}backend:{config.backend}",
        )
    )
    return Pool(
        name=config.name,
        backend=config.backend,
        labels=own | given,
        mandatory=labels(config.mandatory),
        max_agents=config.max_agents,
        max_running=config.max_running,
        user=config.user,
        inherit_env=config.inherit_env,
        spawn_timeout=config.spawn_timeout,
        idle_timeout=config.idle_timeout,
        default=config.default,
    )


def default_config(max_agents: int | None = None) -> ServerConfig:
    """Without a file: one pool of processes, as many agents as cores, for every job."""
    count = max_agents if max_agents is not None else os.cpu_count() or 1
    pool = PoolConfig(name="local", backend="process", labels=("local",), max_agents=count, default=True)
    return ServerConfig(version=CONFIG_VERSION, pools=(pool,))


def load_config(path: Path) -> ServerConfig:
    """:raises Invalid: every fault of the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Invalid(str(path), [Fault(file=str(path), message="no such file")]) from None
    except UnicodeDecodeError as error:
        raise Invalid(str(path), [Fault(file=str(path), message=f"is not UTF-8 text: {error.reason}")]) from None
    except OSError as error:
        raise Invalid(str(path), [Fault(file=str(path), message=f"cannot be read: {error.strerror}")]) from None
    return parse_config(text, str(path))


def parse_config(text: str, name: str) -> ServerConfig:
    """:raises Invalid: every fault, of form and of meaning."""
    document = parse_yaml(text, name)
    faults = [
        document.fault(misfit.path, misfit.message, misfit.remedy) for misfit in misfits(document.data, ServerConfig)
    ]
    faults += list(_meaning(document))
    if faults:
        raise Invalid(name, sorted(set(faults)))
    return msgspec.convert(document.data, ServerConfig)


# --- meaning: also of a file whose form is wrong elsewhere ------------------------------------------------------


def _meaning(document: Document) -> list[Fault]:
    data = document.data
    if not isinstance(data, dict):
        return []
    faults: list[Fault] = []
    version = data.get("version")
    if isinstance(version, int) and version != CONFIG_VERSION:
        remedy = f"this release reads version {CONFIG_VERSION}"
        faults.append(document.fault(("version",), f"version {version} is not known", remedy))
    faults += _sizes(document, data)
    faults += _heartbeats(document, data)
    pools = data.get("pools")
    if isinstance(pools, list):
        entries = [(index, pool) for index, pool in enumerate(pools) if isinstance(pool, dict)]
        for index, pool in entries:
            faults += _pool(document, index, pool)
        faults += _twins(document, entries)
    return faults


def _sizes(document: Document, data: dict[str, Any]) -> list[Fault]:
    places = (("retention", "size"), ("limits", "step_log"), ("limits", "run_log"))
    faults = [fault for place in places if (fault := _size(document, data, *place)) is not None]
    uids = data.get("uids")
    found = re.match(r"(\d+)-(\d+)\Z", uids) if isinstance(uids, str) else None
    if found is not None and (int(found[1]) < 1000 or int(found[2]) < int(found[1])):
        message = f"{uids} is no range of ordinary users"
        faults.append(document.fault(("uids",), message, "FIRST-LAST, from 1000 on"))
    return faults


def _size(document: Document, data: dict[str, Any], section: str, key: str) -> Fault | None:
    within = data.get(section)
    value = within.get(key) if isinstance(within, dict) else None
    if not isinstance(value, str) and type(value) is not int:
        return None
    try:
        parse_size(value)
    except ValueError as error:
        return document.fault((section, key), str(error))
    return None


def _heartbeats(document: Document, data: dict[str, Any]) -> list[Fault]:
    """One lost heartbeat must not be the end of a healthy agent."""
    timing = data.get("timing")
    given = timing if isinstance(timing, dict) else {}
    usual = TimingConfig()
    interval = given.get("heartbeat_interval", usual.heartbeat_interval)
    dead_after = given.get("agent_dead_after", usual.agent_dead_after)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (interval, dead_after))
    if not numbers or dead_after >= 2 * interval:
        return []
    key = "agent_dead_after" if "agent_dead_after" in given else "heartbeat_interval"
    message = f"agent_dead_after ({dead_after:g} s) has to be at least twice heartbeat_interval ({interval:g} s)"
    return [document.fault(("timing", key), message)]


def _pool(document: Document, index: int, pool: dict[str, Any]) -> list[Fault]:
    at = ("pools", index)
    faults = []
    backend = pool.get("backend")
    if isinstance(backend, str) and backend not in BACKENDS:
        remedy = "there is " + ", ".join(BACKENDS)
        faults.append(document.fault((*at, "backend"), f"no backend {backend!r} in this release", remedy))
    for key in ("labels", "mandatory"):
        faults += _labels(document, (*at, key), pool.get(key))
    foreign = labels(_list(pool.get("mandatory"))) - _own_labels(pool)
    if foreign:
        message = f"{', '.join(sorted(foreign))} is not among the pool's labels, so no job could ever fit it"
        faults.append(document.fault((*at, "mandatory"), message, "add it to labels"))
    for position, pattern in enumerate(_list(pool.get("inherit_env"))):
        if not _VARIABLE.match(pattern):
            remedy = "a name, or a prefix followed by one *"
            faults.append(document.fault((*at, "inherit_env", position), f"{pattern!r} is no variable's name", remedy))
    return faults


def _own_labels(pool: dict[str, Any]) -> Labels:
    """What jobs see of the pool, the reserved labels apart."""
    host = host_labels() if pool.get("backend") == "process" else ()
    return labels((*_list(pool.get("labels")), *host))


def _list(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _labels(document: Document, at: tuple[str | int, ...], value: Any) -> list[Fault]:
    faults = []
    given = _list(value)
    if len(given) > MAX_LABELS:
        faults.append(document.fault(at, f"has {len(given)} labels; the limit is {MAX_LABELS}"))
    for position, label in enumerate(given):
        problem = label_fault(label)
        if problem is None and reserved(label):
            problem = f"label {label!r} is reserved: Corral sets {RESERVED_PREFIX} labels itself"
        if problem is not None:
            faults.append(document.fault((*at, position), problem))
    return faults


def _twins(document: Document, pools: Sequence[tuple[int, dict[str, Any]]]) -> list[Fault]:
    """Two pools of one name, of one label set, or two default ones."""
    faults = []
    names: dict[str, int] = {}
    sets: dict[frozenset[str], int] = {}
    default: int | None = None
    for index, pool in pools:
        name = pool.get("name")
        if isinstance(name, str):
            if name in names:
                faults.append(
                    document.fault(("pools", index, "name"), f"{name!r} is the name of pool {names[name]} too")
                )
            names.setdefault(name, index)
        own = _own_labels(pool)
        if own in sets:
            message = f"has the same labels as pool {sets[own]}; jobs could not tell them apart"
            faults.append(document.fault(("pools", index, "labels"), message))
        sets.setdefault(own, index)
        if pool.get("default") is True:
            if default is not None:
                faults.append(document.fault(("pools", index, "default"), f"pool {default} is the default already"))
            default = index if default is None else default
    return faults
