# SPDX-License-Identifier: Apache-2.0
"""The process backend: each instance is ``warden → agent → steps`` on this host. For trusted code.

Every operation on an instance runs as a task of its own under that instance's lock: a caller whose deadline passes
leaves, the task comes to a clean end (an abandoned creation undoes itself). Blocking work runs in worker threads.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from corral.backends.interface import (
    Created,
    Denied,
    Ending,
    Finding,
    Instance,
    InstanceSpec,
    Isolation,
    Misconfigured,
    NoCapacity,
    Transient,
)
from corral.backends.process import cgroups, checks, killing, removal, sentences, spawn, strays
from corral.backends.process.journal import JOURNAL, Identity, Journal, Place, make_root
from corral.backends.process.turns import Turns
from corral.backends.process.users import Slots, User, named_user
from corral.backends.process.watch import Warden, Wardens, send
from corral.model.ids import AgentId, ClusterId
from corral.runtime.clock import Clock, SystemClock

T = TypeVar("T")

MIN_FREE = 1024**3
"""Bytes free below which no new instance is made: jobs that fail half-way for want of disk help nobody."""
CLAIM_SECONDS = 120.0
"""Seconds an agent has to register (its first word on the grant pipe) before its warden ends it."""
KILL_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
WARDEN_SLACK = 2.0
"""Seconds beyond the grace after which a warden that was told to stop counts as hung."""
PIDS_LIMIT = 4096
"""Processes and threads of one instance: a large parallel build fits, a fork bomb does not take the host."""
DEATH_SECONDS = 10.0
"""Seconds that killed processes may take to die before the caller is told which do not (uninterruptible ones)."""
STRAY_PAUSE = 0.02
"""Seconds between two looks for processes that were killed and are not dead yet."""
WORKERS = 4
"""Threads for blocking file work; more would only queue at the disk."""


class _Attempt:
    """One call of create. Once ``abandoned`` its caller has left with an error, and nothing may stay behind."""

    def __init__(self) -> None:
        self.abandoned = False
        self._ready: asyncio.Future[bytes] | None = None

    def abandon(self) -> None:
        self.abandoned = True
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(Transient("given up by its caller"))

    async def read(self, fd: int) -> bytes:
        """What the other end says in one write, nothing when it closes. :raises Transient: abandoned meanwhile."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[bytes] = loop.create_future()
        self._ready = ready
        if self.abandoned:
            self.abandon()
        loop.add_reader(fd, _answer, ready, fd)
        try:
            return await ready
        finally:
            loop.remove_reader(fd)
            self._ready = None


@dataclass(frozen=True, kw_only=True)
class _Found:
    """An instance on disk. ``pidfd``: of its warden, None when that is dead."""

    journal: Journal
    identity: Identity | None
    pidfd: int | None
    detail: str


class ProcessBackend:
    """Instances below ``root``, one directory each, named by agent id.

    :param cluster_id: what this installation writes on everything, and touches only when it finds it there.
    :param root: created when missing; needs to be passable for the users that jobs run as.
    :param cache_root: caches, ``POOL/UID`` each, kept between instances; default: ``cache`` beside ``root``.
    :param agent_command: what the warden runs, ``--config FILE`` appended.
    :param tied: instances end with this process (``corral run``, ``corral demo``).
    :param uids: one uid per instance from this range; needs root. None: the coordinator's own user.
    :param users: names that pools use, for :meth:`check`.
    :param host_cgroups: None: found out at first use.
    """

    kind = "process"
    local = True
    can_list = True

    def __init__(
        self,
        *,
        cluster_id: ClusterId,
        root: Path,
        cache_root: Path | None = None,
        python: str = sys.executable,
        agent_command: tuple[str, ...] | None = None,
        tied: bool = False,
        uids: range | None = None,
        users: tuple[str, ...] = (),
        clock: Clock | None = None,
        claim_seconds: float = CLAIM_SECONDS,
        kill_grace: float = KILL_GRACE,
        min_free: int = MIN_FREE,
        pids_limit: int | None = PIDS_LIMIT,
        host_cgroups: cgroups.Cgroups | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.isolation = Isolation.NONE if uids is None else Isolation.USER
        self.cluster_id = cluster_id
        self.root = root.absolute()
        self.cache_root = (cache_root or self.root.parent / "cache").absolute()
        self._python = python
        # -P: an agent must not import what happens to lie in its working directory.
        self._agent_command = agent_command or (python, "-P", "-m", "corral.agent")
        self._users = users
        self._uids = uids
        self._slots = None if uids is None else Slots(uids)
        self._clock = clock or SystemClock()
        self._claim_seconds = claim_seconds
        self._kill_grace = kill_grace
        self._min_free = min_free
        self._pids_limit = pids_limit
        self._host_cgroups = host_cgroups
        self._environ = environ
        self._tied_read, self._tied_write = os.pipe() if tied else (-1, -1)
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="process-backend")
        self._wardens = Wardens(self._on_warden_end)
        self._turns = Turns()
        self._creating: set[AgentId] = set()
        self._clearing: set[AgentId] = set()
        self._reported: set[AgentId] = set()
        self._destroying: dict[AgentId, asyncio.Task[None]] = {}
        self._watchers: list[Callable[[Ending], None]] = []
        self._tasks: set[asyncio.Task[object]] = set()
        self._closed = False
        self._stopped = False

    # --- the contract ------------------------------------------------------------------------------------------

    async def create(self, spec: InstanceSpec, deadline: float) -> Created:
        attempt = _Attempt()
        # A later destroy is about this creation, too: it does not join one that began before.
        self._destroying.pop(spec.agent_id, None)
        task = self._task(self._locked(spec.agent_id, self._create(spec, attempt)))
        try:
            return await self._bounded(task, deadline, f"instance {spec.agent_id} was not up")
        except BaseException:
            attempt.abandon()
            raise

    async def destroy(self, agent_id: AgentId, deadline: float) -> None:
        task = self._destroying.get(agent_id)
        if task is None or task.done():
            task = self._task(self._locked(agent_id, self._destroy(agent_id)))
            self._destroying[agent_id] = task
            task.add_done_callback(partial(self._destroyed, agent_id))
        await self._bounded(task, deadline, f"instance {agent_id} is not confirmed gone")

    def _destroyed(self, agent_id: AgentId, task: asyncio.Task[None]) -> None:
        if self._destroying.get(agent_id) is task:
            del self._destroying[agent_id]

    async def list(self) -> tuple[Instance, ...]:
        found = await self._in_worker(self._scan)
        return tuple(self._listed(one) for one in found)

    async def check(self) -> tuple[Finding, ...]:
        subject = checks.Subject(
            root=self.root,
            cache_root=self.cache_root,
            python=self._python,
            uids=self._uids,
            users=self._users,
            min_free=self._min_free,
        )
        return await self._in_worker(lambda: checks.findings(subject, self._groups()))

    def watch(self, on_ending: Callable[[Ending], None]) -> None:
        """Instances that were already running, or have ended unwatched, are picked up at once. In the event loop."""
        self._watchers.append(on_ending)
        self._task(self._adopt_all(on_ending))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=self._kill_grace + WARDEN_SLACK + DEATH_SECONDS)
        for task in tuple(self._tasks):
            task.cancel()
        self._stopped = True
        self._wardens.close()
        for fd in (self._tied_read, self._tied_write):
            if fd >= 0:
                os.close(fd)
        self._workers.shutdown(wait=False)

    async def forget_claim(self, agent_id: AgentId) -> None:
        """Remove what carried the claim code, once the agent's key is bound. Idempotent."""
        await self._in_worker(lambda: self._place(agent_id).config.unlink(missing_ok=True))

    # --- creating ----------------------------------------------------------------------------------------------

    async def _create(self, spec: InstanceSpec, attempt: _Attempt) -> Created:
        place = self._place(spec.agent_id)
        there = await self._in_worker(lambda: self._already(place))
        if there is not None:
            return there
        self._creating.add(spec.agent_id)
        try:
            # What an earlier coordinator left half made, if anything.
            await self._clear(spec.agent_id)
            created, warden = await self._bring_up(spec, place, attempt)
        except BaseException:
            await self._clear(spec.agent_id)
            raise
        finally:
            self._creating.discard(spec.agent_id)
        if warden.ended.is_set():
            # Before anybody knew that it was there.
            self._on_warden_end(spec.agent_id)
        return created

    def _already(self, place: Place) -> Created | None:
        """The instance of an earlier call, ended or not: an agent id is never started twice."""
        journal, identity = place.journal(), place.identity()
        if journal is not None and journal.cluster_id != self.cluster_id:
            raise Misconfigured(
                f"{place.path} belongs to installation {journal.cluster_id}; give each its own directory"
            )
        return None if journal is None or identity is None else Created(provider_id=_provider_id(identity))

    async def _bring_up(self, spec: InstanceSpec, place: Place, attempt: _Attempt) -> tuple[Created, Warden]:
        started = await self._in_worker(lambda: self._start(self._order(spec, place), attempt))
        try:
            warden = self._wardens.adopt(spec.agent_id, started.pid, os.pidfd_open(started.pid))
            await self._until_ready(attempt, started, warden)
        finally:
            os.close(started.ready)
        identity = place.identity()
        if attempt.abandoned or identity is None:
            raise Transient(f"instance {spec.agent_id} came up too late and was taken down again")
        return Created(provider_id=_provider_id(identity)), warden

    def _order(self, spec: InstanceSpec, place: Place) -> spawn.Order:
        if "/" in spec.pool or spec.pool in {"", ".", ".."}:
            raise Misconfigured(f"pool {spec.pool!r} cannot name a directory")
        self._make_root()
        self._ensure_space()
        user = self._user(spec)
        limits = cgroups.Limits(cpu=spec.cpu_limit, memory=spec.memory_limit, pids=self._pids_limit)
        return spawn.Order(
            spec=spec,
            place=place,
            created=self._clock.now(),
            cache=self.cache_root / spec.pool / str(os.geteuid() if user is None else user.uid),
            user=user,
            groups=self._groups().plan(spec.agent_id, limits),
            limits=limits,
            python=self._python,
            agent_command=self._agent_command,
            environ=self._environ,
            tied=self._tied_read,
            claim_seconds=self._claim_seconds,
            kill_grace=self._kill_grace,
        )

    def _start(self, order: spawn.Order, attempt: _Attempt) -> spawn.Started:
        try:
            spawn.lay_out(order)
        except OSError as error:
            raise sentences.system_error(error.errno or 0, f"prepare {error.filename or order.place.path}") from None
        if attempt.abandoned:
            raise Transient(f"instance {order.spec.agent_id} was given up before it was started")
        try:
            return spawn.start_warden(order)
        except OSError as error:
            raise sentences.system_error(error.errno or 0, f"start {order.python}") from None

    async def _until_ready(self, attempt: _Attempt, started: spawn.Started, warden: Warden) -> None:
        """The warden's word that the agent runs."""
        text = (await attempt.read(started.ready)).decode()
        if text == "ok":
            return
        if not text:
            raise Transient(f"the warden of {warden.agent_id} ended before it started the agent")
        _, number, why = text.split(" ", 2)
        raise sentences.system_error(int(number), why.rpartition(": ")[0] or why)

    def _make_root(self) -> None:
        try:
            make_root(self.root)
        except OSError as error:
            raise sentences.system_error(error.errno or 0, f"make {self.root}") from None

    def _ensure_space(self) -> None:
        space = os.statvfs(self.root)
        free = space.f_bavail * space.f_frsize
        if free < self._min_free:
            raise NoCapacity(
                f"{self.root} has {free // 1024**2} MiB free; new instances need {self._min_free // 1024**2} MiB",
                retry_after=30.0,
            )

    def _user(self, spec: InstanceSpec) -> User | None:
        if spec.user:
            return named_user(spec.user)
        if self._slots is None:
            return None
        if os.geteuid() != 0:
            raise Denied("a user per instance needs a coordinator started as root; drop the uid range")
        return self._slots.lend(spec.agent_id, self._slots_on_disk())

    def _slots_on_disk(self) -> Sequence[int]:
        journals = (Place(path=path).journal() for path in _directories(self.root))
        return [journal.slot for journal in journals if journal is not None and journal.slot >= 0]

    # --- destroying --------------------------------------------------------------------------------------------

    async def _destroy(self, agent_id: AgentId) -> None:
        self._clearing.add(agent_id)
        try:
            await self._clear(agent_id)
        finally:
            self._clearing.discard(agent_id)

    async def _clear(self, agent_id: AgentId) -> None:
        """Nothing of the instance is left when this returns. It takes its own time: a caller in a hurry leaves, but
        does not shorten the grace of an agent that is ending."""
        place = self._place(agent_id)
        exists, journal = await self._in_worker(lambda: (place.exists(), place.journal()))
        if not exists or (journal is not None and journal.cluster_id != self.cluster_id):
            self._forget(agent_id)
            return
        warden = self._wardens.get(agent_id) or await self._adopt(place)
        if warden is not None:
            await self._stop(warden)
        traits = strays.Traits(
            agent_id=agent_id,
            slot=-1 if journal is None else journal.slot,
            cgroups=() if journal is None else journal.cgroups,
        )
        await self._kill_strays(traits)
        await self._in_worker(lambda: _remove(place, traits))
        self._forget(agent_id)

    async def _stop(self, warden: Warden) -> None:
        send(warden, signal.SIGTERM)
        if await _happens(warden.ended, self._kill_grace + WARDEN_SLACK):
            return
        # Hung or stopped. What is below it goes first: once it is dead they are not its descendants any more.
        handle = os.dup(warden.pidfd)
        await self._in_worker(lambda: _kill_below(warden.pid, handle))
        send(warden, signal.SIGKILL)
        if not await _happens(warden.ended, DEATH_SECONDS):
            raise Transient(f"the warden of {warden.agent_id} (pid {warden.pid}) does not die")

    async def _kill_strays(self, traits: strays.Traits) -> None:
        until = self._clock.monotonic() + DEATH_SECONDS
        while met := await self._in_worker(lambda: strays.kill(traits)):
            if self._clock.monotonic() >= until:
                names = ", ".join(strays.name(pid) for pid in met[:5])
                raise Transient(f"{len(met)} processes of {traits.agent_id} are still alive: {names}")
            await self._clock.sleep(STRAY_PAUSE)

    def _forget(self, agent_id: AgentId) -> None:
        self._reported.discard(agent_id)
        if self._slots is not None:
            self._slots.give_back(agent_id)

    # --- finding -----------------------------------------------------------------------------------------------

    def _scan(self) -> tuple[_Found, ...]:
        return tuple(found for path in _directories(self.root) if (found := self._found(Place(path=path))) is not None)

    def _found(self, place: Place) -> _Found | None:
        """None for what is not ours or cannot be read."""
        journal = place.journal()
        if journal is None or journal.cluster_id != self.cluster_id or journal.agent_id != place.path.name:
            return None
        identity = place.identity()
        pidfd = None if identity is None else place.open_warden(identity)
        if pidfd is not None:
            detail = ""
        elif identity is None:
            detail = "its creation was cut short"
        else:
            detail = _end_of(place)
        return _Found(journal=journal, identity=identity, pidfd=pidfd, detail=detail)

    def _listed(self, found: _Found) -> Instance:
        """As a caller sees it; a living warden is adopted on the way."""
        agent_id = found.journal.agent_id
        running = found.pidfd is not None
        if found.pidfd is not None and found.identity is not None:
            self._take(agent_id, found.identity.pid, found.pidfd)
        elif agent_id in self._creating:
            running = True
        return Instance(
            agent_id=agent_id,
            pool=found.journal.pool,
            provider_id="" if found.identity is None else _provider_id(found.identity),
            ended=not running,
            detail="" if running else found.detail,
        )

    async def _adopt_all(self, on_ending: Callable[[Ending], None]) -> None:
        """Of what an earlier coordinator left: watch what lives, report what has ended, also to a later watcher."""
        for instance in await self.list():
            if not instance.ended or instance.agent_id in self._clearing:
                continue
            ending = Ending(agent_id=instance.agent_id, detail=instance.detail)
            if instance.agent_id in self._reported:
                on_ending(ending)
            else:
                self._report(ending)

    async def _adopt(self, place: Place) -> Warden | None:
        identity = await self._in_worker(place.identity)
        pidfd = None if identity is None else await self._in_worker(lambda: place.open_warden(identity))
        if identity is None or pidfd is None:
            return None
        return self._wardens.adopt(AgentId(place.path.name), identity.pid, pidfd)

    def _take(self, agent_id: AgentId, pid: int, pidfd: int) -> None:
        if self._closed:
            os.close(pidfd)
        else:
            self._wardens.adopt(agent_id, pid, pidfd)

    def _on_warden_end(self, agent_id: AgentId) -> None:
        if agent_id not in self._clearing and agent_id not in self._creating:
            self._report(Ending(agent_id=agent_id, detail=_end_of(self._place(agent_id))))

    def _report(self, ending: Ending) -> None:
        """Once per instance: it may be seen to end and be found ended."""
        if ending.agent_id in self._reported:
            return
        self._reported.add(ending.agent_id)
        for watcher in self._watchers:
            watcher(ending)

    # --- plumbing ----------------------------------------------------------------------------------------------

    def _place(self, agent_id: AgentId) -> Place:
        if not agent_id or "/" in agent_id or agent_id.startswith("."):
            raise Misconfigured(f"{agent_id!r} is no agent id")
        return Place(path=self.root / agent_id)

    def _groups(self) -> cgroups.Cgroups:
        if self._host_cgroups is None:
            self._host_cgroups = cgroups.discover()
        return self._host_cgroups

    async def _in_worker(self, work: Callable[[], T]) -> T:
        if self._stopped:
            raise Transient("the process backend is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._workers, work)
        except OSError as error:
            raise sentences.system_error(error.errno or 0, f"use {error.filename or self.root}") from None

    async def _locked(self, agent_id: AgentId, work: Coroutine[object, object, T]) -> T:
        try:
            async with self._turns.of(agent_id):
                return await work
        finally:
            work.close()

    def _task(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._settle)
        return task

    def _settle(self, task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Looked at, whether or not somebody still waits for it.
            task.exception()

    async def _bounded(self, task: asyncio.Task[T], deadline: float, late: str) -> T:
        try:
            return await asyncio.wait_for(asyncio.shield(task), deadline)
        except TimeoutError:
            raise Transient(f"{late} within {deadline:g} s") from None


def _directories(root: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _provider_id(identity: Identity) -> str:
    return f"{identity.pid}.{identity.start}"


def _remove(place: Place, traits: strays.Traits) -> None:
    for path in traits.cgroups:
        cgroups.remove(path)
    removal.remove_tree(str(place.path), last=(JOURNAL,))


def _kill_below(pid: int, handle: int) -> None:
    try:
        killing.freeze_and_kill(pid, handle)
    finally:
        os.close(handle)


def _end_of(place: Place) -> str:
    return sentences.ending(place.exit_record(), place.last_words())


async def _happens(event: asyncio.Event, patience: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), patience)
    except TimeoutError:
        return False
    return True


def _answer(ready: asyncio.Future[bytes], fd: int) -> None:
    if not ready.done():
        ready.set_result(os.read(fd, 4096))
