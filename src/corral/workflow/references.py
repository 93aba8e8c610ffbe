# SPDX-License-Identifier: Apache-2.0
"""Whether what an expression looks up exists: jobs, outputs, matrix keys, steps, and values that can be compared."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from corral.model.expressions import (
    RUN_KEYS,
    Compare,
    Expression,
    ExpressionError,
    Items,
    Literal,
    Logic,
    Lookup,
    Node,
    Not,
    parse,
    template_expressions,
    walk,
)
from corral.model.spec import Result
from corral.model.triggers import EVENT_PREFIX
from corral.workflow.checks import Checks, Place
from corral.workflow.words import did_you_mean, listed

_NEED_KEYS = ("result", "outputs", "combinations")
_STEP_KEYS = ("result", "outputs")
_RESULTS = tuple(result.value for result in Result)

Path = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What stands in reach of an expression.

    ``needs``: each needed job with the outputs it declares; none declared means any.
    ``steps``: the names of earlier steps; ``later``: this one and those after it. ``event``: its keys; none: any.
    """

    contexts: tuple[str, ...]
    jobs: Collection[str] = ()
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    matrix: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    event: tuple[str, ...] = ()

    def widened(self, contexts: tuple[str, ...], *, steps: tuple[str, ...], later: tuple[str, ...]) -> Scope:
        return replace(self, contexts=(*self.contexts, *contexts), steps=steps, later=later)


def check_condition(checks: Checks, at: Place, source: str, scope: Scope) -> None:
    """Faults of a condition; the empty one has none."""
    if not source.strip():
        return
    try:
        expression = parse(source)
    except ExpressionError as error:
        checks.add(at, f"condition `{_shown(source)}`: {error} (column {error.column})", _LANGUAGE)
        return
    _check(checks, at, expression, scope)
    for path in _bare_texts(expression.root):
        name = ".".join(path)
        message = f"condition `{_shown(source)}` takes {name} for true or false, but it is a text, and 'false' is true"
        checks.add(at, message, f"compare it: {name} == 'true'")


def check_template(checks: Checks, at: Place, template: str, scope: Scope) -> None:
    """Faults of the expressions in a template."""
    try:
        expressions = template_expressions(template)
    except ExpressionError as error:
        checks.add(at, f"template `{_shown(template)}`: {error} (column {error.column})", _LANGUAGE)
        return
    for expression in expressions:
        _check(checks, at, expression, scope)


_LANGUAGE = "see docs/workflows.md, “Expressions”"


def _shown(source: str) -> str:
    line = " ".join(source.split())
    return line if len(line) <= 60 else f"{line[:60]}…"


def _check(checks: Checks, at: Place, expression: Expression, scope: Scope) -> None:
    for path in sorted(expression.references()):
        fault = _reference_fault(path, scope)
        if fault:
            message, remedy = fault
            checks.add(at, f"`{_shown(expression.source)}`: {message}", remedy)
    for word in _wrong_results(expression.root):
        message = f"`{_shown(expression.source)}`: no result is called {word!r}{did_you_mean(word, _RESULTS)}"
        checks.add(at, message, f"results: {', '.join(_RESULTS)}")


Finding = tuple[str, str] | None


def _reference_fault(path: Path, scope: Scope) -> Finding:
    root, *rest = path
    if root not in scope.contexts:
        return f"`{root}` cannot be used here", f"here there are: {listed(scope.contexts)}"
    if root == "needs":
        return _needs_fault(rest, scope)
    if root == "steps":
        return _steps_fault(rest, scope)
    if root == "matrix":
        return _matrix_fault(rest, scope)
    if root == "run" and rest and rest[0] not in RUN_KEYS:
        return f"run has no {rest[0]!r}{did_you_mean(rest[0], RUN_KEYS)}", f"run has: {', '.join(RUN_KEYS)}"
    if root == "event" and scope.event and rest and not _is_event_key(rest[0], scope):
        return f"event has no {rest[0]!r}{did_you_mean(rest[0], scope.event)}", f"event has: {listed(scope.event)}"
    return None


def _is_event_key(key: str, scope: Scope) -> bool:
    return key in scope.event or key.startswith(EVENT_PREFIX)


def _needs_fault(rest: list[str], scope: Scope) -> Finding:
    if not rest:
        return "`needs` must be followed by a job's name", 'write needs.NAME or needs["NAME"]'
    job = rest[0]
    if job not in scope.needs:
        if job in scope.jobs:
            return f"job {job!r} is not among this job's needs", f"add {job!r} to needs"
        return f"unknown job {job!r}{did_you_mean(job, scope.jobs)}", f"jobs: {listed(scope.jobs)}"
    declared = scope.needs[job]
    if rest[1:2] == ["outputs"] and len(rest) > 2 and declared and rest[2] not in declared:
        return (
            f"job {job!r} has no output {rest[2]!r}{did_you_mean(rest[2], declared)}",
            f"its outputs: {listed(declared)}",
        )
    return _member_fault(f"needs.{job}", rest[1:], _NEED_KEYS)


def _steps_fault(rest: list[str], scope: Scope) -> Finding:
    if not rest:
        return "`steps` must be followed by a step's name", 'write steps.NAME or steps["NAME"]'
    step = rest[0]
    if step in scope.later and step not in scope.steps:
        return f"step {step!r} has not run yet", "use it in a later step, or in the job's outputs"
    if step not in scope.steps:
        known = listed(scope.steps) or "none"
        return f"no earlier step is called {step!r}{did_you_mean(step, scope.steps)}", f"earlier steps: {known}"
    return _member_fault(f"steps.{step}", rest[1:], _STEP_KEYS)


def _matrix_fault(rest: list[str], scope: Scope) -> Finding:
    if not scope.matrix:
        return "the job has no matrix", "give it one, or remove this"
    if rest and rest[0] not in scope.matrix:
        hint = did_you_mean(rest[0], scope.matrix)
        return f"the matrix has no key {rest[0]!r}{hint}", f"its keys: {listed(scope.matrix)}"
    return None


def _member_fault(owner: str, rest: list[str], known: tuple[str, ...]) -> Finding:
    if rest and rest[0] not in known:
        return f"{owner} has no {rest[0]!r}{did_you_mean(rest[0], known)}", f"it has: {', '.join(known)}"
    return None


def _wrong_results(root: Node) -> Iterator[str]:
    """Texts compared with a result that no result ever equals."""
    for node in walk(root):
        if isinstance(node, Compare):
            sides = (node.left, *(comparison.right for comparison in node.comparisons))
            if any(_is_result(side) for side in sides):
                yield from (text for side in sides for text in _literal_texts(side) if text not in _RESULTS)


def _literal_texts(node: Node) -> tuple[str, ...]:
    if isinstance(node, Items):
        return tuple(text for item in node.items for text in _literal_texts(item))
    return (node.value,) if isinstance(node, Literal) and isinstance(node.value, str) else ()


def _is_result(node: Node) -> bool:
    if not isinstance(node, Lookup) or node.root not in ("needs", "steps") or len(node.keys) < 2:
        return False
    last = node.keys[-1]
    return isinstance(last, Literal) and last.value == "result" and len(node.keys) != 3


def _bare_texts(node: Node) -> Iterator[Path]:
    """Lookups of texts that a condition takes for truth values."""
    if isinstance(node, Logic):
        for operand in node.operands:
            yield from _bare_texts(operand)
    elif isinstance(node, Not):
        yield from _bare_texts(node.operand)
    elif isinstance(node, Lookup):
        path = (node.root, *(str(key.value) for key in node.keys if isinstance(key, Literal)))
        if _is_text(path):
            yield path


def _is_text(path: Path) -> bool:
    if path[0] in ("env", "run", "event"):
        return len(path) == 2
    return path[0] in ("needs", "steps") and (path[2:] == ("result",) or path[2:3] == ("outputs",))
