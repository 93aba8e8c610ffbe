# SPDX-License-Identifier: Apache-2.0
"""Keeping what a request carries out of what an error shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import msgspec

from corral.model.secret import Secret

# Characters. A shorter piece of a text, found again elsewhere, gives nothing away.
WINDOW = 8
WITHHELD = "[withheld: it repeats what was sent]"


def encode(value: object) -> bytes:
    """JSON; a :class:`Secret` inside is revealed, for this is where it is meant to go."""
    return msgspec.json.encode(value, enc_hook=_reveal)


def _reveal(value: object) -> str:
    if isinstance(value, Secret):
        return value.reveal()
    raise TypeError(f"a {type(value).__name__} is no JSON value")


def repeats(text: str, sent: bytes) -> bool:
    """True where ``text`` holds a piece of any text in the JSON document ``sent``, plain or escaped."""
    return any(_shares(text, leaf) for leaf in _leaves(msgspec.json.decode(sent)))


def _shares(text: str, leaf: str) -> bool:
    forms = {leaf, json.dumps(leaf)[1:-1], json.dumps(leaf, ensure_ascii=False)[1:-1]}
    return any(piece in text for form in forms for piece in _pieces(form))


def _pieces(form: str) -> Iterator[str]:
    if len(form) <= WINDOW:
        if len(form) >= WINDOW // 2:
            yield form
        return
    for at in range(len(form) - WINDOW + 1):
        yield form[at : at + WINDOW]


def _leaves(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for key, inner in value.items():
                yield str(key)
                yield from _leaves(inner)
        case list():
            for inner in value:
                yield from _leaves(inner)
