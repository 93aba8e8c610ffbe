# SPDX-License-Identifier: Apache-2.0
"""State machines as tables: the one :meth:`Machine.advance`, drawn in the docs and checked in the schema.

A machine is *total*: every state × event pair is a transition, is ignored (late or repeated news that changes
nothing), or is forbidden (a bug in the caller). Terminal states ignore everything: terminal absorbs.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from corral.model.errors import PermanentError

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class IllegalTransition(PermanentError):
    """The pair is forbidden by the table: the caller's bug."""

    code = "illegal_transition"
    status = 500


@dataclass(frozen=True, kw_only=True)
class Machine(Generic[S, E]):
    """One machine. ``transitions`` lists what changes the state, ``ignored`` what legally does not."""

    name: str
    states: type[S]
    events: type[E]
    initial: S
    terminal: Set[S]
    transitions: Mapping[tuple[S, E], S]
    ignored: Set[tuple[S, E]] = frozenset()

    def advance(self, state: S, event: E) -> S:
        """The state after ``event``; the same state where it is ignored.

        :raises IllegalTransition: where the table forbids the pair.
        """
        after = self.transitions.get((state, event))
        if after is not None:
            return after
        if self.ignores(state, event):
            return state
        raise IllegalTransition(f"{self.name}: {event} is not possible in state {state}")

    def ignores(self, state: S, event: E) -> bool:
        """True where the event legally changes nothing."""
        return (state, event) in self.ignored or (state in self.terminal and (state, event) not in self.transitions)

    def changes(self, state: S, event: E) -> bool:
        """True where the event moves the machine."""
        return (state, event) in self.transitions

    def sources(self, event: E) -> frozenset[S]:
        """The states that the event moves: what a compare-and-set may start from."""
        return frozenset(state for (state, e) in self.transitions if e == event)
