# SPDX-License-Identifier: Apache-2.0
"""A run as it goes, on standard error: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import re
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from corral.cli.failing import say
from corral.cli.output import COLOURS, clean, seconds
from corral.cli.summary import note
from corral.runtime.clock import Clock, parse_rfc3339

if TYPE_CHECKING:
    from corral.model.views import JobView, RunView

REFRESH = 8.0
"""Pictures per second: elapsed times move smoothly, at next to no cost."""
_RICH_COLOURS = {"32": "green", "31": "red", "33": "yellow", "36": "cyan", "2": "dim"}

_NUMBER = re.compile(r"\d+")


class Screen(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(self, run: RunView) -> None:
        """The run as it is now."""
        ...

    def tell(self, message: str) -> None:
        """A sentence that stays."""
        ...


def screen(clock: Clock, *, quiet: bool = False) -> Screen:
    """What fits standard error. ``quiet``: sentences only."""
    if quiet:
        return Silent()
    live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return Live(clock) if live else Lines(clock)


class Silent:
    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, run: RunView) -> None:
        pass

    def tell(self, message: str) -> None:
        say(message)


class Lines(Silent):
    """One line for each change of a job's state."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = clock.monotonic()
        self._seen: dict[str, tuple[str, int, str]] = {}

    def show(self, run: RunView) -> None:
        for job in run.jobs:
            # An offer lasts milliseconds and says nothing to a reader.
            # Numbers in the reason count down; the reason itself is news.
            now = (job.state, job.attempt, _NUMBER.sub("", job.waiting_for))
            if job.state in ("waiting", "offered") or self._seen.get(job.id) == now:
                continue
            self._seen[job.id] = now
            self._line(job)

    def _line(self, job: JobView) -> None:
        took = f" after {seconds(job.total)}" if job.total is not None and job.finished_at else ""
        attempt = f" (attempt {job.attempt})" if job.attempt > 1 else ""
        why = f": {note(job)}" if note(job) else ""
        say(f"{self._clock.monotonic() - self._start:6.1f}s  {clean(job.name)}  {job.state}{attempt}{took}{why}")


class Live(Silent):
    """A table that is painted over: jobs, states, elapsed, last line."""

    def __init__(self, clock: Clock) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._clock = clock
        self._run: RunView | None = None
        self._console = Console(stderr=True, no_color=bool(os.environ.get("NO_COLOR")) or None)
        self._live = RichLive(
            console=self._console,
            refresh_per_second=REFRESH,
            transient=True,
            get_renderable=self._picture,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, run: RunView) -> None:
        self._run = run

    def tell(self, message: str) -> None:
        self._live.console.print(message, markup=False, highlight=False)

    def _picture(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        run = self._run
        if run is None:
            return Text("starting…")
        table = Table(box=None, pad_edge=False, expand=True, show_header=False)
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=40)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        jobs, hidden = _visible(run, max(3, self._console.size.height - 4))
        for job in jobs:
            colour = _RICH_COLOURS.get(COLOURS.get(job.state, ""), "")
            table.add_row(
                Text(clean(job.name)), Text(job.state, colour), Text(self._elapsed(job)), Text(_last(job), "dim")
            )
        if hidden:
            table.add_row(Text(f"… {hidden} more", "dim"), "", "", "")
        head = f"run {run.id}  {run.state}  {run.jobs_finished}/{run.jobs_total} jobs"
        table.title, table.title_justify, table.title_style = Text(head, "bold"), "left", ""
        return table

    def _elapsed(self, job: JobView) -> str:
        if job.finished_at or job.started_at is None:
            return seconds(job.running) if job.running is not None else ""
        return seconds(max(0.0, (self._clock.now() - parse_rfc3339(job.started_at)) / 1e6))


def _visible(run: RunView, rows: int) -> tuple[list[JobView], int]:
    """What fits the screen: what goes on first, then what is next, then what has ended."""
    if len(run.jobs) <= rows:
        return list(run.jobs), 0
    order = {"running": 0, "cancelling": 0, "offered": 1, "queued": 1, "failed": 2}
    chosen = sorted(run.jobs, key=lambda job: order.get(job.state, 3))[:rows]
    kept = {job.id for job in chosen}
    return [job for job in run.jobs if job.id in kept], len(run.jobs) - rows


def _last(job: JobView) -> str:
    if job.state in ("running", "cancelling"):
        return clean(job.last_line)
    return note(job)
