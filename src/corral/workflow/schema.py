# SPDX-License-Identifier: Apache-2.0
"""Every structural fault of a lock file at once: JSON Schema made from the model's own structs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from corral.model.errors import Fault
from corral.model.spec import Lock
from corral.workflow.checks import FAULT_LIMIT
from corral.workflow.positions import Path, lines_of
from corral.workflow.words import RECOMPILE, did_you_mean, printable


def schema_faults(raw: object, text: str, name: str) -> Iterator[Fault]:
    """The faults of ``raw``, which was parsed from ``text``, in order of place."""
    errors = islice(_validator().iter_errors(raw), FAULT_LIMIT)
    found = [pair for error in errors for pair in _findings(error)]
    lines = lines_of(text, (place for place, _ in found))
    for place, message in sorted(found, key=lambda pair: (lines[pair[0]], dotted(pair[0]))):
        yield Fault(
            file=name, line=lines[place], path=printable(dotted(place)), message=printable(message), remedy=RECOMPILE
        )


@cache
def _validator() -> Draft202012Validator:
    schema = msgspec.json.schema(Lock)
    for definition in schema["$defs"].values():
        if "properties" in definition:
            definition["additionalProperties"] = False
    return Draft202012Validator(schema)


def _findings(error: ValidationError) -> Iterator[tuple[Path, str]]:
    place = tuple(error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(_properties(error.schema))
        for key in error.instance.keys() - set(known):
            yield (*place, key), f"unknown field {key!r}{did_you_mean(key, known)}"
    else:
        yield place, _sentence(error)


def _properties(schema: object) -> Mapping[str, object]:
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _sentence(error: ValidationError) -> str:
    wanted: Any = error.validator_value
    instance: Any = error.instance
    shown = repr(instance)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    match error.validator:
        case "required":
            missing = [key for key in wanted if key not in instance]
            return f"missing: {', '.join(missing)}"
        case "type":
            return f"{shown} is not of type {wanted}"
        case "enum":
            return f"{shown} is none of {', '.join(map(str, wanted))}"
        case "anyOf":
            return f"{shown} has the wrong type"
        case _:
            return error.message[:200]


def dotted(place: Sequence[str | int]) -> str:
    """``("jobs", 0, "name")`` as ``jobs[0].name``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
