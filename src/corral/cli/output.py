# SPDX-License-Identifier: Apache-2.0
"""Printing: standard output is pure data, as a table for people or JSON for programs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

COLOURS = {
    "succeeded": "32",
    "online": "32",
    "failed": "31",
    "lost": "31",
    "cancelled": "33",
    "cancelling": "33",
    "skipped": "2",
    "running": "36",
    "offered": "36",
}
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0a-\x1f\x7f-\x9f\x1b]")


def clean(text: str) -> str:
    """``text`` without what could move a terminal's cursor or colour: names and log lines are strangers' words."""
    return _CONTROL.sub("", text.replace("\t", " "))


def write(text: str) -> None:
    """A line of data."""
    sys.stdout.write(text + "\n")


def write_json(value: Any) -> None:
    """``value`` as indented JSON."""
    write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def write_json_line(value: Any) -> None:
    """``value`` as one line of JSON, for streams."""
    write(msgspec.json.encode(value).decode())
    sys.stdout.flush()


def coloured(stream: Any) -> bool:
    """Colours only on a terminal, and only where nobody asked for none."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns; a state is coloured on a terminal. The last column is not padded."""
    lines = [[clean(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    paint = coloured(sys.stdout)
    return "\n".join(_line(line, widths, paint) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int], paint: bool) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    padded[-1] = cells[-1]
    if paint:
        padded = [painted(cell, text) for cell, text in zip(cells, padded, strict=True)]
    return "  ".join(padded).rstrip()


def painted(state: str, text: str) -> str:
    colour = COLOURS.get(state)
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text


def seconds(value: float | None) -> str:
    """``4.2s``, ``3m07s``, ``2h05m``; ``-`` for what did not get that far."""
    if value is None:
        return "-"
    if value < 60:
        return f"{value:.1f}s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def moment(text: str | None) -> str:
    """An RFC 3339 time to the second."""
    return f"{text[:10]} {text[11:19]}Z" if text else "-"
