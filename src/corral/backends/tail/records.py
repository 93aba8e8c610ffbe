# SPDX-License-Identifier: Apache-2.0
"""What a tail says about itself, so that a line somebody wrote can never pass for it.

A line of the file is a plain ``bytes``. Whatever the tail adds or alters is a :class:`Notice`: the in-band
text, as ``bytes``, with the structured record on it. ``isinstance(line, Notice)`` cannot be forged from
within a file.
"""

from __future__ import annotations

from dataclasses import dataclass

CUT_SUFFIX = b" [truncated]"


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """Lines lost because the consumer was too slow. ``lines`` counts since the tail began, ``since`` since
    the last such notice; ``size`` is the bytes of the ``lines``, terminators not counted."""

    lines: int
    since: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Cut:
    """This line was longer than the limit: its first ``kept`` bytes are shown, the rest is discarded.

    ``offset`` is where the line begins in the file.
    """

    kept: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """The file shrank below what was read (``size`` < ``offset``), or what was read no longer stands in it:
    reading starts again at its beginning."""

    offset: int
    size: int


Record = Dropped | Cut | Rewritten


class Notice(bytes):
    """An in-band text with its structured ``record``."""

    record: Record

    @classmethod
    def of(cls, text: bytes, record: Record) -> Notice:
        notice = cls(text)
        notice.record = record
        return notice


def dropped(record: Dropped) -> Notice:
    return Notice.of(b"[dropped %d lines]" % record.lines, record)


def cut(head: bytes, record: Cut) -> Notice:
    return Notice.of(head + CUT_SUFFIX, record)


def rewritten(record: Rewritten) -> Notice:
    return Notice.of(b"[file truncated]", record)


@dataclass(kw_only=True)
class Tally:
    """Counted since the tail began; read it at any time, do not write it.

    ``bytes_read`` counts what was taken from files, holes that were skipped included; ``discarded_bytes`` the
    rest of cut lines; ``rewrites`` truncations; ``replacements`` new files taken up at the path; ``faults``
    reads or opens that failed and are tried again.
    """

    bytes_read: int = 0
    dropped_lines: int = 0
    dropped_bytes: int = 0
    cut_lines: int = 0
    discarded_bytes: int = 0
    rewrites: int = 0
    replacements: int = 0
    faults: int = 0
