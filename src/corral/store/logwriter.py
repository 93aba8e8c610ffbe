# SPDX-License-Identifier: Apache-2.0
"""The one thread that writes logs: takes what is queued, writes each log's share, syncs each file once, answers.

While it waits for the disk the next batch gathers, so the busier it is the larger (and cheaper per byte) the
batches are. A log's share is stored whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import zstandard

from corral.model.errors import CorralError, Refused, StoreUnavailable
from corral.store import logformat

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

BATCH_BYTES = 16 * 1024 * 1024
"""Raw bytes taken at once: several sync's worth of work at any disk's speed, and what one batch may hold in memory."""
GROUP_FILES = 128
"""Logs written before the first of them is synced."""
SYNCERS = 8
"""Threads that wait for the disk when several logs were written: on ext4 500 files took 1.4 s one after the other,
0.06 s by eight."""
OPEN_FILES = 2 * GROUP_FILES
"""Descriptors kept for logs being written. Opening one again costs some microseconds."""
BEHIND = "what came before in this log could not be stored; send it again from there"


@dataclass(kw_only=True, eq=False, slots=True)
class Tail:
    """Where one log ends on disk. Belongs to the writer once the first item was queued."""

    path: Path
    raw_end: int = 0
    file_end: int = 0
    digest: Hash = field(default_factory=hashlib.sha256)
    exists: bool = False
    unclean: bool = False
    """Behind ``file_end`` may lie bytes that do not count: cut them off before writing."""
    dead: bool = False
    """The run was deleted."""


@dataclass(kw_only=True, eq=False, slots=True)
class Append:
    """``data`` goes at raw offset ``offset``; ``time`` in microseconds."""

    tail: Tail
    offset: int
    data: bytes
    time: int


@dataclass(kw_only=True, eq=False, slots=True)
class Finish:
    """End the log at raw offset ``offset``, ``missing`` bytes stated as lost."""

    tail: Tail
    offset: int
    missing: int


@dataclass(kw_only=True, eq=False, slots=True)
class Call:
    """Run ``work`` in the writer thread, after everything queued before it."""

    work: Callable[[], None]
    tails: tuple[Tail, ...] = ()
    """Logs whose files are let go of first."""


Item = Append | Finish | Call


@dataclass(kw_only=True, eq=False, slots=True)
class Outcome:
    """What became of the items of one log. ``chunks``: the new frames, durable. Without an error all of it is."""

    items: list[Item]
    chunks: list[logformat.Chunk] = field(default_factory=list)
    final: logformat.Final | None = None
    error: CorralError | None = None


@dataclass(kw_only=True, eq=False, slots=True)
class _Share:
    """One log's part of a batch, and what the log will be like when it is written."""

    tail: Tail
    outcome: Outcome
    fd: int
    raw_end: int
    file_end: int
    digest: Hash
    created: bool


class LogWriter:
    """``on_outcome`` is called in the writer thread, in the order of the items of each log."""

    def __init__(self, on_outcome: Callable[[Outcome], None]) -> None:
        self._on_outcome = on_outcome
        self._queue: deque[Item] = deque()
        self._condition = threading.Condition()
        self._stopping = False
        self._compressor = logformat.new_compressor()
        self._files: OrderedDict[Tail, int] = OrderedDict()
        self._syncers = ThreadPoolExecutor(SYNCERS, thread_name_prefix="log-sync")
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        with self._condition:
            self._queue.append(item)
            self._condition.notify()

    def stop(self) -> None:
        """Return after everything queued is written. Idempotent."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._take():
            for part in _parts(batch):
                if isinstance(part, Call):
                    self._call(part)
                else:
                    self._write(part)
        self._syncers.shutdown()
        for fd in self._files.values():
            os.close(fd)

    def _take(self) -> list[Item]:
        with self._condition:
            while not self._queue and not self._stopping:
                self._condition.wait()
            batch: list[Item] = []
            size = 0
            while self._queue and size < BATCH_BYTES:
                item = self._queue.popleft()
                batch.append(item)
                size += len(item.data) if isinstance(item, Append) else 0
            return batch

    def _call(self, call: Call) -> None:
        for tail in call.tails:
            self._let_go(tail)
        outcome = Outcome(items=[call])
        try:
            call.work()
        except Exception as error:
            outcome.error = _typed(error)
        self._on_outcome(outcome)

    def _write(self, by_log: dict[Tail, list[Item]]) -> None:
        """Write every log's share, then sync them side by side: the file system commits them together."""
        shares = [share for tail, items in by_log.items() if (share := self._share(tail, items)) is not None]
        errors = map(_sync, shares) if len(shares) == 1 else self._syncers.map(_sync, shares)
        for share, error in zip(shares, errors, strict=True):
            self._settle(share, error)

    def _share(self, tail: Tail, items: list[Item]) -> _Share | None:
        """None when it failed; the outcome has been given then."""
        outcome = Outcome(items=items)
        share: _Share | None = None
        try:
            share = self._begin(tail, outcome)
            _put_frames(share, self._compressor)
        except Exception as error:
            # Whatever it is (memory, the compressor), this log's callers hear of it and the thread lives on.
            if share is not None:
                self._undo(share)
            self._fail(outcome, _typed(error))
            return None
        return share

    def _begin(self, tail: Tail, outcome: Outcome) -> _Share:
        if tail.dead:
            raise Refused(f"the log {tail.path.name} was deleted with its run")
        created = not tail.exists
        fd = self._open(tail)
        if tail.unclean:
            os.ftruncate(fd, tail.file_end)
            os.fdatasync(fd)
            tail.unclean = False
        return _Share(
            tail=tail,
            outcome=outcome,
            fd=fd,
            raw_end=tail.raw_end,
            file_end=tail.file_end,
            digest=tail.digest.copy(),
            created=created,
        )

    def _settle(self, share: _Share, error: OSError | None) -> None:
        tail = share.tail
        if error is not None:
            self._undo(share)
            self._fail(share.outcome, unavailable(error))
            return
        tail.raw_end, tail.file_end, tail.digest = share.raw_end, share.file_end, share.digest
        tail.exists = True
        self._on_outcome(share.outcome)

    def _undo(self, share: _Share) -> None:
        """Nothing of it counts: cut it off now, or at the latest before anything is written there again."""
        share.tail.unclean = True
        with contextlib.suppress(OSError):
            os.ftruncate(share.fd, share.tail.file_end)
        self._let_go(share.tail)

    def _fail(self, outcome: Outcome, error: CorralError) -> None:
        outcome.chunks, outcome.final, outcome.error = [], None, error
        self._on_outcome(outcome)

    def _open(self, tail: Tail) -> int:
        fd = self._files.get(tail)
        if fd is not None:
            self._files.move_to_end(tail)
            return fd
        if not tail.exists:
            make_directory(tail.path.parent)
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(tail.path, flags if tail.exists else flags | os.O_CREAT, 0o600)
        self._files[tail] = fd
        while len(self._files) > OPEN_FILES:
            # Never one of the group in hand, which is smaller and was used last.
            _, oldest = self._files.popitem(last=False)
            os.close(oldest)
        return fd

    def _let_go(self, tail: Tail) -> None:
        fd = self._files.pop(tail, None)
        if fd is not None:
            os.close(fd)


def _sync(share: _Share) -> OSError | None:
    """Make it durable, its name too when it is new; what went wrong, if anything."""
    try:
        os.fdatasync(share.fd)
        if share.created:
            sync_directory(share.tail.path.parent)
    except OSError as error:
        return error
    return None


def _parts(batch: list[Item]) -> list[dict[Tail, list[Item]] | Call]:
    """Items grouped by log, in groups whose files can all be open; a call stands between what surrounds it."""
    parts: list[dict[Tail, list[Item]] | Call] = []
    group: dict[Tail, list[Item]] = {}
    for item in batch:
        if isinstance(item, Call):
            parts.extend(part for part in (group, item) if part)
            group = {}
            continue
        if item.tail not in group and len(group) == GROUP_FILES:
            parts.append(group)
            group = {}
        group.setdefault(item.tail, []).append(item)
    return [*parts, group] if group else parts


def _put_frames(share: _Share, compressor: zstandard.ZstdCompressor) -> None:
    """Compress and write the items of one log; nothing is synced yet. :raises StoreUnavailable: they do not fit."""
    frames: list[bytes] = []
    pending: list[Append] = []
    for item in share.outcome.items:
        match item:
            case Append():
                pending.append(item)
            case Finish():
                frames.extend(_frames(share, pending, compressor))
                pending = []
                frames.append(_final(share, item))
            case Call():  # never among them
                continue
    frames.extend(_frames(share, pending, compressor))
    position = share.tail.file_end
    for frame in frames:
        _write_all(share.fd, frame, position)
        position += len(frame)
    share.file_end = position


def _frames(share: _Share, appends: list[Append], compressor: zstandard.ZstdCompressor) -> list[bytes]:
    """The appends as frames of up to RAW_LIMIT bytes, noted in the share."""
    if not appends:
        return []
    starts: list[int] = []
    end = share.raw_end
    for item in appends:
        if item.offset != end or share.outcome.final is not None:
            raise StoreUnavailable(BEHIND)
        starts.append(end)
        end += len(item.data)
    data = appends[0].data if len(appends) == 1 else b"".join(item.data for item in appends)
    share.digest.update(data)
    view = memoryview(data)
    frames: list[bytes] = []
    for at in range(0, len(data), logformat.RAW_LIMIT):
        piece = view[at : at + logformat.RAW_LIMIT]
        time = appends[bisect_right(starts, share.raw_end) - 1].time
        head, body, chunk = logformat.frame(compressor, share.raw_end, piece, time, share.tail.file_end)
        frames.extend((head, body))
        share.outcome.chunks.append(chunk)
        share.raw_end += len(piece)
    return frames


def _final(share: _Share, item: Finish) -> bytes:
    if item.offset != share.raw_end:
        raise StoreUnavailable(BEHIND)
    final = logformat.Final(
        raw_size=share.raw_end, missing=item.missing, synced=share.tail.file_end, digest=share.digest.digest()
    )
    share.outcome.final = final
    return logformat.pack_final(final)


def _write_all(fd: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        view = view[written:]
        position += written


def _typed(error: Exception) -> CorralError:
    if isinstance(error, CorralError):
        return error
    if isinstance(error, OSError):
        return unavailable(error)
    return StoreUnavailable("the log store failed", internal=repr(error))


def unavailable(error: OSError) -> StoreUnavailable:
    """The typed form of what a disk says."""
    why = error.strerror or errno.errorcode.get(error.errno or 0, "unknown")
    return StoreUnavailable(f"the log store cannot be used now: {why}", internal=repr(error))


def make_directory(path: Path) -> None:
    """Make a run's directory durably. :raises OSError: disk."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
