# SPDX-License-Identifier: Apache-2.0
"""What a process logs: lines for people, or JSON for a log store, with the ids of what they are about.

Nothing secret leaves here: our own credentials are masked in messages, fields and tracebacks alike, whoever logged
them. A line is one line, whatever a stranger's words contain.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO

import msgspec

from corral.runtime.redaction import redacted

FIELDS = ("run", "job", "agent", "provision", "pool", "coordinator")
"""What a record may be about, in this order."""
FORMAT_VARIABLE = "CORRAL_LOG_FORMAT"
_BY_PREFIX = {"run_": "run", "job_": "job", "agent_": "agent", "coord_": "coordinator"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

_about: ContextVar[Mapping[str, str]] = ContextVar("corral_log_fields", default={})  # noqa: B039  (never changed)
_encoder = msgspec.json.Encoder()


class LogFormat(StrEnum):
    CONSOLE = "console"
    JSON = "json"


def bind(**fields: str) -> None:
    """What this task, and every task it begins, logs is about these from now on."""
    _about.set({**_about.get(), **fields})


@contextlib.contextmanager
def about(**fields: str) -> Iterator[None]:
    """What is logged inside is about these."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


def configure(format: LogFormat, *, verbose: bool, stream: TextIO | None = None) -> None:
    """Send what this process logs to ``stream`` (standard error), in place of whatever was set up before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if format is LogFormat.JSON else ConsoleLines())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.INFO if verbose else logging.WARNING)


def fields_of(record: logging.LogRecord) -> dict[str, str]:
    """What the record is about: what its task is bound to, and the ids among its arguments, which say what they are."""
    found = dict(_about.get())
    arguments = record.args.values() if isinstance(record.args, Mapping) else record.args or ()
    for value in arguments:
        name = _BY_PREFIX.get(value[: value.find("_") + 1]) if isinstance(value, str) else None
        if name is not None:
            found[name] = str(value)
    return {name: redacted(found[name]) for name in FIELDS if name in found}


def escaped(text: str) -> str:
    """``text`` on one line, without what could move a terminal's cursor."""
    return _CONTROL.sub(lambda one: _NAMED.get(one[0], f"\\x{ord(one[0]):02x}"), text)


class ConsoleLines(logging.Formatter):
    """``2025-01-31T10:00:00.000Z WARNING corral.x: message [job=job_1]``; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        about_ = " ".join(f"{name}={value}" for name, value in fields_of(record).items())
        line = f"{_moment(record)} {record.levelname} {record.name}: {escaped(redacted(_message(record)))}"
        lines = [line + (f" [{escaped(about_)}]" if about_ else "")]
        if record.exc_info and record.exc_info[0] is not None:
            trace = redacted("".join(traceback.format_exception(*record.exc_info)))
            lines += ["    " + escaped(each) for each in trace.splitlines()]
        return "\n".join(lines)


class JsonLines(logging.Formatter):
    """One object a line: ``ts``, ``level``, ``logger``, ``message``, the fields, and ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, object] = {
            "ts": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _whole(redacted(_message(record))),
            **{name: _whole(value) for name, value in fields_of(record).items()},
        }
        if record.exc_info and record.exc_info[0] is not None:
            shown["exception"] = _exception(record)
        # JSON lets some line separators stand; whoever reads lines would cut there.
        return _CONTROL.sub(lambda one: f"\\u{ord(one[0]):04x}", _encoder.encode(shown).decode())


def _exception(record: logging.LogRecord) -> dict[str, str]:
    assert record.exc_info is not None
    kind, value, _ = record.exc_info
    trace = "".join(traceback.format_exception(*record.exc_info))
    return {
        "type": kind.__name__ if kind is not None else "",
        "message": _whole(redacted(str(value))),
        "traceback": _whole(redacted(trace)),
    }


def _message(record: logging.LogRecord) -> str:
    """A call with the wrong arguments is a bug, but what it wanted to say is not lost to it."""
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        return f"{record.msg} {record.args}"


def _whole(text: str) -> str:
    """Half a surrogate pair, as undecodable bytes leave it, is no text that JSON could carry."""
    return text.encode("utf-8", "backslashreplace").decode()


def _moment(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
