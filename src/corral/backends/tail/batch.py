# SPDX-License-Identifier: Apache-2.0
"""Positions in a file, and lines that travel together with where they stand.

One object per line would cost more than reading it: a batch keeps plain lists and works an offset out on
demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a restart goes on: ``offset`` in bytes inside the file ``inode`` on ``device``.

    ``discarding``: the offset stands inside a line that was cut; the rest up to its newline is not wanted.
    """

    device: int
    inode: int
    offset: int
    discarding: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Lines that follow each other, blank ones left out; never empty.

    ``ends[i]``: offset behind line ``i`` and its newline; ``None`` where no blank lines stand between, so
    that lengths alone give it. ``end`` is where a restart goes on behind the last line. ``counted``: lines
    of the file; a notice about the file is not counted when it is dropped.
    """

    start: Position
    lines: list[bytes]
    size: int
    end: Position
    ends: Sequence[int] | None = None
    counted: bool = True

    def after(self, taken: int) -> Position:
        """Where a restart goes on once the first ``taken`` lines are done with."""
        if taken == 0:
            return self.start
        if taken == len(self.lines):
            return self.end
        return replace(self.start, offset=self._offset_after(taken), discarding=False)

    def _offset_after(self, taken: int) -> int:
        if self.ends is not None:
            return self.ends[taken - 1]
        return self.start.offset + sum(map(len, self.lines[:taken])) + taken

    def without(self, taken: int) -> Batch:
        """The batch behind its first ``taken`` lines (fewer than all)."""
        if taken == 0:
            return self
        gone = self.lines[:taken]
        return Batch(
            start=self.after(taken),
            lines=self.lines[taken:],
            size=self.size - sum(map(len, gone)),
            end=self.end,
            ends=None if self.ends is None else self.ends[taken:],
            counted=self.counted,
        )
