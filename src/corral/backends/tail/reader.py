# SPDX-License-Identifier: Apache-2.0
"""The half of a tail that reads: follows the file, fills the backlog, holds back for a consumer that keeps
up.

Level-triggered: a wake-up only means "look"; every pass reads whatever is there and then looks at the path.
Reads are made in the event loop: at most 1 MiB from the page cache, a fraction of a millisecond; a thread's
hand-over would cost more than it saves.
"""

from __future__ import annotations

import asyncio
import stat
from dataclasses import replace

from corral.backends.tail import records
from corral.backends.tail.backlog import Backlog
from corral.backends.tail.batch import Batch, Position
from corral.backends.tail.bounds import Bounds
from corral.backends.tail.errors import TailRefused, TailUnavailable
from corral.backends.tail.records import Rewritten, Tally
from corral.backends.tail.source import Look, OpenFile, Place, require_regular
from corral.backends.tail.splitter import BATCH_LINES, Splitter
from corral.backends.tail.start import Start, first_position
from corral.backends.tail.watching import Watcher


class Reader:
    """Reads until ``stop`` is set and everything that was there then is in the backlog."""

    def __init__(
        self,
        *,
        place: Place,
        stop: asyncio.Event,
        create: bool,
        start: Start | Position | int,
        bounds: Bounds,
        watcher: Watcher | None,
        tally: Tally,
    ) -> None:
        self.backlog = Backlog(bounds=bounds, tally=tally)
        self.ended = False
        self.failure: TailRefused | TailUnavailable | None = None
        self._place = place
        self._stop = stop
        self._create = create
        self._start = start
        self._bounds = bounds
        self._watcher = watcher
        self._tally = tally
        self._splitter = Splitter(
            limit=bounds.line_bytes, batch_lines=min(BATCH_LINES, bounds.queued_lines // 2), tally=tally
        )
        self._file: OpenFile | None = None
        self._overrun = False
        self._unyielded = 0
        self._resting = False
        self._task: asyncio.Task[None] | None = None
        # Where reading ends once the stop was seen: a writer that never rests must not hold it up.
        self._last: int | None = None
        # Truncations that are still followed after the stop, for the same reason.
        self._last_restarts = 1
        self._wake = asyncio.Event()
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()

    # -- the consumer's side ---------------------------------------------------------------------

    def begin(self) -> None:
        """Read from now on. May be repeated."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def end(self) -> None:
        """Stop reading at once and free everything. May be repeated.

        :raises Exception: a fault of the reader itself; what it expects is in ``failure``.
        """
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def filled(self) -> None:
        """Returns once something waits in the backlog, or reading has ended."""
        self._filled.clear()
        if self.backlog.empty and not self.ended:
            await self._filled.wait()

    @property
    def resting(self) -> bool:
        """True while all is read and it waits to be woken."""
        return self._resting

    @property
    def astray(self) -> bool:
        """True while a file is read that no longer stands at the path."""
        return self._file is not None and self._seat.restless

    def taken(self) -> None:
        """The consumer has taken a batch: there may be room."""
        self._taken.set()

    # -- the loop --------------------------------------------------------------------------------

    async def _run(self) -> None:
        watcher = self._watcher if self._watcher is not None else Watcher.of_running_loop()
        self._seat = watcher.join(self, self._wake.set)
        stopped = asyncio.ensure_future(self._stop.wait())
        stopped.add_done_callback(lambda _: self._wake.set())
        try:
            await self._follow()
        except (TailRefused, TailUnavailable) as failure:
            await self._flush()
            self.failure = failure
        finally:
            stopped.cancel()
            self._seat.leave()
            self._close()
            self.ended = True
            self._filled.set()

    async def _follow(self) -> None:
        while True:
            self._wake.clear()
            stopping = self._stop.is_set()
            settled = await self._attempt(stopping)
            if stopping:
                await self._flush()
                return
            if settled:
                await self._rest()

    async def _attempt(self, stopping: bool) -> bool:
        """One pass; True where nothing more is to be read at present."""
        try:
            return await self._pass()
        except OSError as error:
            self._tally.faults += 1
            if stopping:
                await self._flush()
                raise TailUnavailable(
                    f"{self._place.path} could not be read to its end ({error.strerror}); lines may be "
                    "missing. Read it again from the tail's position."
                ) from None
            self._seat.rest_is(uneasy=True)
            return True

    async def _rest(self) -> None:
        if self._file is not None:
            self._seat.arm(self._file.fd, self._file.offset)
            # A write between the last read and the arming would wake nobody.
            if self._grew():
                await asyncio.sleep(0)
                return
        self._resting = True
        await self._wake.wait()
        self._resting = False

    async def _pass(self) -> bool:
        if self._file is None and not self._open_first():
            return True
        await self._read_to_end()
        if await self._follow_path():
            await self._read_to_end()
            return False
        return True

    # -- reading ---------------------------------------------------------------------------------

    async def _read_to_end(self) -> None:
        file = self._opened
        while not self._past_last(file):
            if self._splitter.discarding and (skipped := file.skip_hole()):
                self._splitter.skip(skipped)
                self._tally.bytes_read += skipped
                await asyncio.sleep(0)
                continue
            match file.read(self._bounds.read_bytes):
                case Look.END:
                    break
                case Look.REWRITTEN:
                    await self._restart(file)
                case data, start:
                    self._tally.bytes_read += len(data) - start
                    for batch in self._splitter.feed(data, start):
                        await self._put(batch)
                    await asyncio.sleep(0)
        self._overrun = False

    def _past_last(self, file: OpenFile) -> bool:
        if not self._stop.is_set():
            return False
        size = file.size()
        if size < file.offset and self._last_restarts:
            return False
        if self._last is None:
            self._last = size
        return file.offset >= self._last

    async def _restart(self, file: OpenFile) -> None:
        """The file was truncated or rewritten: what stood before is over, and it begins again."""
        await self._flush()
        record = Rewritten(offset=file.offset, size=file.size())
        self._tally.rewrites += 1
        here = replace(self._splitter.at, discarding=False)
        begin = replace(here, offset=0)
        notice = records.rewritten(record)
        await self._put(Batch(start=here, lines=[notice], size=len(notice), end=begin, counted=False))
        file.rewind()
        if self._stop.is_set():
            self._last = None
            self._last_restarts -= 1
        self._splitter.begin(begin)

    async def _flush(self) -> None:
        for batch in self._splitter.flush():
            await self._put(batch)

    async def _put(self, batch: Batch) -> None:
        if not self.backlog.fits(batch) and not self._overrun:
            await self._hold_back(batch)
        self.backlog.put(batch)
        self._filled.set()
        # Tiny lines take longer than their bytes suggest: let others run between batches too.
        self._unyielded += len(batch.lines)
        if self._unyielded > BATCH_LINES:
            self._unyielded = 0
            await asyncio.sleep(0)

    async def _hold_back(self, batch: Batch) -> None:
        """Wait for a consumer that takes lines; one that does not within the patience loses the oldest."""
        if self._bounds.patience == 0:
            self._overrun = True
            return
        try:
            async with asyncio.timeout(self._bounds.patience):
                while not self.backlog.fits(batch) and not self.backlog.empty:
                    self._taken.clear()
                    await self._taken.wait()
        except TimeoutError:
            # Where this whole process was paused, the consumer has had its turn by now, and no time before.
            self._overrun = not self.backlog.fits(batch)

    # -- which file ------------------------------------------------------------------------------

    @property
    def _opened(self) -> OpenFile:
        assert self._file is not None
        return self._file

    def _open_first(self) -> bool:
        fd = self._place.open(create=self._create)
        if fd is None:
            # Whatever appears now is new: it is read from its beginning.
            if not isinstance(self._start, Position):
                self._start = Start.BEGINNING
            return False
        file = OpenFile(fd=fd)
        position, lost = first_position(self._start, file)
        self._adopt(file, position)
        if lost is not None:
            self._splitter.begin(replace(position, offset=lost))
            file.offset = lost
        return True

    async def _follow_path(self) -> bool:
        """True where another file stands at the path and is followed from now on.

        The old file is left only once the new one holds something: until then its writer, told to reopen
        its log or not yet, may still write to the old one.
        """
        status = self._place.status()
        if status is not None:
            require_regular(status, self._place.path)
        ours = self._opened.id
        here = status is not None and ours.is_of(status)
        self._seat.rest_is(uneasy=not here)
        if here or status is None or status.st_size == 0:
            return False
        fd = self._place.open(create=False)
        if fd is None:
            return False
        successor = OpenFile(fd=fd)
        if successor.id == ours:
            successor.close()
            return False
        try:
            await self._read_to_end()
            await self._flush()
        except BaseException:
            successor.close()
            raise
        self._tally.replacements += 1
        self._last = None
        self._adopt(successor, _beginning(successor))
        return True

    def _adopt(self, file: OpenFile, position: Position) -> None:
        self._close()
        self._file = file
        file.offset = position.offset
        self._splitter.begin(position)
        self._seat.rest_is(uneasy=False)

    def _close(self) -> None:
        if self._file is not None:
            self._seat.disarm()
            self._file.close()
            self._file = None

    # -- what the watcher asks -------------------------------------------------------------------

    def look(self) -> bool:
        """True where the size changed, or another file (or none) stands at the path than before."""
        if self._file is None:
            return True
        try:
            status = self._place.status()
        except (OSError, TailRefused):
            return True
        if status is None:
            return not self._seat.restless or self._grew()
        if self._file.id.is_of(status):
            return self._seat.restless or status.st_size != self._file.offset
        news = status.st_size > 0 or not stat.S_ISREG(status.st_mode)
        return not self._seat.restless or news or self._grew()

    def _grew(self) -> bool:
        try:
            return self._opened.has_news()
        except OSError:
            return True


def _beginning(file: OpenFile) -> Position:
    return Position(device=file.id.device, inode=file.id.inode, offset=0)
