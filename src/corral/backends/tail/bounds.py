# SPDX-License-Identifier: Apache-2.0
"""What bounds a tail, all in bytes, lines or seconds. Smaller ones serve tests; larger ones cost memory."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The limits of one tail.

    ``line_bytes``: a longer line is cut there and marked; its rest is discarded up to the newline.
    ``read_bytes``: at most this is read at once, so that one tail holds the loop for a millisecond, no more.
    ``queued_lines``, ``queued_bytes``: what waits for the consumer; above either the oldest lines are
    dropped. ``patience``: seconds that the reader holds back, with the queue full, for a consumer that
    still takes lines; then it reads on and drops the oldest until it has caught up with the writer.
    ``None`` waits for ever: nothing is dropped, and the tail may fall behind without limit. 0 drops at once.
    """

    line_bytes: int = 64 * KIB
    read_bytes: int = 1 * MIB
    queued_lines: int = 10_000
    queued_bytes: int = 8 * MIB
    patience: float | None = 0.1

    def __post_init__(self) -> None:
        if self.line_bytes < 1 or self.read_bytes < 1:
            raise ValueError("line_bytes and read_bytes are at least 1")
        if self.queued_lines < 2:
            raise ValueError("queued_lines is at least 2: a marker and the newest line")
        if self.queued_bytes < 2 * self.line_bytes + 32:
            raise ValueError("queued_bytes is at least two lines: what one slice of a read can complete")
        if self.patience is not None and self.patience < 0:
            raise ValueError("patience is not negative")


STANDARD = Bounds()
