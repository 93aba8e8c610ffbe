# SPDX-License-Identifier: Apache-2.0
"""How a step's outputs are written to the file ``$CORRAL_OUTPUT``. Standard library only, any Python from 3.9.

``NAME=value`` on one line, or for values of several lines ``NAME<<WORD``, the value, and ``WORD`` alone on a line.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}\Z")


def as_text(value: object) -> str:
    """An output's value as the text it becomes.

    :raises TypeError: it is no text, number, truth value or None.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise TypeError(
        f"an output is text, a number or a truth value, not {type(value).__name__}; use json.dumps() for it"
    )


def output_record(name: str, value: object) -> str:
    """What to append to the file for one output.

    :raises TypeError: as :func:`as_text`, and for a name that is no text. :raises ValueError: a bad name.
    """
    if not isinstance(name, str):
        raise TypeError(f"an output's name is text, not {type(name).__name__}")
    if not _NAME.match(name):
        raise ValueError(f"output name {name!r} may hold only letters, digits and _ . -, and starts with a letter or _")
    text = as_text(value)
    if "\n" not in text and "\r" not in text:
        return f"{name}={text}\n"
    word = "CORRAL_END"
    while word in text:
        word += "_"
    return f"{name}<<{word}\n{text}\n{word}\n"
