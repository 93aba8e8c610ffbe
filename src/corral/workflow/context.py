# SPDX-License-Identifier: Apache-2.0
"""What a function step is called with. Standard library only, any Python from 3.9."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Combination:
    """One combination of a needed job's matrix."""

    matrix: Mapping[str, Any]
    result: str
    outputs: Mapping[str, str]


@dataclass(frozen=True)
class Needed:
    """A needed job: ``result`` is succeeded, failed, cancelled, skipped or lost.

    With a matrix, ``outputs`` merges those of the combinations in order, the last wins; ``combinations`` has each.
    """

    result: str
    outputs: Mapping[str, str]
    combinations: tuple[Combination, ...] = ()


@dataclass(frozen=True)
class StepContext:
    """``env``: the step's environment; ``matrix``: this job's combination; ``needs``: job name → :class:`Needed`;
    ``run``: id, workflow, job, job_id and attempt; ``event``: what started the run."""

    env: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    matrix: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    needs: Mapping[str, Needed] = field(default_factory=lambda: _NOTHING)
    run: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    event: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    write: Callable[[str, object], None] = field(default=lambda name, value: None, repr=False)

    def output(self, name: str, value: object) -> None:
        """Set an output of this step; at once, and again if set again.

        :param value: text, number or truth value (``true``/``false``); None is the empty text.
        :raises TypeError: anything else. :raises ValueError: ``name`` is not an identifier.
        """
        self.write(name, value)


def context_from(data: Mapping[str, Any], env: Mapping[str, str], write: Callable[[str, object], None]) -> StepContext:
    """The context an agent wrote as JSON: ``{"matrix", "needs", "run", "event", "env"}``, each optional."""
    needs = {name: _needed(need) for name, need in data.get("needs", {}).items()}
    return StepContext(
        env=MappingProxyType({**env, **data.get("env", {})}),
        matrix=MappingProxyType(dict(data.get("matrix", {}))),
        needs=MappingProxyType(needs),
        run=MappingProxyType(dict(data.get("run", {}))),
        event=MappingProxyType(dict(data.get("event", {}))),
        write=write,
    )


def _needed(need: Mapping[str, Any]) -> Needed:
    combinations = tuple(
        Combination(MappingProxyType(dict(c["matrix"])), c["result"], MappingProxyType(dict(c.get("outputs", {}))))
        for c in need.get("combinations", ())
    )
    return Needed(need["result"], MappingProxyType(dict(need.get("outputs", {}))), combinations)
