# SPDX-License-Identifier: Apache-2.0
"""Where in the author's code something was written. Standard library only, any Python from 3.9."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

_HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass(frozen=True)
class Origin:
    """``file`` as Python knows it, ``line`` from 1."""

    file: str
    line: int


def author() -> Origin:
    """The innermost place outside this package that led to the call."""
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == _HERE:
        frame = frame.f_back
    return Origin(frame.f_code.co_filename, frame.f_lineno)
