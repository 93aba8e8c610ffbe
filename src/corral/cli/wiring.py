# SPDX-License-Identifier: Apache-2.0
"""The one place that picks concrete adapters: which database, stores and backends a coordinator runs on, and how a
command reaches one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from corral.cli.config import ServerConfig, default_config, parse_size, to_caps, to_pool
from corral.cli.failing import say
from corral.cli.statedir import (
    CACHE,
    DATABASE,
    KEY_FILE,
    LOGS,
    SECRETS,
    SERVER_FILE,
    SOURCES,
    TOKEN_FILE,
    WORK,
    default_state_dir,
    live_server,
    prepare_state_dir,
    set_mode,
    write_private,
)
from corral.model.errors import CorralError, NotFound, StoreUnavailable
from corral.model.views import Clean, NewToken
from corral.runtime.chance import SystemChance
from corral.runtime.clock import SystemClock

if TYPE_CHECKING:
    from corral.backends.event.deliverers import Deliverers
    from corral.backends.interface import Backend
    from corral.backends.process.backend import ProcessBackend
    from corral.client import Client
    from corral.control.coordinator import Coordinator
    from corral.control.fleet import Loader
    from corral.web.serve import WebServer

log = logging.getLogger(__name__)

TROUBLE_LOOK = 2.0
TROUBLE_PATIENCE = 20.0
"""Seconds that an all-in-one coordinator waits for a database that cannot be written."""
RELEASE_TIMEOUT = 15.0
"""Seconds in which an all-in-one coordinator gives its instances back at its end."""


# --- parts -------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Assembly:
    """A coordinator and what it stands on; :meth:`close` ends it in order."""

    coordinator: Coordinator
    state_dir: Path
    backends: dict[str, Backend] = field(default_factory=dict)
    closers: list[Callable[[], object]] = field(default_factory=list)

    async def close(self) -> None:
        for closer in reversed(self.closers):
            result = closer()
            if asyncio.iscoroutine(result):
                await result


async def assemble(
    state_dir: Path,
    config: ServerConfig,
    *,
    urls: tuple[str, ...] = (),
    offline: bool = False,
    tied: bool = False,
    slots: bool = False,
    unroutable_after: float | None = None,
    load: Loader | None = None,
) -> Assembly:
    """Open the stores below ``state_dir`` and put a coordinator on them; nothing runs yet.

    :raises StoreMisconfigured: the database is held by another process, damaged, or of a newer release.
    """
    from corral.control.coordinator import Coordinator, CoordinatorSettings, Stores, identify
    from corral.control.fleet import Fleet, nothing_to_load
    from corral.runtime.sealing import Sealer, load_key
    from corral.store.logdir import LogDirectory
    from corral.store.sourcedir import SourceDirectory
    from corral.store.sqlite import SqliteDatabase

    clock, chance = SystemClock(), SystemChance()
    database = await asyncio.to_thread(SqliteDatabase.open, state_dir / DATABASE, clock)
    closers: list[Callable[[], object]] = [database.close]
    try:
        set_mode(state_dir, passable=slots)
        identity = await identify(database, chance, take_lease=not offline)
        logs = LogDirectory(state_dir / LOGS)
        closers.append(logs.close)
        sources = SourceDirectory(state_dir / SOURCES)
        sealer = Sealer(load_key(state_dir / KEY_FILE, chance), chance)
        backends: dict[str, Backend] = {}
        if not offline:
            backends["process"] = _process_backend(state_dir, config, identity.cluster_id, tied=tied, slots=slots)
        ways = None if offline else deliverers(state_dir)
        if ways is not None:
            closers.append(ways.close)
        pools = tuple(to_pool(pool) for pool in config.pools)
        fleet = Fleet(pools, to_caps(config), load or nothing_to_load)
        timing = config.timing
        coordinator = Coordinator(
            clock=clock,
            chance=chance,
            stores=Stores(database=database, logs=logs, sources=sources),
            sealer=sealer,
            identity=identity,
            backends=backends,
            fleet=fleet,
            deliverer=ways,
            settings=CoordinatorSettings(
                urls=urls,
                offline=offline,
                unroutable_after=timing.unroutable_after if unroutable_after is None else unroutable_after,
                queue_timeout=timing.queue_timeout,
                lost_after=timing.lost_after,
                stranded_after=timing.stranded_after,
                heartbeat_interval=timing.heartbeat_interval,
                agent_dead_after=timing.agent_dead_after,
                ack_timeout=timing.dispatch_ack_timeout,
                inventory_every=timing.inventory_every,
                flap_grace=timing.flap_grace,
                step_log_limit=parse_size(config.limits.step_log),
                run_log_limit=parse_size(config.limits.run_log),
                keep=config.keep(),
                directories={
                    "state": state_dir,
                    "logs": state_dir / LOGS,
                    "work": Path(config.work_dir) if config.work_dir else state_dir / WORK,
                },
                changed=config.changed(),
            ),
        )
    except BaseException:
        await Assembly(coordinator=None, state_dir=state_dir, closers=closers).close()  # type: ignore[arg-type]
        raise
    return Assembly(coordinator=coordinator, state_dir=state_dir, backends=backends, closers=closers)


def _process_backend(
    state_dir: Path, config: ServerConfig, cluster_id: object, *, tied: bool, slots: bool
) -> ProcessBackend:
    from corral.backends.process.backend import ProcessBackend
    from corral.model.ids import ClusterId

    root = Path(config.work_dir) if config.work_dir else state_dir / WORK
    return ProcessBackend(
        cluster_id=ClusterId(str(cluster_id)),
        root=root,
        cache_root=root.parent / CACHE if config.work_dir else state_dir / CACHE,
        tied=tied,
        uids=config.uid_range() if slots else None,
        users=tuple(pool.user for pool in config.pools if pool.user),
    )


def deliverers(state_dir: Path) -> Deliverers:
    """How events reach webhooks and programs; what starts workflow runs is set once there is a coordinator. Serves one
    event loop."""
    from corral.backends.event.deliverers import Deliverers
    from corral.backends.event.execute import ExecDeliverer
    from corral.backends.event.secretfile import SecretStore
    from corral.backends.event.webhook import WebhookDeliverer

    return Deliverers(
        webhooks=WebhookDeliverer(SecretStore(state_dir / SECRETS, os.environ), SystemClock()),
        programs=ExecDeliverer(state_dir, os.environ),
    )


async def publish(assembly: Assembly, url: str, *, ends_with_its_run: bool = False) -> str:
    """Where this coordinator listens, for commands on the same state directory; the token they use."""
    token_file = assembly.state_dir / TOKEN_FILE
    token = ""
    with contextlib.suppress(OSError):
        token = token_file.read_text().strip()
    known = False
    if token:
        with contextlib.suppress(CorralError):
            await assembly.coordinator.authenticate(token)
            known = True
    if not known:
        created = await assembly.coordinator.create_token(NewToken(name="first", role="admin"))
        token = created.token
        write_private(token_file, token + "\n")
        if sys.stderr.isatty():
            print(f"admin token (also in {token_file}): {token}", file=sys.stderr)  # noqa: T201
    server_file = assembly.state_dir / SERVER_FILE
    described = {"url": url, "pid": os.getpid(), "ends_with_its_run": ends_with_its_run}
    write_private(server_file, json.dumps(described) + "\n")
    assembly.closers.append(lambda: server_file.unlink(missing_ok=True))
    return token


# --- reaching a coordinator --------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def open_client(state_dir: Path | None, url: str | None, token: str | None) -> AsyncIterator[Client]:
    """A client of the server at ``url``; else of whatever holds the state directory; else of the directory itself,
    opened offline in this process.

    :raises CorralError: there is nothing to connect to, or it refuses.
    """
    from corral.client import Client

    if url:
        async with Client(url, token or "") as client:
            yield client
        return
    directory = (state_dir or default_state_dir()).absolute()
    live = live_server(directory)
    if live is not None:
        async with Client(live.url, live.token) as client:
            yield client
        return
    async with _offline(directory) as client:
        yield client


@contextlib.asynccontextmanager
async def _offline(state_dir: Path) -> AsyncIterator[Client]:
    from corral.client import Client
    from corral.client.transport import AppTransport
    from corral.control.api import Principal, Role
    from corral.model.ids import TokenId
    from corral.web.app import create_app

    if not (state_dir / DATABASE).exists():
        raise NotFound(f"there is no database in {state_dir}: nothing was run with this state directory")
    assembly = await assemble(prepare_state_dir(state_dir), default_config(), offline=True)
    try:
        if live := await assembly.coordinator.unfinished():
            say(
                f"{live} run{'s' if live > 1 else ''} here did not end, and no coordinator holds {state_dir}: "
                f"the next `corral run` or `corral server` on it settles what is left"
            )
        local = Principal(token_id=TokenId("local"), name="local", role=Role.ADMIN)
        app = create_app(assembly.coordinator, local=local)
        async with Client("http://corral.local", "", transport=AppTransport(app)) as client:
            yield client
    finally:
        await assembly.close()


# --- all in one --------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class AllInOne:
    """A coordinator inside this process; its instances end with it."""

    client: Client
    url: str
    state_dir: Path
    assembly: Assembly
    web: WebServer
    _stopped: bool = False

    async def trouble(self) -> CorralError:
        """Returns when the database could not be written for so long that waiting is no use."""
        since: float | None = None
        clock = SystemClock()
        while True:
            await clock.sleep(TROUBLE_LOOK)
            health = next(h for h in await self.assembly.coordinator.health() if h.name == "database")
            since = None if health.healthy else since or clock.monotonic()
            if since is not None and clock.monotonic() - since >= TROUBLE_PATIENCE:
                return StoreUnavailable(health.detail)

    async def stop(self, *, kill: bool = False) -> int:
        """Give everything back, bounded; how many instances are not confirmed gone. Idempotent."""
        if self._stopped:
            return 0
        self._stopped = True
        coordinator = self.assembly.coordinator
        left = await coordinator.release_all(2.0 if kill else RELEASE_TIMEOUT)
        await coordinator.stop(1.0 if kill else 5.0)
        await self.web.stop()
        return left


@contextlib.asynccontextmanager
async def all_in_one(
    state_dir: Path,
    *,
    max_agents: int | None = None,
    inherit_env: tuple[str, ...] | None = None,
    on_ready: Callable[[str], None] = lambda url: None,
) -> AsyncIterator[AllInOne]:
    """An embedded coordinator with tied process agents on a free loopback port."""
    import msgspec

    from corral.client import Client
    from corral.web.app import create_app
    from corral.web.listen import bind
    from corral.web.serve import WebServer

    config = default_config(max_agents)
    if inherit_env is not None:
        pools = tuple(msgspec.structs.replace(pool, inherit_env=inherit_env) for pool in config.pools)
        config = msgspec.structs.replace(config, pools=pools)
    listener = bind("127.0.0.1", 0)
    url = "http://{}:{}".format(*listener.getsockname()[:2])
    directory = prepare_state_dir(state_dir)
    try:
        assembly = await assemble(directory, config, urls=(url,), tied=True, unroutable_after=0.0)
    except BaseException:
        listener.close()
        raise
    if os.geteuid() == 0:
        say("jobs run as root here, with all that root may do; an ordinary account keeps them off the machine")
    try:
        web = WebServer(create_app(assembly.coordinator), [listener])
        await _check_host(assembly)
        await assembly.coordinator.host.settle_vanished()
        await web.start()
        await assembly.coordinator.start()
        token = await publish(assembly, url, ends_with_its_run=True)
        async with Client(url, token) as client:
            whole = AllInOne(client=client, url=url, state_dir=directory, assembly=assembly, web=web)
            on_ready(url)
            try:
                yield whole
            finally:
                await whole.stop()
                _forget_sources(directory)
                await tidy(assembly, Clean())
    finally:
        await assembly.close()


async def _check_host(assembly: Assembly) -> None:
    """:raises Misconfigured: no job could ever run here; said at once instead of job by job."""
    from corral.backends.interface import Misconfigured

    for backend in assembly.backends.values():
        for finding in await backend.check():
            if finding.level == "failed":
                raise Misconfigured(". ".join(part for part in (finding.message, finding.remedy) if part))


def _forget_sources(state_dir: Path) -> None:
    """The agents' own copies of source archives; the one that `rerun` needs is in the source store."""
    for copies in (state_dir / CACHE).glob("*/*/sources"):
        shutil.rmtree(copies, ignore_errors=True)


async def tidy(assembly: Assembly, keep: Clean) -> None:
    """Remove what retention does not keep; that it fails is no reason to fail what was done."""
    try:
        await assembly.coordinator.clean(keep)
    except CorralError as error:
        log.warning("old runs could not be removed: %s", error)
