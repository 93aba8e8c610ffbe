# SPDX-License-Identifier: Apache-2.0
"""Reading what a caller sent: bounded, and refused with every fault at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from litestar import Request

from corral.model.errors import Fault, Invalid, TooLarge
from corral.runtime.schema import dotted, misfits, nearest
from corral.web.problems import Malformed

BODY_LIMIT = 8 * 1024 * 1024
"""Bytes of a JSON body: a lock file with 1024 jobs fits many times."""


async def limited(request: Request[Any, Any, Any], limit: int, what: str) -> AsyncIterator[bytes]:
    """The body's chunks, never held together.

    :raises TooLarge: as soon as it is known that more than ``limit`` bytes come.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise TooLarge(f"{what} of {declared} bytes; the limit is {limit}")
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise TooLarge(f"{what} of more than {limit} bytes; that is the limit")
        if chunk:
            yield chunk


async def read_body(request: Request[Any, Any, Any], kind: type[Any]) -> Any:
    """The JSON body as ``kind``; an absent one is an empty object."""
    raw = b"".join([chunk async for chunk in limited(request, BODY_LIMIT, "a body")])
    return decode(raw or b"{}", kind)


def decode(raw: bytes, kind: type[Any]) -> Any:
    """:raises Malformed: no JSON. :raises Invalid: JSON of another shape, with every fault."""
    try:
        return _decode(raw, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"the body is no JSON: {error}") from None


def _decode(raw: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        # Found before the end of the document was read: what follows may be no JSON at all.
        raise Invalid("the body", faults_of(raw, kind) or [_fault_of(error)]) from None


def _fault_of(error: msgspec.ValidationError) -> Fault:
    message, _, path = str(error).partition(" - at ")
    return Fault(path=path.strip("`"), message=message)


def faults_of(raw: bytes, kind: type[Any]) -> list[Fault]:
    """Every fault of a JSON document against ``kind``, in order of place."""
    found = misfits(msgspec.json.decode(raw), kind)
    return sorted(Fault(path=dotted(("$", *each.path)), message=each.message, remedy=each.remedy) for each in found)


def read_query(raw: bytes, kind: type[Any]) -> Any:
    """Query parameters as the struct ``kind``; numbers and booleans are read from their text."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    faults: list[Fault] = []
    for name, text in _pairs(raw):
        if name not in fields:
            faults.append(Fault(path=name, message="no such query parameter", remedy=nearest(name, list(fields))))
        elif name in values:
            faults.append(Fault(path=name, message="given twice"))
        else:
            values[name] = text
            faults += _query_fault(name, text, fields[name].type)
    missing = [name for name, field in fields.items() if field.required and name not in values]
    faults += [Fault(path=name, message="missing query parameter") for name in missing]
    if faults:
        raise Invalid("the query", sorted(faults))
    return msgspec.convert(values, kind, strict=False)


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        text = raw.decode("ascii")
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=100)
    except (ValueError, UnicodeDecodeError):
        raise Malformed("the query is not percent-encoded UTF-8, or has more than 100 fields") from None


def _query_fault(name: str, text: str, kind: Any) -> list[Fault]:
    try:
        msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        return [Fault(path=name, message=str(error))]
    return []
