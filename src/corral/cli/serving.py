# SPDX-License-Identifier: Apache-2.0
"""``corral server``: a coordinator of its own process, from the first check to the last farewell."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from corral.cli.config import ServerConfig, default_config, to_caps, to_pool
from corral.cli.config.loading import load_configuration
from corral.cli.config.secrets import SecretPlaces
from corral.cli.statedir import prepare_state_dir
from corral.cli.wiring import Assembly, assemble, publish, tidy
from corral.control.fleet import Configured, Fleet, Loader
from corral.model.errors import CorralError, PermanentError
from corral.model.views import ReloadView

log = logging.getLogger(__name__)

DEFAULT_LISTEN = "127.0.0.1:7420"
SHUTDOWN_GRACE = 30.0
AT_START = (
    "listen",
    "urls",
    "work_dir",
    "allow_root",
    "metrics_public",
    "log_format",
    "uids",
    "retention",
    "limits",
    "timing",
)
"""Settings that are read once."""


class RootJobs(PermanentError):
    """Jobs would run as root and nobody said that they may."""

    code = "root_jobs"


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    state_dir: Path
    listen: str = ""
    config: Path | None = None
    """The file, or the directory that holds it; None: the defaults."""
    allow_root: bool = False
    on_ready: Callable[[str], None] = lambda url: None


async def serve_forever(options: ServerOptions) -> None:
    """Run a coordinator until SIGTERM or SIGINT; agents and their wardens go on after it.

    :raises CorralError: it cannot start; the message says why and what to do.
    """
    from corral.web.app import create_app
    from corral.web.listen import bind
    from corral.web.serve import WebServer

    directory = prepare_state_dir(options.state_dir)
    config = _load(options.config, directory)
    slots = _check_root(config, options)
    host, port = parse_listen(options.listen or config.listen or DEFAULT_LISTEN)
    listener = bind(host, port)
    try:
        url = "http://{}:{}".format(*_reachable(listener.getsockname()))
        assembly = await assemble(
            directory, config, urls=config.urls or (url,), slots=slots, load=_loader(options, config)
        )
    except BaseException:
        listener.close()
        raise
    try:
        web = WebServer(create_app(assembly.coordinator, metrics_public=config.metrics_public), [listener])
        stopping = _stop_on_signals()
        _reload_on_hangup(assembly, stopping)
        await _say_findings(assembly)
        await assembly.coordinator.start()
        await web.start()
        await publish(assembly, url)
        options.on_ready(url)
        await _retention_until(stopping, assembly, config)
        log.info("stopping")
        await assembly.coordinator.stop(SHUTDOWN_GRACE)
        await web.stop()
    finally:
        await assembly.close()


def _load(place: Path | None, state_dir: Path, kinds: Mapping[str, str] | None = None) -> ServerConfig:
    """:raises Invalid: every fault; a secret that is named and is not there is one."""
    if place is None:
        return default_config()
    found = load_configuration(place, secrets=SecretPlaces(state_dir=state_dir), kinds=kinds)
    for warning in found.warnings:
        log.warning("%s", warning)
    return found.config


def _loader(options: ServerOptions, started: ServerConfig) -> Loader | None:
    """Reads again what the server was started with."""
    place = options.config
    if place is None:
        return None

    async def load(fleet: Fleet) -> Configured:
        kinds = {pool.name: pool.backend for pool in fleet.pools()}
        found = await asyncio.to_thread(_load, place, options.state_dir.absolute(), kinds)
        _check_root(found, options)
        pools = tuple(to_pool(pool) for pool in found.pools)
        later = tuple(name for name in AT_START if getattr(found, name) != getattr(started, name))
        return Configured(pools=pools, caps=to_caps(found), later=later)

    return load


def _reload_on_hangup(assembly: Assembly, stopping: asyncio.Event) -> None:
    """SIGHUP: read the configuration again. One at a time; a fault changes nothing and ends nothing."""
    turn = asyncio.Lock()
    tasks: set[asyncio.Task[None]] = set()

    async def reload() -> None:
        async with turn:
            try:
                view = await assembly.coordinator.reload_config()
            except CorralError as error:
                log.error("the configuration was not reloaded: %s", error)
                return
            log.warning("the configuration was reloaded: %s", reload_sentence(view))

    def hang_up() -> None:
        if not stopping.is_set():
            task = asyncio.ensure_future(reload())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up)


def reload_sentence(view: ReloadView) -> str:
    """What a reload changed, in one line."""
    parts = [
        f"{what} {', '.join(names)}"
        for what, names in (
            ("new:", view.added),
            ("changed:", view.changed),
            ("draining:", view.removed),
            ("at the next start:", view.at_next_start),
        )
        if names
    ]
    parts += ["caps"] if view.caps_changed else []
    return "; ".join(parts) or "nothing changed"


async def _say_findings(assembly: Assembly) -> None:
    """What stands in the way of jobs on this host, once at the start instead of job by job."""
    for backend in assembly.backends.values():
        for finding in await backend.check():
            if finding.level != "ok":
                text = finding.message + (f"; {finding.remedy}" if finding.remedy else "")
                log.warning("backend %s: %s", backend.kind, text)


RETENTION_EVERY = 600.0


async def _retention_until(stopping: asyncio.Event, assembly: Assembly, config: ServerConfig) -> None:
    """Wait for the end; every now and then remove what retention says."""
    while not stopping.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), RETENTION_EVERY)
        if not stopping.is_set():
            await tidy(assembly, config.keep())


def _check_root(config: ServerConfig, options: ServerOptions) -> bool:
    """Whether each agent gets a uid of its own.

    :raises RootJobs: a pool's jobs would run as root.
    """
    if os.geteuid() != 0:
        return False
    if config.allow_root or options.allow_root:
        return False
    rooted = [pool.name for pool in config.pools if pool.user == "root"]
    if rooted:
        raise RootJobs(
            f"jobs of pool {rooted[0]} would run as root; name another user, or set allow_root: true "
            "if everything that runs here is trusted with this machine"
        )
    return True


def parse_listen(text: str) -> tuple[str, int]:
    """``HOST:PORT``. :raises PermanentError: it is not."""
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise PermanentError(f"{text!r} is not HOST:PORT, for example {DEFAULT_LISTEN}")
    return host, int(port)


def _reachable(name: tuple[object, ...]) -> tuple[str, object]:
    """Where local agents dial a listener that may be bound to every address."""
    host = str(name[0])
    if host in ("0.0.0.0", ""):
        host = "127.0.0.1"
    elif ":" in host:
        host = "[::1]" if host == "::" else f"[{host}]"
    return host, name[1]


def _stop_on_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping
