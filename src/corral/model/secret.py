# SPDX-License-Identifier: Apache-2.0
"""A secret that cannot be formatted or serialised by accident."""

from __future__ import annotations

from typing import NoReturn


class Secret:
    """Holds a value that only :meth:`reveal` gives out; every accidental way shows ``[secret]`` or raises."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself. Each call site is one to look at in a review."""
        return self._value

    def __repr__(self) -> str:
        return "[secret]"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return "[secret]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not serialised")
