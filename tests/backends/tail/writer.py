# SPDX-License-Identifier: Apache-2.0
"""A hostile writer, run as a process of its own: ``python writer.py MODE PATH SEED``.

Every good line is ``checksum:number:noise``; the noise is any bytes but LF, so mostly no UTF-8. It is written
in pieces cut at any byte. Prints how many lines it wrote.
"""

from __future__ import annotations

import os
import random
import sys
import zlib
from pathlib import Path

LINES = 3000
FLOOD_BYTES = 300 * 1024 * 1024


def line_of(number: int, chance: random.Random) -> bytes:
    noise = chance.randbytes(chance.choice([0, 1, 20, 200, 3000])).replace(b"\n", b"\r")
    body = b"%06d:" % number + noise
    return b"%08x:" % zlib.crc32(body) + body


def is_good(line: bytes) -> bool:
    head, colon, body = line.partition(b":")
    return bool(colon) and len(head) == 8 and head == b"%08x" % zlib.crc32(body)


def number_of(line: bytes) -> int:
    return int(line[9:15])


def reopened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def write_split(fd: int, data: bytes, chance: random.Random) -> None:
    while data:
        size = chance.randint(1, len(data))
        os.write(fd, data[:size])
        data = data[size:]


def disturb(mode: str, path: Path, fd: int, chance: random.Random) -> int:
    """Between two lines: rotate or truncate now and then."""
    if mode == "rotate" and chance.random() < 0.02:
        path.rename(path.with_suffix(".1"))
        os.close(fd)
        return reopened(path)
    if mode == "truncate" and chance.random() < 0.02:
        os.ftruncate(fd, 0)
    return fd


def main(mode: str, path: Path, seed: int) -> None:
    chance = random.Random(seed)
    fd = reopened(path)
    if mode == "flood":
        block = b"".join(b"x" * chance.randint(0, 200) + b"\n" for _ in range(10_000))
        for _ in range(FLOOD_BYTES // len(block)):
            os.write(fd, block)
        print(0)
        return
    for number in range(LINES):
        write_split(fd, line_of(number, chance) + b"\n" * chance.choice([1, 1, 1, 4]), chance)
        fd = disturb(mode, path, fd, chance)
    print(LINES)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
