# SPDX-License-Identifier: Apache-2.0
"""What a step wrote to ``$CORRAL_OUTPUT``. Pure.

``NAME=value`` on one line, or several lines between ``NAME<<WORD`` and ``WORD``. A later value of a name wins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from corral.model.spec import OUTPUT_LIMIT, OUTPUT_VALUE_LIMIT

FRAME_RESERVE = 64 * 1024
"""Bytes of :data:`OUTPUT_LIMIT` left free, so that the report with all outputs still fits one frame."""
FILE_LIMIT = 2 * OUTPUT_LIMIT
"""Bytes of the file that are read at most."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}\Z")


class OutputsInvalid(Exception):
    """The file does not say what it means; ``str`` names the line, the fault and the fix."""


def parse(data: bytes) -> dict[str, str]:
    """:raises OutputsInvalid: with every fault on its own line of the message."""
    if len(data) >= FILE_LIMIT:
        raise OutputsInvalid(f"the output file is larger than {FILE_LIMIT} bytes; store large results elsewhere")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise OutputsInvalid(f"the output file is not UTF-8 at byte {error.start}; encode binary values") from None
    found, faults = _read(text.split("\n"))
    faults += _too_large(found)
    if faults:
        raise OutputsInvalid("\n".join(faults))
    return found


def _read(lines: list[str]) -> tuple[dict[str, str], list[str]]:
    found: dict[str, str] = {}
    faults: list[str] = []
    at = 0
    while at < len(lines):
        line, number = lines[at].rstrip("\r"), at + 1
        at += 1
        if not line.strip():
            continue
        name, separator, rest = _split(line)
        if not _NAME.match(name):
            faults.append(f"line {number}: {line[:60]!r} is no NAME=value and no NAME<<WORD")
        elif separator == "=":
            found[name] = rest
        else:
            end = _end_of(lines, at, rest)
            if end is None:
                faults.append(f"line {number}: {name}<<{rest} has no line {rest!r} after it")
                break
            found[name] = "\n".join(lines[at:end])
            at = end + 1
    return found, faults


def _split(line: str) -> tuple[str, str, str]:
    equals, heredoc = line.find("="), line.find("<<")
    if heredoc >= 0 and (equals < 0 or heredoc < equals) and line[heredoc + 2 :].strip():
        return line[:heredoc], "<<", line[heredoc + 2 :].strip()
    name, separator, value = line.partition("=")
    return (name, "=", value) if separator else ("", "", "")


def _end_of(lines: list[str], start: int, word: str) -> int | None:
    return next((at for at in range(start, len(lines)) if lines[at].rstrip("\r") == word), None)


def _too_large(found: Mapping[str, str]) -> list[str]:
    return [
        f"output {name} has {len(value.encode())} bytes; the limit is {OUTPUT_VALUE_LIMIT}"
        for name, value in found.items()
        if len(value.encode()) > OUTPUT_VALUE_LIMIT
    ] + ([] if (fault := total_fault(found)) is None else [fault])


def total_fault(found: Mapping[str, str]) -> str | None:
    """What is wrong with the sum of these outputs, or None."""
    total = sum(len(name.encode()) + len(value.encode()) for name, value in found.items())
    limit = OUTPUT_LIMIT - FRAME_RESERVE
    return f"all outputs together have {total} bytes; the limit is {limit}" if total > limit else None
