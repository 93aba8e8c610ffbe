# SPDX-License-Identifier: Apache-2.0
"""Reading logs for ``corral logs``: checked, searched, from their end, into files. Nothing is held whole in memory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from corral.model.errors import PermanentError
from corral.model.ids import JobId

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import JobView, StepView

LINE_LIMIT = 64 * 1024
"""Bytes of a line that are searched at once; a longer one is searched in pieces of this size."""
TAIL_BLOCK = 64 * 1024
"""Bytes looked at first from the end of a log; each further look takes twice as many."""
ESCAPE_LIMIT = 512
"""Bytes of an escape sequence that may still be incomplete."""
ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()*+].|[@-Z\\^_])")
"""What moves cursors and sets colours and titles."""


class BadPattern(PermanentError):
    """What is searched for is no regular expression."""

    code = "bad_pattern"


class CannotWrite(PermanentError):
    """A downloaded log cannot be written where it should go."""

    code = "cannot_write"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One step's log of one attempt (None: the latest)."""

    client: Client
    job: JobView
    step: StepView
    attempt: int | None

    def bytes(self, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        return self.client.read_log(
            JobId(self.job.id), step=self.step.index, attempt=self.attempt, start=start, end=end
        )

    @property
    def name(self) -> str:
        return f"{self.job.name}, step {self.step.index}: {self.step.name}"


def incomplete(step: StepView) -> str:
    """What is known to be missing of its log, as a sentence; empty: nothing."""
    if step.log_missing:
        return f"incomplete: {step.log_missing} bytes are missing"
    if step.state == "lost":
        return "incomplete: its agent never reported its end; how many bytes are missing is not known"
    return ""


async def fault(reading: Reading) -> str | None:
    """What is wrong with the log; empty: all of it is as it was printed; None: it is not final, so that cannot be said.

    The whole of it is read and its SHA-256 compared with the one that the agent reported.
    """
    step = reading.step
    if step.log_size is None:
        return incomplete(step) or None
    digest, size = hashlib.sha256(), 0
    async for data in reading.bytes():
        digest.update(data)
        size += len(data)
    if size != step.log_size:
        return f"{size} bytes are stored; {step.log_size} were reported"
    if step.log_digest and digest.hexdigest() != step.log_digest:
        return f"SHA-256 is {digest.hexdigest()}; {step.log_digest} was reported"
    return incomplete(step)


class Plain:
    """Takes escape sequences out of a stream, wherever it is cut."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        text = ESCAPES.sub(b"", self._rest + data)
        begun = text.rfind(b"\x1b")
        # Longer than any sequence that a terminal takes: then it is none.
        cut = begun if begun >= 0 and len(text) - begun <= ESCAPE_LIMIT else len(text)
        self._rest = text[cut:]
        return text[:cut]

    def end(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest


# --- searching ---------------------------------------------------------------------------------------------


def pattern(text: str) -> re.Pattern[bytes]:
    """:raises BadPattern: naming the place."""
    try:
        return re.compile(text.encode())
    except re.error as error:
        raise BadPattern(f"{text!r} is no regular expression: {error}") from None


async def matches(reading: Reading, wanted: re.Pattern[bytes]) -> AsyncIterator[tuple[int, bytes]]:
    """(number from 1, line without its end) of each line that matches; escape sequences are taken out first."""
    number = 0
    async for line, whole in _lines(reading.bytes()):
        number += whole
        plain = ESCAPES.sub(b"", line)
        if wanted.search(plain):
            yield number + (not whole), plain


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[bytes, bool]]:
    """Lines, and whether each ends here: a long one comes in pieces."""
    rest = b""
    async for data in chunks:
        rest += data
        *lines, rest = rest.split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r"), True
        while len(rest) > LINE_LIMIT:
            yield rest[:LINE_LIMIT], False
            rest = rest[LINE_LIMIT:]
    if rest:
        yield rest, True


# --- the end ------------------------------------------------------------------------------------------------


async def tail_start(reading: Reading, lines: int) -> tuple[int, int]:
    """(offset, lines) from which the last ``lines`` lines of the log come; fewer where it has fewer."""
    size = reading.step.log_stored
    block = TAIL_BLOCK
    while True:
        start = max(0, size - block)
        data = b"".join([piece async for piece in reading.bytes(start, size)])
        ends = [found.start() for found in re.finditer(b"\n", data[:-1])]
        if len(ends) >= lines or start == 0:
            break
        block *= 2
    if not data:
        return size, 0
    if len(ends) < lines:
        return 0, len(ends) + 1
    return start + ends[-lines] + 1, lines


# --- files --------------------------------------------------------------------------------------------------


def file_of(directory: Path, reading: Reading) -> Path:
    """``JOB/STEP-NAME.log``, with nothing in a name that could lead elsewhere."""
    return directory / _safe(reading.job.name) / f"{reading.step.index:02d}-{_safe(reading.step.name)}.log"


def _safe(name: str) -> str:
    cleaned = re.sub(r"[^\w.,()+=@-]+", "_", name)[:100].strip(". ")
    return cleaned or "_"


async def save(reading: Reading, path: Path) -> int:
    """Write the log to a file as a whole or not at all; its bytes. :raises CannotWrite: naming the file."""
    size = 0
    with _replaced(path) as file:
        async for data in reading.bytes():
            size += file.write(data)
    return size


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[IO[bytes]]:
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(prefix=f".{path.name[:50]}-", dir=path.parent)
        with os.fdopen(fd, "wb") as file:
            yield file
        Path(temporary).replace(path)
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror}") from None
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
