# SPDX-License-Identifier: Apache-2.0
"""Lines of a file that a guest appends to: bounded whatever it does. See docs/file-tail.md."""

from corral.backends.tail.batch import Position
from corral.backends.tail.bounds import STANDARD, Bounds
from corral.backends.tail.errors import TailRefused, TailUnavailable
from corral.backends.tail.records import Cut, Dropped, Notice, Record, Rewritten, Tally
from corral.backends.tail.start import Start
from corral.backends.tail.tail import Tail, tail_file
from corral.backends.tail.watching import Watcher

__all__ = [
    "STANDARD",
    "Bounds",
    "Cut",
    "Dropped",
    "Notice",
    "Position",
    "Record",
    "Rewritten",
    "Start",
    "Tail",
    "TailRefused",
    "TailUnavailable",
    "Tally",
    "Watcher",
    "tail_file",
]
