# SPDX-License-Identifier: Apache-2.0
"""Reading what a provisioner said: bounded, masked, and never trusted."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable

import msgspec
from msgspec import Raw, Struct

from corral.model.events import EventKind

BODY_LIMIT = 4 * 1024 * 1024
"""Bytes of an answer that are kept: a listing of some 20,000 instances."""
DETAIL_LIMIT = 1024
"""Bytes of an answer's detail."""
LOOKED_AT = 64 * 1024
"""Bytes in which a sentence or an id is looked for: more is no sentence, and a parser's memory is bounded by it."""
ID_LIMIT = 512
"""Characters of a provider's id; cloud resource names are at most 300 or so."""
MASK = "[redacted]"
_PREFIX = 16
"""Characters of a secret that give it away: whoever cuts it off shows no more than its public prefix."""
_NESTED = ("error", "data", "detail", "instance", "result")
"""Where an error body may hold the id, beside the top level."""
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x1f\x7f-\x9f]")


class Said(Struct, frozen=True, kw_only=True):
    """What matters of the event while it is delivered. ``claim_code`` is only ever looked for."""

    type: str = ""
    agent_id: str = ""
    claim_code: str = ""

    @property
    def listing(self) -> bool:
        return self.type == EventKind.INVENTORY


class _Data(Struct):
    agent_id: str = ""
    claim_code: str = ""


class _Event(Struct):
    type: str = ""
    data: Raw = Raw(b"{}")


def read_event(event: bytes) -> Said:
    """What it is about; empty where it is no event (a test of somebody's, never Corral's own)."""
    try:
        envelope = msgspec.json.decode(event, type=_Event)
        data = msgspec.json.decode(envelope.data, type=_Data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return Said()
    return Said(type=envelope.type, agent_id=data.agent_id, claim_code=data.claim_code)


class Masker:
    """Replaces secrets, whole or cut off, also as base64 of any alignment."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets if len(secret) >= 8 for form in _forms(secret)}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._pattern = re.compile(
            "|".join(re.escape(form[:_PREFIX]) + r"[A-Za-z0-9+/=_-]*" for form in longest_first) or r"(?!)",
            re.IGNORECASE,
        )

    def hide(self, text: str) -> str:
        return self._pattern.sub(MASK, text)

    def finds(self, text: str) -> bool:
        return self._pattern.search(text) is not None


def _forms(secret: str) -> Iterable[str]:
    yield secret
    # The code alone, without the word that tells scanners what it is.
    _, _, bare = secret.partition("_")
    if len(bare) >= _PREFIX:
        yield bare
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + secret.encode()).decode()
        # The first characters of a shifted text depend on what stood before it.
        yield encoded[(0, 2, 3)[shift] :].rstrip("=")


def sentence(raw: bytes, masker: Masker) -> str:
    """The first line with a word in it, fit for a terminal and a log: masked, then cut."""
    text = raw[:LOOKED_AT].decode(errors="replace")
    for line in text.splitlines():
        clean = _CONTROL.sub("", line).strip()
        if re.search(r"\w", clean):
            return masker.hide(clean)
    return ""


def detail(what: str, said: str = "") -> str:
    """``what`` happened and what was said about it, at most :data:`DETAIL_LIMIT` bytes."""
    text = f"{what}: {said}" if said else what
    return text.encode(errors="replace")[:DETAIL_LIMIT].decode(errors="ignore")


class _Named(Struct):
    provider_id: Raw = Raw(b"null")


class _Nested(Struct):
    error: Raw = Raw(b"null")
    data: Raw = Raw(b"null")
    detail: Raw = Raw(b"null")
    instance: Raw = Raw(b"null")
    result: Raw = Raw(b"null")


def provider_id(raw: bytes, masker: Masker) -> str:
    """L15: any id in a JSON object, also in one that reports an error; empty when there is none."""
    if len(raw) > LOOKED_AT:
        return ""
    for candidate in (raw, _last_line(raw)):
        found = _id_of(candidate, 3)
        if found:
            return "" if masker.finds(found) else found
    return ""


def _last_line(raw: bytes) -> bytes:
    """A program may print other things before its answer."""
    lines = raw.strip().splitlines()
    return lines[-1] if len(lines) > 1 else b""


def _id_of(raw: bytes | Raw, depth: int) -> str:
    try:
        named = msgspec.json.decode(raw, type=_Named)
        value: object = msgspec.json.decode(named.provider_id, type=str | int | None)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        value = None
    text = _CONTROL.sub("", str(value)) if value is not None else ""
    if text or depth == 0:
        return text[:ID_LIMIT]
    try:
        nested = msgspec.json.decode(raw, type=_Nested)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ""
    return next((found for name in _NESTED if (found := _id_of(getattr(nested, name), depth - 1))), "")
