# SPDX-License-Identifier: Apache-2.0
"""Waking tails: one inotify instance and one timer for all tails of an event loop.

inotify watches are one-shot: the kernel says "something happened" once and is asked again only after the
file was read to its end. However fast a guest writes, renames or truncates, it causes one event per look of
ours, so its writing cannot flood this process with events. Every watch is also backed by the timer, because
an event can be missed: an armed file is looked at every ``SWEEP_TICKS``, and one whose event did not come
is polled from then on until an event comes. Files without a watch (none to be had, or a file system that
has none) are polled each tick.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from asyncinotify import Inotify, Watch

# Seconds. What a reader of a log takes for "at once" where inotify does not work.
POLL_INTERVAL = 0.1
# Ticks, so one second: as often as GNU tail looks at names. 1,000 files then cost 1,000 full looks a second,
# under 1 % of a core.
SWEEP_TICKS = 10
# Events read at once; one-shot watches keep the queue short anyway.
_EVENT_CACHE = 64


class Watched(Protocol):
    """What a seat looks after."""

    def look(self) -> bool:
        """Has the size changed, or what stands at the path? Quick, and never raises."""


class Seat:
    """One tail's place at the watcher."""

    def __init__(self, *, watcher: Watcher, watched: Watched, wake: Callable[[], None], phase: int) -> None:
        self._watcher = watcher
        self.watched = watched
        self.wake = wake
        self.phase = phase
        self.watch: Watch | None = None
        self.doubted = False
        self.restless = True
        self.fd: int | None = None
        self.offset = 0

    @property
    def armed(self) -> bool:
        """True where inotify will tell, as far as is known."""
        return self.watch is not None and not self.doubted

    def arm(self, fd: int, offset: int) -> None:
        """Ask to be woken when the open file's size is not ``offset``; look at it once more after this."""
        self.fd, self.offset = fd, offset
        if self.watch is None:
            self.watch = self._watcher.add_watch(self, fd)
        self._watcher.sort(self)

    def rest_is(self, *, uneasy: bool) -> None:
        """``uneasy``: what is waited for comes at the path, where no watch is: a full look every tick."""
        if uneasy != self.restless:
            self.restless = uneasy
            self._watcher.sort(self)

    def disarm(self) -> None:
        """The file that was asked about is not the one any more."""
        self._watcher.forget(self)

    def leave(self) -> None:
        """Not woken any more."""
        self._watcher.remove(self)


class Watcher:
    """Wakes the tails of one event loop.

    :param interval: seconds between two ticks.
    :param inotify: False polls only.
    """

    def __init__(self, *, interval: float = POLL_INTERVAL, inotify: bool = True) -> None:
        self._interval = interval
        self._wanted = inotify
        self._inotify: Inotify | None = None
        self._by_watch: dict[int, set[Seat]] = {}
        self._seats: dict[Seat, None] = {}
        # The seats again, by what a tick has to do with them: 1,000 armed ones cost it nothing. Polled ones
        # by descriptor, with the size expected: going through objects instead costs twice as much.
        self._glanced: dict[int, tuple[int, Seat]] = {}
        self._restless: dict[Seat, None] = {}
        self._swept: list[dict[Seat, None]] = [{} for _ in range(SWEEP_TICKS)]
        self._timer: asyncio.TimerHandle | None = None
        self._tick = 0

    @classmethod
    def of_running_loop(cls) -> Watcher:
        """The one that all tails of this loop share."""
        return _shared.setdefault(asyncio.get_running_loop(), cls())

    @property
    def seats(self) -> int:
        return len(self._seats)

    @property
    def armed(self) -> int:
        """How many seats inotify looks after."""
        return sum(seat.armed for seat in self._seats)

    def join(self, watched: Watched, wake: Callable[[], None]) -> Seat:
        seat = Seat(watcher=self, watched=watched, wake=wake, phase=len(self._seats) % SWEEP_TICKS)
        self._seats[seat] = None
        self._swept[seat.phase][seat] = None
        self.sort(seat)
        if self._timer is None:
            self._start()
        return seat

    def remove(self, seat: Seat) -> None:
        self.forget(seat)
        self._seats.pop(seat, None)
        self._swept[seat.phase].pop(seat, None)
        self._restless.pop(seat, None)
        if not self._seats:
            self._stop()

    def sort(self, seat: Seat) -> None:
        """Poll the seat, or leave it to inotify and the sweep."""
        if seat.restless and seat in self._seats:
            self._restless[seat] = None
        else:
            self._restless.pop(seat, None)
        if seat.fd is None:
            return
        if seat.armed:
            self._glanced.pop(seat.fd, None)
        else:
            self._glanced[seat.fd] = (seat.offset, seat)

    def add_watch(self, seat: Seat, fd: int) -> Watch | None:
        """The watch; ``None`` where the system has none to give: the seat is polled."""
        if self._inotify is None:
            return None
        from asyncinotify import Mask

        mask = Mask.MODIFY | Mask.ATTRIB | Mask.MOVE_SELF | Mask.DELETE_SELF | Mask.ONESHOT
        try:
            # By descriptor: the path may already lead to another file.
            watch = self._inotify.add_watch(f"/proc/self/fd/{fd}", mask)
        except OSError:
            return None
        self._by_watch.setdefault(watch.wd, set()).add(seat)
        return watch

    def _start(self) -> None:
        self._open()
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._on_tick)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None
        self._by_watch.clear()

    def _open(self) -> None:
        if not self._wanted:
            return
        try:
            from asyncinotify import Inotify
        except (ImportError, RuntimeError):
            # Not on this system at all.
            self._wanted = False
            return
        with suppress(OSError):
            self._inotify = Inotify(cache_size=_EVENT_CACHE, sync_timeout=0)
            os.set_blocking(self._inotify.fd, False)
            asyncio.get_running_loop().add_reader(self._inotify.fd, self._on_events)

    def _on_events(self) -> None:
        inotify = self._inotify
        while inotify is not None and (event := inotify.sync_get()) is not None:
            if event.watch is not None:
                self._fire(event.watch.wd)
            elif event.mask & _Q_OVERFLOW:
                for watch in list(self._by_watch):
                    self._fire(watch)

    def _fire(self, watch: int) -> None:
        for seat in self._by_watch.pop(watch, ()):
            seat.watch = None
            seat.doubted = False
            self.sort(seat)
            seat.wake()

    def forget(self, seat: Seat) -> None:
        watch, seat.watch, seat.doubted = seat.watch, None, False
        if seat.fd is not None:
            self._glanced.pop(seat.fd, None)
            seat.fd = None
        if watch is None:
            return
        sharers = self._by_watch.get(watch.wd, set())
        sharers.discard(seat)
        if sharers or self._inotify is None:
            return
        self._by_watch.pop(watch.wd, None)
        # Refused where the watch has fired meanwhile; its event then finds nobody and is nothing.
        with suppress(OSError):
            self._inotify.rm_watch(watch)

    def _on_tick(self) -> None:
        self._tick += 1
        if self._inotify is None:
            if self._tick % SWEEP_TICKS == 0:
                self._open()
        else:
            # What is already told is not missed.
            self._on_events()
        for seat in self._grown():
            self._found(seat)
        for seat in (*self._restless, *self._swept[self._tick % SWEEP_TICKS]):
            if seat.watched.look():
                self._found(seat)
        if self._seats:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._on_tick)

    def _grown(self) -> list[Seat]:
        """The polled seats whose file has another size than the one they rest at."""
        seek, end = os.lseek, os.SEEK_END
        try:
            return [seat for fd, (size, seat) in self._glanced.items() if seek(fd, 0, end) != size]
        except OSError:
            # Which one it was, their own look will tell.
            return [seat for _, seat in self._glanced.values()]

    def _found(self, seat: Seat) -> None:
        """A look found what no event has told."""
        seat.doubted = seat.watch is not None
        self.sort(seat)
        seat.wake()


_Q_OVERFLOW = 0x4000
_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, Watcher] = WeakKeyDictionary()
