# SPDX-License-Identifier: Apache-2.0
"""Every fault of a decoded document at once: against the JSON Schema that msgspec makes of the type it should be.

msgspec alone stops at the first fault; it does the conversion after the schema found nothing.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

FAULTS_LIMIT = 100
"""Faults reported of one document: beyond it the file is another file."""
_SHOWN = 300

Path = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True, order=True)
class Misfit:
    """``path``: keys and indexes from the document's root to the value that is wrong."""

    path: Path
    message: str
    remedy: str = ""


def misfits(document: Any, kind: Any) -> tuple[Misfit, ...]:
    """Everything wrong with ``document`` as a ``kind``, in no particular order; empty: it converts."""
    # Imported only when there is something to check by hand: it costs a tenth of a second.
    from jsonschema import Draft202012Validator, validators

    # JSON Schema takes 1.0 for an integer; msgspec, which converts after this found nothing, does not.
    checker = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    extend: Any = validators.extend
    validator = extend(Draft202012Validator, type_checker=checker)(msgspec.json.schema(kind))
    found = itertools.islice(validator.iter_errors(document), FAULTS_LIMIT)
    return tuple(dict.fromkeys(misfit for error in found for misfit in _misfits_of(error)))


def _misfits_of(error: Any) -> Iterator[Misfit]:
    path: Path = tuple(error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(error.schema.get("properties", {}))
        for name in error.instance:
            if name not in known:
                yield Misfit(path=(*path, name), message="unknown key", remedy=nearest(str(name), known))
    elif error.validator == "required":
        for name in error.validator_value:
            if name not in error.instance:
                yield Misfit(path=path, message=f"{name!r} is missing")
    elif error.validator == "anyOf" and error.context:
        yield from _alternatives(error, path)
    else:
        yield Misfit(path=path, message=_short(error.message))


def _alternatives(error: Any, path: Path) -> Iterator[Misfit]:
    """Where only one alternative has the value's type at all, its faults are meant; else the choice itself."""
    apart = {each.schema_path[0] for each in error.context if each.validator == "type" and len(each.path) == 0}
    meant = [each for each in error.context if each.schema_path[0] not in apart]
    if len({each.schema_path[0] for each in meant}) == 1:
        for each in meant:
            yield from _misfits_of(each)
    else:
        yield Misfit(path=path, message=_either(error))


def _either(error: Any) -> str:
    """A choice of types: say which, instead of repeating the value."""
    wanted = [str(each.validator_value) for each in error.context if each.validator == "type"]
    if wanted and len(wanted) == len(error.context):
        return f"{_short(repr(error.instance))} should be {' or '.join(wanted)}"
    return _short(error.message)


def _short(message: str) -> str:
    return message if len(message) <= _SHOWN else message[:_SHOWN] + "…"


def nearest(name: str, known: Sequence[str]) -> str:
    """``did you mean 'labels'?``, or what there is."""
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(sorted(known)) or 'no keys'}"


def dotted(path: Iterable[str | int]) -> str:
    """``pools[0].labels``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
