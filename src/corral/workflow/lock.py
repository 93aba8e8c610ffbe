# SPDX-License-Identifier: Apache-2.0
"""The lock file: how it is written down, and how one that a stranger hands over is read.

It is JSON with sorted keys, two spaces and a newline at the end, so that equal workflows give equal bytes and a
difference reads well in a review. ``hash`` is the SHA-256 of the compact canonical JSON of everything else.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from corral.model.errors import Fault, Invalid, NotFound
from corral.model.spec import Lock, WorkflowSpec
from corral.workflow.validate import validate, validate_files
from corral.workflow.words import RECOMPILE

LOCK_VERSION = 1
LOCK_LIMIT = 5 * 1024 * 1024
"""Bytes of a lock file: some thousand jobs; above it somebody put data into the workflow."""
LOCK_PATH = ".corral/corral.lock.json"
"""Where it lies in a work tree, committed."""

_UNSEALED = "`hash` does not match the content: the file was edited or merged by hand"
_OTHER_VERSION = "upgrade Corral here, or compile with the version that runs here"

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def make_lock(workflows: Sequence[WorkflowSpec], files: Mapping[str, str]) -> Lock:
    """The lock of these workflows, sorted by name, with its hash."""
    ordered = tuple(sorted(workflows, key=lambda workflow: workflow.name))
    unsealed = Lock(version=LOCK_VERSION, hash="", files=dict(files), workflows=ordered)
    return msgspec.structs.replace(unsealed, hash=_hash(_plain(unsealed)))


def lock_bytes(lock: Lock) -> bytes:
    """The file's content; the same for equal locks on every machine."""
    return (json.dumps(_plain(lock), sort_keys=True, indent=2, ensure_ascii=False) + "\n").encode()


def check_lock(lock: Lock, name: str = "corral.lock.json") -> tuple[Fault, ...]:
    """Every fault of a lock that did not come through :func:`read_lock`, such as the body of a request."""
    if lock.version != LOCK_VERSION:
        message = f"the lock file has version {lock.version}; this Corral reads version {LOCK_VERSION}"
        return (Fault(file=name, path="version", message=message, remedy=_OTHER_VERSION),)
    try:
        sealed = lock.hash == _hash(_plain(lock))
    except UnicodeEncodeError:
        return (Fault(file=name, message="a text holds half of a surrogate pair", remedy=RECOMPILE),)
    found = () if sealed else (Fault(file=name, path="hash", message=_UNSEALED, remedy=RECOMPILE),)
    return (*found, *validate_files(lock, name), *validate(lock.workflows))


def read_lock(source: Path | bytes, *, name: str = "") -> Lock:
    """Read and check a lock file; trusts nothing in it.

    :param name: what to call the file in faults; by default its path or ``corral.lock.json``.
    :raises NotFound: there is no such file.
    :raises Invalid: with every fault found: not JSON, another version, unknown or wrong fields, a hash that does not
        match, or workflows that the compiler would not have let through.
    """
    name = name or (str(source) if isinstance(source, Path) else "corral.lock.json")
    data = source if isinstance(source, bytes) else _content(source)
    text = _decoded(data, name)
    raw = _parsed(text, name)
    _check_version(raw, text, name)
    lock, faults = _converted(raw, text, name)
    faults += _hash_faults(raw, text, name)
    if lock is not None:
        faults += [*validate_files(lock, name), *validate(lock.workflows)]
    if faults or lock is None:
        raise Invalid(f"lock file {name}", faults)
    return lock


def _content(path: Path) -> bytes:
    """At most one byte more than allowed, so that the size check sees it and memory stays bounded."""
    try:
        with path.open("rb") as file:
            return file.read(LOCK_LIMIT + 1)
    except FileNotFoundError:
        raise NotFound(f"there is no lock file {path}: {RECOMPILE}") from None
    except OSError as error:
        raise Invalid("lock file", [Fault(file=str(path), message=f"cannot be read: {error.strerror}")]) from error


def _decoded(data: bytes, name: str) -> str:
    if len(data) > LOCK_LIMIT:
        _refuse(name, f"the lock file is above {LOCK_LIMIT} bytes", "keep data out of workflows: read it in a step")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        _refuse(name, "not UTF-8", RECOMPILE, line)


def _refuse(name: str, message: str, remedy: str, line: int = 0, column: int = 0) -> NoReturn:
    raise Invalid(f"lock file {name}", [Fault(file=name, line=line, column=column, message=message, remedy=remedy)])


class _Unreadable(ValueError):
    """JSON that Python would read and we do not."""


def _parsed(text: str, name: str) -> Json:
    try:
        raw: Json = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        _canonical(raw)  # a lone surrogate parses but cannot be written again
    except json.JSONDecodeError as error:
        conflict = _conflict_line(text)
        if conflict:
            _refuse(name, "an unresolved merge conflict", RECOMPILE, conflict)
        _refuse(name, f"not JSON: {error.msg}", RECOMPILE, error.lineno, error.colno)
    except UnicodeEncodeError:
        _refuse(name, "a text holds half of a surrogate pair", RECOMPILE)
    except RecursionError:
        _refuse(name, "nested too deeply", RECOMPILE)
    except ValueError as error:
        _refuse(name, f"not JSON: {error}", RECOMPILE)
    return raw


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _Unreadable(f"the key {twice!r} stands twice in one object")
    return found


def _no_constant(text: str) -> NoReturn:
    raise _Unreadable(f"{text} is not a JSON number")


def _conflict_line(text: str) -> int:
    match = re.search(r"^(<<<<<<<|=======|>>>>>>>)", text, re.MULTILINE)
    return text.count("\n", 0, match.start()) + 1 if match else 0


def _check_version(raw: Json, text: str, name: str) -> None:
    if not isinstance(raw, dict):
        _refuse(name, "not a lock file: the outermost value must be an object", RECOMPILE, 1)
    version = raw.get("version")
    if isinstance(version, bool) or not isinstance(version, int):
        _refuse(name, "not a lock file: `version` is missing or not a number", RECOMPILE, 1)
    if version > LOCK_VERSION:
        message = f"the lock file has version {version}; this Corral reads version {LOCK_VERSION}"
        _refuse(name, message, _OTHER_VERSION, _line(text, "version"))
    if version < LOCK_VERSION:
        _refuse(name, f"there is no lock file version {version}", RECOMPILE, _line(text, "version"))


def _line(text: str, *path: str | int) -> int:
    from corral.workflow.positions import line_of  # only a refusal needs it

    return line_of(text, path)


def _converted(raw: Json, text: str, name: str) -> tuple[Lock | None, list[Fault]]:
    """msgspec alone is fast and stops at the first fault; the schema is slow and finds all."""
    try:
        lock = msgspec.convert(raw, Lock)
        if not any(_unknown(raw, lock)):
            return lock, []
    except msgspec.ValidationError as error:
        first = Fault(file=name, message=str(error), remedy=RECOMPILE)
        lock = None
    else:
        first = Fault(file=name, message="an unknown field", remedy=RECOMPILE)
    from corral.workflow.schema import schema_faults  # jsonschema costs 0.1 s to import

    return lock, list(schema_faults(raw, text, name)) or [first]


def _unknown(raw: object, value: object) -> Iterator[str]:
    """Keys of ``raw`` that no field of ``value`` took."""
    if isinstance(value, msgspec.Struct) and isinstance(raw, dict):
        for key, below in raw.items():
            if key in value.__struct_fields__:
                yield from _unknown(below, getattr(value, key))
            else:
                yield key
    elif isinstance(value, tuple) and isinstance(raw, list):
        for below, item in zip(raw, value, strict=True):
            yield from _unknown(below, item)


def _hash_faults(raw: Json, text: str, name: str) -> list[Fault]:
    if not isinstance(raw, dict) or raw.get("hash") == _hash(raw):
        return []
    return [Fault(file=name, line=_line(text, "hash"), path="hash", message=_UNSEALED, remedy=RECOMPILE)]


def _plain(lock: Lock) -> dict[str, Json]:
    plain: dict[str, Json] = msgspec.to_builtins(lock)
    return plain


def _hash(plain: Mapping[str, Json]) -> str:
    return hashlib.sha256(_canonical({k: v for k, v in plain.items() if k != "hash"})).hexdigest()


def _canonical(plain: Json) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
