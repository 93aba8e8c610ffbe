# SPDX-License-Identifier: Apache-2.0
"""Logs in a directory: ``ROOT/RUN/JOB.ATTEMPT.STEP.log.zst``, one append-only file each (format: ``logformat``).

The event loop keeps what is *durable* of each log in use (an index); one thread writes (``logwriter``), a few read.
One process per directory.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import zstandard

from corral.model.errors import Refused, StoreUnavailable
from corral.model.ids import RunId
from corral.store import logformat, logwriter
from corral.store.interface import LogInfo, LogKey
from corral.store.logformat import LogDamaged
from corral.store.room import Room

T = TypeVar("T")

QUEUE_BYTES = 64 * 1024 * 1024
"""Bytes accepted and not yet durable, all logs together. Beyond it an append waits: slowness is back-pressure."""
READ_BYTES = logformat.RAW_LIMIT
"""Raw bytes read per hop to a thread and yielded at once."""
READERS = 3
"""Threads that scan, read and verify."""
KEPT_LOGS = 20_000
"""Logs whose index and running digest stay in memory; beyond it the longest unused are found again on disk."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")


@dataclass(eq=False, slots=True)
class _Log:
    """One log in use, as the event loop sees it. ``index`` holds only what is durable."""

    key: LogKey
    path: Path
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from looking at the end to queueing behind it: callers are served in order."""
    loaded: bool = False
    index: logformat.Index = field(default_factory=logformat.Index)
    final: logformat.Final | None = None
    damage: str = ""
    torn: bool = False
    exists: bool = False
    deleted: bool = False
    tail: logwriter.Tail | None = None
    """Made at the first write."""
    queued_end: int = 0
    """Raw size once everything queued is stored."""
    finishing: bool = False
    pending: list[tuple[logwriter.Item, asyncio.Future[None]]] = field(default_factory=list)
    waiters: set[asyncio.Future[None]] = field(default_factory=set)
    users: int = 0

    @property
    def size(self) -> int:
        return self.index.raw_size

    @property
    def idle(self) -> bool:
        return not (self.users or self.pending or self.waiters)

    def info(self) -> LogInfo:
        if self.final is None:
            return LogInfo(size=self.size, final=False, digest="")
        return LogInfo(size=self.size, final=True, digest=self.final.digest.hex())


class LogDirectory:
    """A :class:`~corral.store.interface.LogStore`. Make it inside the event loop that uses it."""

    def __init__(self, root: Path, *, queue_bytes: int = QUEUE_BYTES, kept_logs: int = KEPT_LOGS) -> None:
        self.root = root
        self._kept_logs = kept_logs
        self._loop = asyncio.get_running_loop()
        self._room = Room(queue_bytes)
        self._logs: OrderedDict[LogKey, _Log] = OrderedDict()
        self._by_tail: dict[logwriter.Tail, _Log] = {}
        self._calls: dict[logwriter.Call, asyncio.Future[None]] = {}
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="log-reader")
        self._writer = logwriter.LogWriter(self._from_writer)
        self._closed = False

    @property
    def queued_bytes(self) -> int:
        """Accepted and not durable yet."""
        return self._room.used

    @property
    def kept_logs(self) -> int:
        """Logs in memory."""
        return len(self._logs)

    # --- writing -----------------------------------------------------------------------------------------------

    async def append(self, key: LogKey, offset: int, data: bytes, time: int) -> int:
        with self._using(key) as log:
            async with log.lock:
                await self._load(log)
                done: asyncio.Future[None] | None
                new = self._new_part(log, offset, data)
                if new:
                    await self._prepare(log)
                    await self._room.take(len(new))
                    # Waiting may have let an earlier append fail: then this one does not fit any more.
                    new = self._fitting(log, offset + len(data) - len(new), new)
                    done = self._queue(
                        log, logwriter.Append(tail=_tail(log), offset=log.queued_end, data=new, time=time)
                    )
                    log.queued_end += len(new)
                else:
                    done = log.pending[-1][1] if log.pending and offset + len(data) > log.size else None
            if done is not None:
                await asyncio.shield(done)
            return log.size

    async def finish(self, key: LogKey, missing: int = 0) -> LogInfo:
        with self._using(key) as log:
            async with log.lock:
                await self._load(log)
                if log.final is None and not log.finishing:
                    await self._prepare(log)
                    log.finishing = True
                    self._queue(log, logwriter.Finish(tail=_tail(log), offset=log.queued_end, missing=missing))
                done = log.pending[-1][1] if log.pending else None
            if done is not None:
                await asyncio.shield(done)
            return log.info()

    def _new_part(self, log: _Log, offset: int, data: bytes) -> bytes:
        """What of ``data`` is not stored or queued yet."""
        if offset < 0:
            raise Refused(f"a log starts at 0, not at {offset}")
        new = data[max(log.queued_end - offset, 0) :]
        if new and (log.final is not None or log.finishing):
            raise Refused(f"{_name(log.key)} is final with {log.size} bytes; nothing can be added")
        if offset > log.queued_end:
            raise Refused(f"{_name(log.key)} has {log.queued_end} bytes; {offset} would leave a gap")
        return new

    def _fitting(self, log: _Log, offset: int, new: bytes) -> bytes:
        if offset != log.queued_end or self._closed or log.deleted:
            self._room.give(len(new))
            self._ensure_open()
            self._ensure_kept(log)
            raise StoreUnavailable(logwriter.BEHIND)
        return new

    async def _prepare(self, log: _Log) -> None:
        """Make the log writable: its end, and the digest to go on from."""
        self._ensure_open()
        if log.damage:
            raise LogDamaged(f"{_name(log.key)}: {log.damage}; it can be read up to there, not continued")
        if log.tail is not None:
            return
        tail = logwriter.Tail(path=log.path, exists=log.exists, unclean=log.torn)
        if log.size:
            # All of it is read: the digest of a log is that of its bytes on disk, not of our memory of them.
            tail.digest = await self._in_reader(
                lambda: _with_file(log.path, partial(logformat.digest_of, index=log.index))
            )
        tail.raw_end, tail.file_end = log.size, log.index.file_size
        self._ensure_kept(log)
        log.tail = tail
        self._by_tail[tail] = log

    def _queue(self, log: _Log, item: logwriter.Item) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        done.add_done_callback(_looked_at)
        log.pending.append((item, done))
        self._writer.put(item)
        return done

    def _from_writer(self, outcome: logwriter.Outcome) -> None:
        with suppress(RuntimeError):  # The loop was closed without closing us: nobody is left to hear it.
            self._loop.call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: logwriter.Outcome) -> None:
        first = outcome.items[0]
        if isinstance(first, logwriter.Call):
            _resolve(self._calls.pop(first), outcome)
            return
        log = self._by_tail[first.tail]
        self._room.give(sum(len(item.data) for item in outcome.items if isinstance(item, logwriter.Append)))
        for chunk in outcome.chunks:
            log.index.add(chunk)
        settled, log.pending = log.pending[: len(outcome.items)], log.pending[len(outcome.items) :]
        if outcome.error is not None:
            # What is queued behind a failed part cannot fit; it fails in turn. The next attempt starts here.
            if not log.pending:
                log.queued_end, log.finishing = log.size, False
        else:
            log.exists = True
            log.final = outcome.final or log.final
        for _, done in settled:
            _resolve(done, outcome)
        _wake(log)

    # --- reading -----------------------------------------------------------------------------------------------

    async def info(self, key: LogKey) -> LogInfo:
        with self._using(key) as log:
            await self._loaded(log)
            return log.info()

    async def read(self, key: LogKey, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """:raises LogDamaged: after what could be read before the damage."""
        with self._using(key) as log:
            await self._loaded(log)
            damage = log.damage if end is None else ""
            stop = log.size if end is None else min(end, log.size)
            position = max(start, 0)
            if position < stop:
                fd = await self._in_reader(lambda: os.open(log.path, os.O_RDONLY | os.O_CLOEXEC))
                try:
                    while position < stop:
                        frames = _frames(log.index, position, stop)
                        data = await self._in_reader(partial(_read_frames, fd, frames))
                        piece = data[position - frames[0].raw_offset : stop - frames[0].raw_offset]
                        position += len(piece)
                        yield piece
                finally:
                    os.close(fd)
            if damage:
                raise LogDamaged(f"{_name(key)}: {damage}")

    async def changed(self, key: LogKey, size: int) -> None:
        with self._using(key) as log:
            await self._loaded(log)
            while not (log.size > size or log.final is not None or log.damage or log.deleted or self._closed):
                news: asyncio.Future[None] = self._loop.create_future()
                log.waiters.add(news)
                try:
                    await news
                finally:
                    log.waiters.discard(news)

    async def verify(self, key: LogKey) -> LogInfo:
        """Read all of it from disk and compare with what was promised.

        :raises LogDamaged: some byte is not what was stored.
        """
        with self._using(key) as log:
            await self._loaded(log)
            info = log.info()
            if log.exists:
                await self._in_reader(lambda: _with_file(log.path, lambda fd: _verify(fd, key, info)))
            return info

    # --- the whole of a run ------------------------------------------------------------------------------------

    async def delete_run(self, run_id: RunId) -> int:
        self._ensure_open()
        directory = self.root / _checked(run_id)
        logs = [log for key, log in self._logs.items() if key.run_id == run_id]
        for log in logs:
            del self._logs[log.key]
            log.deleted = True
        freed: list[int] = []

        def work() -> None:
            for tail in tails:
                tail.dead = True
            freed.append(_disk_usage(directory))
            if directory.exists():
                shutil.rmtree(directory)

        tails = tuple(log.tail for log in logs if log.tail is not None)
        call = logwriter.Call(work=work, tails=tails)
        done: asyncio.Future[None] = self._loop.create_future()
        self._calls[call] = done
        self._writer.put(call)
        await asyncio.shield(done)
        for log in logs:
            if log.tail is not None:
                del self._by_tail[log.tail]
            _wake(log)
        return freed[0]

    async def usage(self) -> dict[RunId, int]:
        return await self._in_reader(lambda: _usage(self.root))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._writer.stop)
        self._readers.shutdown(wait=False)
        for log in self._logs.values():
            _wake(log)

    # --- logs in memory ----------------------------------------------------------------------------------------

    @contextmanager
    def _using(self, key: LogKey) -> Iterator[_Log]:
        """The one object for this log; it stays in memory at least as long as somebody uses it."""
        log = self._logs.get(key)
        if log is None:
            log = self._logs[key] = _Log(key=key, path=_path(self.root, key))
        self._logs.move_to_end(key)
        log.users += 1
        try:
            yield log
        finally:
            log.users -= 1
            self._forget_unused()

    def _forget_unused(self) -> None:
        # Two looks per use keep up with one addition per use, whatever some long-used log at the front does.
        for _ in range(2):
            if len(self._logs) <= self._kept_logs:
                return
            key, log = next(iter(self._logs.items()))
            if log.idle:
                del self._logs[key]
                if log.tail is not None:
                    del self._by_tail[log.tail]
            else:
                self._logs.move_to_end(key)

    async def _loaded(self, log: _Log) -> None:
        if not log.loaded:
            async with log.lock:
                await self._load(log)

    async def _load(self, log: _Log) -> None:
        """Find out what is on disk. Called under the log's lock."""
        if log.loaded:
            return
        found = await self._in_reader(lambda: _scan(log.path))
        if found is not None:
            log.exists, log.torn, log.damage = True, found.torn, found.damage
            log.index, log.final = found.index, found.final
        log.queued_end = log.size
        log.loaded = True

    def _ensure_kept(self, log: _Log) -> None:
        if log.deleted:
            raise Refused(f"{_name(log.key)} was deleted with its run")

    def _ensure_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the log store is closed")

    async def _in_reader(self, work: Callable[[], T]) -> T:
        self._ensure_open()
        try:
            return await self._loop.run_in_executor(self._readers, work)
        except OSError as error:
            raise logwriter.unavailable(error) from None


def _tail(log: _Log) -> logwriter.Tail:
    assert log.tail is not None, "prepared before it is written"
    return log.tail


def _wake(log: _Log) -> None:
    for waiter in tuple(log.waiters):
        if not waiter.done():
            waiter.set_result(None)


def _resolve(done: asyncio.Future[None], outcome: logwriter.Outcome) -> None:
    if done.done():
        return
    if outcome.error is None:
        done.set_result(None)
    else:
        done.set_exception(outcome.error)


def _looked_at(done: asyncio.Future[None]) -> None:
    """Whoever waited may have left; the error was theirs."""
    if not done.cancelled():
        done.exception()


def _checked(word: str) -> str:
    if not _NAME.match(word):
        raise Refused(f"{word[:80]!r} is no id")
    return word


def _path(root: Path, key: LogKey) -> Path:
    return root / _checked(key.run_id) / f"{_checked(key.job_id)}.{key.attempt}.{key.step}.log.zst"


def _name(key: LogKey) -> str:
    return f"the log of {key.job_id}, attempt {key.attempt}, step {key.step}"


def _with_file(path: Path, work: Callable[[int], T]) -> T:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return work(fd)
    finally:
        os.close(fd)


def _scan(path: Path) -> logformat.Scanned | None:
    try:
        return _with_file(path, logformat.scan)
    except FileNotFoundError:
        return None


def _frames(index: logformat.Index, position: int, stop: int) -> list[logformat.Frame]:
    """The frames from the one that holds ``position``, as many as READ_BYTES and ``stop`` allow, at least one."""
    number = index.containing(position)
    frames = [index.frame(number)]
    first = frames[0].raw_offset
    while number + 1 < len(index):
        number += 1
        frame = index.frame(number)
        if frame.raw_offset >= stop or frame.raw_offset + frame.raw_length - first > READ_BYTES:
            break
        frames.append(frame)
    return frames


def _read_frames(fd: int, frames: list[logformat.Frame]) -> bytes:
    decompressor = zstandard.ZstdDecompressor()
    return b"".join(logformat.read_frame(fd, frame, decompressor) for frame in frames)


def _verify(fd: int, key: LogKey, info: LogInfo) -> None:
    found = logformat.scan(fd)
    if found.damage or found.index.raw_size < info.size:
        raise LogDamaged(f"{_name(key)}: {found.damage or 'it is shorter than what was stored'}")
    digest = logformat.digest_of(fd, found.index).hexdigest()
    if info.final and digest != info.digest:
        raise LogDamaged(f"{_name(key)}: its bytes do not have the digest it was closed with")


def _usage(root: Path) -> dict[RunId, int]:
    try:
        return {RunId(entry.name): _disk_usage(Path(entry.path)) for entry in os.scandir(root) if entry.is_dir()}
    except FileNotFoundError:
        return {}


def _disk_usage(directory: Path) -> int:
    """Bytes that the files take on disk."""
    try:
        return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in os.scandir(directory))
    except FileNotFoundError:
        return 0
