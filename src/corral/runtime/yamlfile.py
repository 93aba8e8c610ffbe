# SPDX-License-Identifier: Apache-2.0
"""YAML that a person wrote: plain data with the place of every value, strictly: no aliases, no tags, no duplicates."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from corral.model.errors import Fault, Invalid
from corral.runtime.schema import Path, dotted

SIZE_LIMIT = 1024 * 1024
"""Bytes of one configuration file."""
DEPTH_LIMIT = 32

_TAG = re.compile(r"(?:&\S+\s+)?(!\S*)")
"""At the start of a node: a tag that somebody wrote, behind an anchor where there is one."""
_SHOWN = 60
"""Characters of a value that a message repeats."""

Place = tuple[int, int]
"""Line and column, from 1."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """``places``: where each value (and key) stands, by its path."""

    name: str
    data: Any
    places: dict[Path, Place]

    def fault(self, path: Path, message: str, remedy: str = "") -> Fault:
        """A fault at a path, or at the nearest place above it that is known."""
        at = path
        while at and at not in self.places:
            at = at[:-1]
        line, column = self.places.get(at, (1, 1))
        return Fault(file=self.name, line=line, column=column, path=dotted(path), message=message, remedy=remedy)


def parse_yaml(text: str, name: str) -> Document:
    """:raises Invalid: it is not YAML, or uses what is not allowed here; every fault that can be told."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    if len(text.encode(errors="replace")) > SIZE_LIMIT:
        raise Invalid(name, [Fault(file=name, message=f"is larger than {SIZE_LIMIT} bytes")])
    try:
        node = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        raise Invalid(name, [Fault(file=name, line=line, column=column, message=str(error.problem or error))]) from None
    except (YAMLError, RecursionError, ValueError) as error:
        raise Invalid(name, [Fault(file=name, message=f"is not YAML: {error}")]) from None
    builder = _Builder(name, text)
    data = builder.build(node, ()) if node is not None else {}
    if builder.faults:
        raise Invalid(name, sorted(builder.faults))
    return Document(name=name, data=data, places=builder.places)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


class _Builder:
    """From YAML nodes to plain data; a node met twice is an alias."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._text = text
        self.places: dict[Path, Place] = {}
        self.faults: list[Fault] = []
        self._seen: set[int] = set()

    def build(self, node: Any, path: Path) -> Any:
        self.places.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
        if id(node) in self._seen:
            return self._refuse(node, path, "aliases (*name) are not allowed", "write the value out")
        self._seen.add(id(node))
        if len(path) > DEPTH_LIMIT:
            return self._refuse(node, path, f"is nested deeper than {DEPTH_LIMIT} levels")
        tag = _TAG.match(self._text, node.start_mark.index)
        if tag is not None:
            return self._refuse(node, path, f"the tag {_shown(tag[1])} is not allowed here", "leave it out")
        match node.id:
            case "mapping":
                return self._mapping(node, path)
            case "sequence":
                return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
            case _:
                return self._scalar(node, path)

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if key_node.id == "scalar" else None
            if not isinstance(key, str):
                self._refuse(key_node, path, "a key must be a word")
                continue
            here = (*path, key)
            if key in data:
                self._refuse(key_node, here, "is given twice")
            self.places[here] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            data[key] = self.build(value_node, here)
        return data

    def _scalar(self, node: Any, path: Path) -> Any:
        kind = str(node.tag or "").rsplit(":", 1)[-1]
        text: str = node.value
        try:
            match kind:
                case "str":
                    return text
                case "int":
                    return int(text.replace("_", ""), 0)
                case "float":
                    return float(text.replace("_", ""))
                case "bool" if text.lower() in ("true", "false"):
                    return text.lower() == "true"
                case "null":
                    return None
        except ValueError:
            return self._refuse(
                node, path, f"{_shown(text)} is not a number that is understood here", "put it in quotes"
            )
        return self._refuse(
            node, path, f"{_shown(text)} has type {kind!r}, which is not allowed here", "put it in quotes"
        )

    def _refuse(self, node: Any, path: Path, message: str, remedy: str = "") -> None:
        mark = node.start_mark
        self.faults.append(
            Fault(
                file=self.name,
                line=mark.line + 1,
                column=mark.column + 1,
                path=dotted(path),
                message=message,
                remedy=remedy,
            )
        )
