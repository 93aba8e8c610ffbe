# SPDX-License-Identifier: Apache-2.0
"""What the values have to be among each other: also asked of a file whose form is wrong elsewhere, so that all its
faults are told together. Whatever has the wrong type is passed over here; the schema tells of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corral.cli.config.pools import host_labels
from corral.cli.config.shape import CONFIG_VERSION, ServerConfig, TimingConfig
from corral.cli.config.sizes import parse_size
from corral.cli.config.targets import provisioner_faults
from corral.cli.config.windows import known_zone, parse_days, parse_time
from corral.model.errors import Fault
from corral.model.labels import MAX_LABELS, RESERVED_PREFIX, Labels, label_fault, labels, reserved
from corral.runtime.schema import Path
from corral.runtime.yamlfile import Document

BACKENDS = ("process", "event")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?\Z")
_LOCAL_ONLY = ("user", "inherit_env", "machine_pool")
"""Keys that say something about this host."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One pool (or machine pool) as it stands in one file."""

    document: Document
    at: Path
    data: dict[str, Any]

    def fault(self, key: str, message: str, remedy: str = "") -> Fault:
        return self.document.fault((*self.at, key), message, remedy)

    @property
    def place(self) -> str:
        line, column = self.document.places.get((*self.at, "name"), self.document.places.get(self.at, (1, 1)))
        return f"{self.document.name}:{line}:{column}"


def entries(document: Document, key: str = "pools") -> list[Entry]:
    data = document.data
    listed = data.get(key) if isinstance(data, dict) else None
    pairs = enumerate(listed) if isinstance(listed, list) else ()
    return [Entry(document=document, at=(key, index), data=item) for index, item in pairs if isinstance(item, dict)]


def version_faults(document: Document) -> list[Fault]:
    version = document.data.get("version") if isinstance(document.data, dict) else None
    if type(version) is not int or version == CONFIG_VERSION:
        return []
    remedy = f"this release reads version {CONFIG_VERSION}"
    return [document.fault(("version",), f"version {version} is not known", remedy)]


def top_faults(document: Document) -> list[Fault]:
    """Of the main file, its pools apart."""
    data = document.data
    if not isinstance(data, dict):
        return []
    sizes = (("max_memory",), ("retention", "size"), ("limits", "step_log"), ("limits", "run_log"))
    faults = [fault for place in sizes if (fault := _size(document, place)) is not None]
    faults += _uids(document, data)
    faults += _heartbeats(document, data)
    faults += _backoff(document, data)
    machines = entries(document, "machine_pools")
    for machine in machines:
        faults += _sizes(machine, "max_memory")
    faults += _same_names(machines, "machine pool")
    return faults


def pool_faults(pools: Sequence[Entry], main: Document, kinds: Mapping[str, str]) -> list[Fault]:
    """Of the pools of every file. ``kinds``: backends of the pools there are, which no reload can change."""
    faults = [fault for pool in pools for fault in _pool(pool, kinds)]
    listed = ((entry.data.get("name"), entry) for entry in entries(main, "machine_pools"))
    machines = {name: entry for name, entry in listed if isinstance(name, str)}
    for pool in pools:
        faults += _machine(pool, machines)
        faults += _never(pool, main)
    return faults + _same_names(pools, "pool") + _same_labels(pools) + _defaults(pools)


# --- the main file -----------------------------------------------------------------------------------------


def _at(document: Document, place: Path) -> Any:
    value = document.data
    for key in place:
        if isinstance(key, int):
            value = value[key] if isinstance(value, list) and key < len(value) else None
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def _size(document: Document, place: Path) -> Fault | None:
    value = _at(document, place)
    if not isinstance(value, str) and type(value) is not int:
        return None
    try:
        parse_size(value)
    except ValueError as error:
        return document.fault(place, str(error))
    return None


def _sizes(entry: Entry, *places: str) -> list[Fault]:
    """``places``: dotted keys."""
    found = (_size(entry.document, (*entry.at, *place.split("."))) for place in places)
    return [fault for fault in found if fault is not None]


def _uids(document: Document, data: dict[str, Any]) -> list[Fault]:
    uids = data.get("uids")
    found = re.match(r"([0-9]{1,10})-([0-9]{1,10})\Z", uids) if isinstance(uids, str) else None
    if found is None or (int(found[1]) >= 1000 and int(found[1]) <= int(found[2]) < 2**32):
        return []
    return [document.fault(("uids",), f"{uids} is no range of ordinary users", "FIRST-LAST, from 1000 on")]


def _number(value: Any) -> float | None:
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18 else None
    )


def _heartbeats(document: Document, data: dict[str, Any]) -> list[Fault]:
    """One lost heartbeat must not be the end of a healthy agent."""
    timing = data.get("timing")
    given = timing if isinstance(timing, dict) else {}
    usual = TimingConfig()
    interval = _number(given.get("heartbeat_interval", usual.heartbeat_interval))
    dead_after = _number(given.get("agent_dead_after", usual.agent_dead_after))
    if interval is None or dead_after is None or dead_after >= 2 * interval:
        return []
    key = "agent_dead_after" if "agent_dead_after" in given else "heartbeat_interval"
    message = f"agent_dead_after ({dead_after:g} s) has to be at least twice heartbeat_interval ({interval:g} s)"
    return [document.fault(("timing", key), message)]


def _backoff(document: Document, data: dict[str, Any]) -> list[Fault]:
    usual = ServerConfig(version=CONFIG_VERSION)
    base = _number(data.get("provision_backoff_base", usual.provision_backoff_base))
    most = _number(data.get("provision_backoff_max", usual.provision_backoff_max))
    if base is None or most is None or base <= most:
        return []
    key = "provision_backoff_max" if "provision_backoff_max" in data else "provision_backoff_base"
    return [document.fault((key,), f"provision_backoff_max ({most:g} s) is below provision_backoff_base ({base:g} s)")]


# --- one pool ----------------------------------------------------------------------------------------------


def _pool(pool: Entry, kinds: Mapping[str, str]) -> Iterator[Fault]:
    yield from _backend(pool, kinds)
    for key in ("labels", "mandatory"):
        yield from _labels(pool, key)
    foreign = labels(texts(pool.data.get("mandatory"))) - own_labels(pool)
    if foreign:
        message = f"{', '.join(sorted(foreign))} is not among the pool's labels, so no job could ever fit it"
        yield pool.fault("mandatory", message, "add it to labels")
    for position, pattern in enumerate(texts(pool.data.get("inherit_env"))):
        if not _VARIABLE.match(pattern):
            remedy = "a name, or a prefix followed by one *"
            at = (*pool.at, "inherit_env", position)
            yield pool.document.fault(at, f"{pattern!r} is no variable's name", remedy)
    yield from _sizes(pool, "max_memory", "resources.requests.memory", "resources.limits.memory")
    yield from _resources(pool)
    yield from _warmth(pool)
    yield from provisioner_faults(pool.document, (*pool.at, "provisioner"), pool.data.get("provisioner"))


def _backend(pool: Entry, kinds: Mapping[str, str]) -> Iterator[Fault]:
    backend, name = pool.data.get("backend"), pool.data.get("name")
    if not isinstance(backend, str):
        return
    if backend not in BACKENDS:
        yield pool.fault("backend", f"no backend {backend!r} in this release", "there is " + ", ".join(BACKENDS))
        return
    before = kinds.get(name) if isinstance(name, str) else None
    if before is not None and before != backend:
        message = f"the backend of pool {name} is {before} and cannot change while the server runs"
        yield pool.fault("backend", message, "give the new pool another name; the old one drains")
    if backend == "event" and "provisioner" not in pool.data:
        yield pool.document.fault(pool.at, "an event pool needs a 'provisioner'", "webhook, exec or workflow")
    if backend != "event" and "provisioner" in pool.data:
        yield pool.fault("provisioner", "is for pools with backend event")
    if backend == "event":
        for key in _LOCAL_ONLY:
            if key in pool.data:
                yield pool.fault(key, "says nothing for backend event: its instances are not on this host")


def own_labels(pool: Entry) -> Labels:
    """What jobs see of the pool, the reserved labels apart."""
    host = host_labels() if pool.data.get("backend") == "process" else ()
    return labels((*texts(pool.data.get("labels")), *host))


def texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _labels(pool: Entry, key: str) -> Iterator[Fault]:
    value = pool.data.get(key)
    given = list(enumerate(value)) if isinstance(value, list) else []
    if len(given) > MAX_LABELS:
        yield pool.fault(key, f"has {len(given)} labels; the limit is {MAX_LABELS}")
    for position, label in given:
        if not isinstance(label, str):
            continue
        problem = label_fault(label)
        if problem is None and reserved(label):
            problem = f"label {label!r} is reserved: Corral sets {RESERVED_PREFIX} labels itself"
        if problem is not None:
            yield pool.document.fault((*pool.at, key, position), problem)


def amount(document: Document, place: Path) -> float | None:
    """A number or size, or None where there is none or it is wrong."""
    value = _at(document, place)
    if isinstance(value, str):
        try:
            return float(parse_size(value))
        except ValueError:
            return None
    return _number(value)


def _requested(pool: Entry, what: str) -> float | None:
    """Of an instance, as caps count it."""
    requests = amount(pool.document, (*pool.at, "resources", "requests", what))
    return requests if requests is not None else amount(pool.document, (*pool.at, "resources", "limits", what))


def _resources(pool: Entry) -> Iterator[Fault]:
    for what in ("cpu", "memory"):
        requests = amount(pool.document, (*pool.at, "resources", "requests", what))
        limit = amount(pool.document, (*pool.at, "resources", "limits", what))
        if requests is not None and limit is not None and limit < requests:
            at = (*pool.at, "resources", "limits", what)
            yield pool.document.fault(at, f"the limit of {what} is below what an instance requests")
        if what == "memory" and 0 in (requests, limit):
            yield pool.fault("resources", "an instance without memory cannot be made")


def _warmth(pool: Entry) -> Iterator[Fault]:
    for index, window in _windows(pool):
        yield from _window(pool, (*pool.at, "schedule", index), window)
    most = pool.data.get("max_agents")
    if type(most) is not int:
        return
    wanted: list[tuple[Path, Any]] = [((*pool.at, "min_idle"), pool.data.get("min_idle"))]
    for index, window in _windows(pool):
        wanted.append(((*pool.at, "schedule", index, "min_idle"), window.get("min_idle")))
    for at, number in wanted:
        if type(number) is int and number > most:
            yield pool.document.fault(at, f"{number} idle agents are more than max_agents ({most}) allows")


def _windows(pool: Entry) -> list[tuple[int, dict[str, Any]]]:
    listed = pool.data.get("schedule")
    pairs = enumerate(listed) if isinstance(listed, list) else ()
    return [(index, window) for index, window in pairs if isinstance(window, dict)]


def _window(pool: Entry, at: Path, window: dict[str, Any]) -> Iterator[Fault]:
    days = window.get("days")
    if isinstance(days, str) or (isinstance(days, list) and all(isinstance(day, str) for day in days)):
        try:
            parse_days(days)
        except ValueError as error:
            yield pool.document.fault((*at, "days"), str(error))
    for key in ("from", "to"):
        if isinstance(window.get(key), str):
            try:
                parse_time(window[key])
            except ValueError as error:
                yield pool.document.fault((*at, key), str(error))
    zone = window.get("timezone")
    if isinstance(zone, str) and not known_zone(zone):
        remedy = "a name as Europe/Berlin or UTC"
        yield pool.document.fault((*at, "timezone"), f"no time zone {zone!r} on this machine", remedy)


# --- a pool among others -----------------------------------------------------------------------------------


def _machine(pool: Entry, machines: Mapping[str, Entry]) -> Iterator[Fault]:
    name = pool.data.get("machine_pool")
    if not isinstance(name, str) or not name:
        return
    if name not in machines:
        there = ", ".join(sorted(machines))
        yield pool.fault("machine_pool", f"no machine pool {name!r}", f"there is {there}" if there else "none is given")
        return
    yield from _too_large(pool, machines[name].document, machines[name].at, f"machine pool {name}")


def _never(pool: Entry, main: Document) -> Iterator[Fault]:
    """A pool that can never have an instance is a mistake, not a wish."""
    yield from _too_large(pool, pool.document, pool.at, "the pool")
    yield from _too_large(pool, main, (), "the cluster")


def _too_large(pool: Entry, document: Document, at: Path, whose: str) -> Iterator[Fault]:
    for what in ("cpu", "memory"):
        cap, requested = amount(document, (*at, f"max_{what}")), _requested(pool, what)
        if cap is not None and requested is not None and requested > cap:
            message = f"an instance requests more {what} than max_{what} of {whose} allows, so none could be made"
            yield pool.fault("resources", message)


def _same_names(items: Iterable[Entry], what: str) -> list[Fault]:
    faults = []
    seen: dict[str, Entry] = {}
    for item in items:
        name = item.data.get("name")
        if not isinstance(name, str):
            continue
        if name in seen:
            faults.append(item.fault("name", f"{name!r} is the name of the {what} at {seen[name].place} too"))
        seen.setdefault(name, item)
    return faults


def _same_labels(pools: Iterable[Entry]) -> list[Fault]:
    faults = []
    seen: dict[Labels, Entry] = {}
    for pool in pools:
        own = own_labels(pool)
        if own in seen:
            message = f"has the same labels as the pool at {seen[own].place}; jobs could not tell them apart"
            faults.append(pool.fault("labels", message))
        seen.setdefault(own, pool)
    return faults


def _defaults(pools: Iterable[Entry]) -> list[Fault]:
    defaults = [pool for pool in pools if pool.data.get("default") is True]
    return [pool.fault("default", f"the pool at {defaults[0].place} is the default already") for pool in defaults[1:]]
