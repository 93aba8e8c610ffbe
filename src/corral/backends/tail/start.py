# SPDX-License-Identifier: Apache-2.0
"""Where a tail begins."""

from __future__ import annotations

from enum import Enum

from corral.backends.tail.batch import Position
from corral.backends.tail.source import OpenFile


class Start(Enum):
    """``END``: what the file holds when it is opened is passed over; a file that appears later is all new."""

    BEGINNING = "beginning"
    END = "end"


def first_position(start: Start | Position | int, file: OpenFile) -> tuple[Position, int | None]:
    """Where to begin in ``file``; and the offset that was asked for, where the file no longer reaches it.

    A position in another file than this one means that the path was given a new file since: from its
    beginning.
    """
    size = file.size()
    beginning = Position(device=file.id.device, inode=file.id.inode, offset=0)
    match start:
        case Start.BEGINNING:
            return beginning, None
        case Start.END:
            return _at(beginning, size), None
        case Position() if (start.device, start.inode) != (beginning.device, beginning.inode):
            return beginning, None
        case Position():
            offset, begin = start.offset, start
        case int():
            offset, begin = start, _at(beginning, start)
    if offset > size:
        return beginning, offset
    return begin, None


def _at(beginning: Position, offset: int) -> Position:
    return Position(device=beginning.device, inode=beginning.inode, offset=offset)
