# SPDX-License-Identifier: Apache-2.0
"""Label sets: lower-cased, de-duplicated, immutable."""

from __future__ import annotations

import re
from collections.abc import Iterable

RESERVED_PREFIX = "corral:"
MAX_LABELS = 32
MAX_LABEL_LENGTH = 128
_FORM = re.compile(r"[a-z0-9][a-z0-9._:/-]*\Z")

Labels = frozenset[str]
NO_LABELS: Labels = frozenset()


def labels(values: Iterable[str]) -> Labels:
    """Lower-case and de-duplicate; does not judge the form (see :func:`label_fault`)."""
    return frozenset(value.strip().lower() for value in values)


def label_fault(value: str) -> str | None:
    """What is wrong with one label, as a sentence, or None."""
    text = value.strip().lower()
    if not text:
        return "a label is empty"
    if len(text) > MAX_LABEL_LENGTH:
        return f"label {text[:20]!r}… has {len(text)} characters; the limit is {MAX_LABEL_LENGTH}"
    if not _FORM.match(text):
        return f"label {value!r} may hold only letters, digits and . _ : / -, and starts with a letter or digit"
    return None


def reserved(value: str) -> bool:
    """True for labels that only Corral itself sets."""
    return value.strip().lower().startswith(RESERVED_PREFIX)
