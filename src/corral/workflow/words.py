# SPDX-License-Identifier: Apache-2.0
"""Phrases that several refusals share. Standard library only, any Python from 3.9."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

RECOMPILE = "run `corral compile` and commit the result"


LISTED = 30
WORD_LIMIT = 40
KNOWN_LIMIT = 256
"""Characters of a word and words to choose from, for which a suggestion is worth its time: locks may be hostile."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` with the nearest known word, or nothing."""
    if len(word) > WORD_LIMIT:
        return ""
    candidates = [candidate for candidate in islice(known, KNOWN_LIMIT) if len(candidate) <= WORD_LIMIT]
    close = get_close_matches(word, candidates, n=1, cutoff=0.6 if len(word) > 3 else 0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def listed(names: Iterable[str]) -> str:
    """The first of them with commas: a remedy is read by a person."""
    found = list(islice(names, LISTED + 1))
    return ", ".join(found[:LISTED]) + (", …" if len(found) > LISTED else "")


def printable(text: str) -> str:
    """The text with what a terminal would act on, or could not show, replaced: it may be a stranger's."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
