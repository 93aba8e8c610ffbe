# SPDX-License-Identifier: Apache-2.0
"""A streaming masker: secrets in, bytes in, bytes out with every occurrence of a secret replaced.

What is masked of a secret: its whole value, each line of a multi-line value, and its base64 (every alignment),
URL-encoded and JSON-escaped forms. Occurrences may overlap; every byte that any of them covers is hidden, and each
run of overlapping occurrences becomes one :data:`MASK`.

The output does not depend on how the input was cut: bytes at the end that could be the beginning of a secret are
held back (at most the longest form's length − 1) until it is clear whether they are. Pure: no IO, no clock.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

MASK = b"***"
LINE_MINIMUM = 6
"""Characters that a line of a multi-line secret has to have to be masked alone: shorter ones (``{``, ``---``) stand
in any log and would only hide it."""
ENCODED_MINIMUM = 4
"""Bytes that a secret has to have for its encoded forms to be masked: those of fewer are found everywhere."""
BASE64_MINIMUM = 8
"""Characters of the part of a base64 text that is the same whatever stands before and after the secret."""


def forms(value: str) -> frozenset[bytes]:
    """Every byte string that shows ``value``. Empty for an empty or blank one."""
    if not value.strip():
        return frozenset()
    stripped = value.strip("\r\n")
    lines = stripped.splitlines()
    wholes = {value, stripped}
    if len(lines) > 1:
        wholes |= {line.strip() for line in lines if len(line.strip()) >= LINE_MINIMUM}
        wholes.add("\r\n".join(lines))
    found: set[bytes] = set()
    for whole in wholes:
        found |= _forms_of(whole)
    return frozenset(found)


def _forms_of(text: str) -> set[bytes]:
    raw = text.encode("utf-8", "surrogateescape")
    found = {raw}
    if len(raw) >= ENCODED_MINIMUM:
        found |= _base64_forms(raw)
        found |= {quote(raw, safe="").encode(), quote(raw).encode(), quote_plus(raw).encode()}
        found.add(json.dumps(text)[1:-1].encode())
    return found


def _base64_forms(raw: bytes) -> set[bytes]:
    found: set[bytes] = set()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(raw)
        found |= {whole, whole.rstrip(b"=")}
        for before in range(3):
            stable = _stable(encode(b"\0" * before + raw), before, len(raw))
            if len(stable) >= BASE64_MINIMUM:
                found.add(stable)
    return found


def _stable(encoded: bytes, before: int, length: int) -> bytes:
    """The characters whose six bits all come from the secret."""
    first = -(-before * 8 // 6)
    last = (before + length) * 8 // 6
    return encoded[first:last]


class Masker:
    """One stream. Adding a secret later never takes an earlier one away."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._patterns: tuple[bytes, ...] = ()
        self._needles: tuple[tuple[bytes, tuple[bytes, ...]], ...] = ()
        """Patterns that contain no other, each with those that contain it: where none of them occurs, nothing does."""
        self._held = b""
        self._covered = 0
        """How many bytes at the start of ``_held`` an occurrence covers whose mask is already written."""
        for value in values:
            self.add(value)

    def add(self, value: str) -> None:
        """Mask ``value`` from here on."""
        patterns = {*self._patterns, *forms(value)}
        self._patterns = tuple(sorted(patterns))
        needles = [p for p in self._patterns if not any(q in p for q in patterns if q != p)]
        self._needles = tuple((n, tuple(p for p in self._patterns if n in p)) for n in needles)

    def feed(self, data: bytes) -> bytes:
        """The masked bytes that are certain after ``data``."""
        if not self._patterns:
            held, self._held = self._held, b""
            return held + data
        return self._advance(self._held + data, final=False)

    def flush(self) -> bytes:
        """The rest: nothing more will come."""
        return self._advance(self._held, final=True)

    def _advance(self, text: bytes, *, final: bool) -> bytes:
        safe = len(text) if final else self._certain(text)
        spans = self._occurrences(text, safe)
        out: list[bytes] = []
        position = self._covered
        for start, end in spans:
            if start >= position:
                out += (text[position:start], MASK)
            position = max(position, end)
        if position < safe:
            out.append(text[position:safe])
        self._covered = max(0, position - safe)
        self._held = text[safe:]
        return b"".join(out)

    def _occurrences(self, text: bytes, before: int) -> list[tuple[int, int]]:
        """Every occurrence that starts below ``before``, by start."""
        present = {pattern for needle, patterns in self._needles if needle in text for pattern in patterns}
        spans = set()
        for pattern in present:
            at = text.find(pattern)
            while 0 <= at < before:
                spans.add((at, at + len(pattern)))
                at = text.find(pattern, at + 1)
        return sorted(spans)

    def _certain(self, text: bytes) -> int:
        """Where the longest end of ``text`` begins that could become an occurrence."""
        earliest = len(text)
        for pattern in self._patterns:
            at = max(0, len(text) - len(pattern) + 1)
            at = text.find(pattern[:1], at, earliest)
            while at >= 0:
                if pattern.startswith(text[at:]):
                    earliest = at
                    break
                at = text.find(pattern[:1], at + 1, earliest)
        return earliest
