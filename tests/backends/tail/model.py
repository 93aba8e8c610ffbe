# SPDX-License-Identifier: Apache-2.0
"""The specification in ten lines: what a tail yields, given what it has read and what was taken."""

from __future__ import annotations

from corral.backends.tail import Bounds


class Model:
    def __init__(self, bounds: Bounds) -> None:
        self.bounds, self.queue, self.line, self.skip = bounds, list[bytes](), b"", False
        self.lost, self.told = 0, 0

    def read(self, data: bytes) -> None:
        for byte in data:
            if byte == 10:
                self.push(self.line)
                self.line, self.skip = b"", False
            elif not self.skip:
                self.line += bytes([byte])
                if len(self.line) > self.bounds.line_bytes:
                    self.push(self.line[:-1] + b" [truncated]")
                    self.line, self.skip = b"", True

    def push(self, line: bytes) -> None:
        self.queue += [line] if line else []
        while len(self.queue) + (self.lost > self.told) > self.bounds.queued_lines or (
            sum(map(len, self.queue)) > self.bounds.queued_bytes
        ):
            self.queue.pop(0)
            self.lost += 1

    def take(self) -> bytes | None:
        if self.lost > self.told:
            self.told = self.lost
            return b"[dropped %d lines]" % self.lost
        return self.queue.pop(0) if self.queue else None

    def take_all(self) -> list[bytes]:
        return list(iter(self.take, None))

    def stop(self) -> list[bytes]:
        self.push(self.line)
        self.line = b""
        return self.take_all()
