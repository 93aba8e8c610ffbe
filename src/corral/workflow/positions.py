# SPDX-License-Identifier: Apache-2.0
"""Where in a JSON text a value stands; looked for only after something was found wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]

_SPACE = re.compile(r"[ \t\r\n]*")
_SCALAR = re.compile(r"[^\s,\]}]+")

Path = tuple[str | int, ...]


def line_of(text: str, path: Sequence[str | int]) -> int:
    """The line, from 1, of the key or entry at ``path``, or of the nearest thing around it that exists.

    ``text`` must be valid JSON.
    """
    wanted = tuple(path)
    return lines_of(text, [wanted])[wanted]


def lines_of(text: str, paths: Iterable[Path]) -> dict[Path, int]:
    """:func:`line_of` for many paths in one pass."""
    wanted = set(paths)
    prefixes = {path[:length] for path in wanted for length in range(len(path) + 1)}
    found = {place: position for place, position in _places(text) if place in prefixes}
    return {path: text.count("\n", 0, found[_longest(path, found)]) + 1 for path in wanted}


def _longest(path: Path, found: Mapping[Path, int]) -> Path:
    return next(path[:length] for length in range(len(path), -1, -1) if path[:length] in found)


def _places(text: str) -> Iterator[tuple[Path, int]]:
    """Every key and entry with its position, without recursion: the text may be nested deeply."""
    stack: list[str | int] = []
    position = _skip(text, 0)
    yield (), position
    while position < len(text):
        character = text[position]
        if character in "{[":
            position = _skip(text, position + 1)
            stack.append("" if character == "{" else -1)
            if text[position] in "}]":
                continue
        elif character in "}]":
            stack.pop()
            position = _skip(text, position + 1)
            continue
        elif character == ",":
            position = _skip(text, position + 1)
        else:
            position = _skip(text, _after_scalar(text, position))
            continue
        start = position
        if isinstance(stack[-1], int):
            stack[-1] += 1
        else:
            stack[-1], after = scanstring(text, position + 1)
            position = _skip(text, _skip(text, after) + 1)
        yield tuple(stack), start


def _after_scalar(text: str, position: int) -> int:
    if text[position] == '"':
        return int(scanstring(text, position + 1)[1])
    match = _SCALAR.match(text, position)
    return match.end() if match else position + 1


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position
