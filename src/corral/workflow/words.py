# SPDX-License-Identifier: Apache-2.0
"""Phrases that several refusals share. Standard library only, any Python from 3.9."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

RECOMPILE = "run `corral compile` and commit the result"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` with the nearest known word, or nothing."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.6 if len(word) > 3 else 0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
