# SPDX-License-Identifier: Apache-2.0
"""Expressions: Python's meaning on Python's subset, total on everything else."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.expressions import (
    CONTEXTS,
    DEPTH_LIMIT,
    FUNCTIONS,
    RESULT_LIMIT,
    RUN_KEYS,
    SOURCE_LIMIT,
    TEMPLATE_LIMIT,
    Context,
    ExpressionError,
    StepOutcome,
    evaluate,
    expand,
    parse,
    run_values,
    template_expressions,
    truth,
)
from corral.model.spec import CombinationResult, JobOrder, JobSpec, NeedResult, Result

CONTEXT = Context(
    needs={
        "build": NeedResult(result=Result.SUCCEEDED, outputs={"version": "1.2", "empty": ""}),
        "unit-test": NeedResult(
            result=Result.FAILED,
            outputs={"last": "b"},
            combinations=(
                CombinationResult(matrix={"os": "linux"}, result=Result.SUCCEEDED, outputs={"last": "a"}),
                CombinationResult(matrix={"os": "arm"}, result=Result.FAILED, outputs={"last": "b"}),
            ),
        ),
    },
    matrix={"os": "linux", "n": 3, "fast": True, "ratio": 0.5},
    env={"HOME": "/home/x"},
    run={"id": "run-1"},
    event={"branch": "main"},
    steps={"compile it": StepOutcome(result=Result.SUCCEEDED, outputs={"size": "10"})},
    success=True,
)


def value(source: str, context: Context = CONTEXT) -> Any:
    return evaluate(parse(source), context)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("'a'", "a"),
        (r"'it\'s\n\t\\'", "it's\n\t\\"),
        ('"}}"', "}}"),
        ("-1.5e3", -1500.0),
        ("True", True),
        ("None", None),
        ("1 < 2 <= 2 < 3", True),
        ("1 < 3 < 2", False),
        ("not 1 == 2", True),
        ("True or False and False", True),
        ("'' or 'default'", "default"),
        ("'a' and 'b'", "b"),
        ("needs.build.result", "succeeded"),
        ("needs.build.outputs.version", "1.2"),
        ('needs["unit-test"].outputs.last', "b"),
        ('len(needs["unit-test"].combinations)', 2),
        ('needs["unit-test"].combinations[1].matrix.os', "arm"),
        ('needs["unit-test"].combinations[-2].outputs.last', "a"),
        ('needs["unit-test"].combinations[2]', None),
        ("needs.build.outputs.missing", None),
        ("needs.nobody.outputs.missing", None),
        ("matrix.os in ['linux', 'mac',]", True),
        ("matrix.os not in ['mac']", True),
        ("'in' in 'linux'", True),
        ("'version' in needs.build.outputs", True),
        ("'x' in needs.build.outputs.missing", False),
        ("matrix.n", 3),
        ("matrix.fast", True),
        ("env.HOME", "/home/x"),
        ("run.id == 'run-1'", True),
        ("event.branch", "main"),
        ("event.in", None),
        ('steps["compile it"].outputs.size', "10"),
        ('steps["compile it"].result == "succeeded"', True),
        ("success()", True),
        ("failure()", False),
        ("cancelled()", False),
        ("always()", True),
        ("contains('abc', 'b')", True),
        ("contains(['a'], 'b')", False),
        ("contains(needs.build.outputs.missing, 'b')", False),
        ("startswith(env.HOME, '/home')", True),
        ("endswith(env.HOME, 'y')", False),
        ("startswith(env.MISSING, 'x')", False),
        ("lower('ÀB')", "àb"),
        ("len(env.MISSING)", 0),
        ("len([])", 0),
        ("['a', ['b']] == ['a', ['b']]", True),
        ("['a'] == ['a', 'b']", False),
    ],
)
def test_value(source: str, expected: object) -> None:
    found = value(source)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("source", "message", "column"),
    [
        ("", "the expression is empty", 1),
        ("   ", "the expression is empty", 4),
        ("foo", "unknown name 'foo'", 1),
        ("neds.build", "did you mean 'needs'?", 1),
        ("true", "did you mean 'True'?", 1),
        ("success", "'success' is a function; did you mean 'success()'?", 1),
        ("sucess()", "unknown function 'sucess'; did you mean 'success'?", 1),
        ("1 + 1", "'+' cannot stand here: arithmetic is not part of expressions", 3),
        ("1 }} 2", "'}}' cannot stand here", 3),
        ("1 && 2", "'&' cannot stand here: write `and`", 3),
        ("1 = 2", "'=' cannot stand here: compare with `==`", 3),
        ("'abc", "the text is not closed", 1),
        (r"'\x41'", r"unknown escape \x", 1),
        ("(1", "expected ')', found the end", 3),
        ("1 2", "'2' cannot stand here", 3),
        ("1 and", "the expression ends too early", 6),
        ("len()", "len() takes 1 argument, not 0", 1),
        ("contains('a')", "contains() takes 2 arguments, not 1", 1),
        ("needs.", "expected a name after '.'", 7),
        ("1 not 2", "'2' cannot stand here", 7),
        ("01x", "'0' cannot stand here: not a decimal number", 1),
        ("1e999", "is too large", 1),
        ("1" * 33, "a number has at most 32 characters", 1),
        ("run.id.__class__.__mro__", "a text has no '__class__'", 8),
        ("lower(1)", "lower() wants a text, not a number", 1),
        ("len(1)", "len() wants a text, a list or a mapping, not a number", 1),
        ("1 < 'a'", "a number and a text have no order (<)", 3),
        ("None < 1", "nothing (None) and a number have no order (<)", 6),
        ("matrix == matrix", "a mapping or a list of combinations cannot be compared", 8),
        ('[1] == needs["unit-test"].combinations', "cannot be compared", 5),
        ('1 in needs["unit-test"].combinations', "cannot be compared", 3),
        ("1 " + "or 1 " * 128, "more than 256 words and signs", 641),
        ("1 in 2", "nothing can be in a number", 3),
        ("1 in 'a'", "only a text can be in a text, not a number", 3),
        ("matrix[1]", "a mapping cannot be looked into with a number", 8),
        ("matrix.n.x", "a number cannot be looked into with a text", 10),
        ("lambda: 1", "':' cannot stand here", 7),
        ("[x for x in needs]", "unknown name 'x'", 2),
        ("__import__('os')", "unknown function '__import__'", 1),
        ("f'{needs}'", "unknown name 'f'", 1),
    ],
)
def test_refusal(source: str, message: str, column: int) -> None:
    with pytest.raises(ExpressionError) as caught:
        value(source)
    assert message in str(caught.value)
    assert caught.value.column == column


def test_source_limit() -> None:
    assert value("'" + "x" * (SOURCE_LIMIT - 2) + "'") == "x" * (SOURCE_LIMIT - 2)
    with pytest.raises(ExpressionError, match=f"the limit is {SOURCE_LIMIT}"):
        parse("'" + "x" * (SOURCE_LIMIT - 1) + "'")


@pytest.mark.parametrize("opening", ["(", "[", "not ", "lower(", "needs["])
def test_depth_is_bounded(opening: str) -> None:
    closing = {"(": ")", "[": "]", "lower(": ")", "needs[": "]"}.get(opening, "")
    parse(opening * DEPTH_LIMIT + "'x'" + closing * DEPTH_LIMIT)
    with pytest.raises(ExpressionError, match=f"nested deeper than {DEPTH_LIMIT} levels"):
        parse(opening * (DEPTH_LIMIT + 1) + "'x'" + closing * (DEPTH_LIMIT + 1))


def test_a_result_is_bounded() -> None:
    big = Context(env={"A": "ä" * (RESULT_LIMIT // 2), "B": "ä" * (RESULT_LIMIT // 2) + "x"})
    assert value("env.A", big) == big.env["A"]
    with pytest.raises(ExpressionError, match="above 262144 bytes"):
        value("env.B", big)
    with pytest.raises(ExpressionError, match="above 262144 bytes"):
        expand("${{ env.A }}${{ env.A }}", big)


def test_references_and_calls() -> None:
    expression = parse("needs.a.outputs['x'] == matrix.os and len(needs['b'].combinations[0].result) or always()")
    assert expression.references() == {("needs", "a", "outputs", "x"), ("matrix", "os"), ("needs", "b", "combinations")}
    assert expression.calls() == {"len", "always"}
    assert parse("needs[matrix.job].result").references() == {("needs",), ("matrix", "job")}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", "plain"),
        ("", ""),
        ("v${{ needs.build.outputs.version }}!", "v1.2!"),
        ("${{matrix.n}}${{ matrix.fast }}${{ matrix.ratio }}", "3true0.5"),
        ("[${{ needs.build.outputs.missing }}]", "[]"),
        ("${{ '}}' }} and ${{ '${{' }}", "}} and ${{"),
        ("$HOME {{ }} $ {", "$HOME {{ }} $ {"),
        ("${{ not matrix.fast }}", "false"),
    ],
)
def test_expand(template: str, expected: str) -> None:
    assert expand(template, CONTEXT) == expected


@pytest.mark.parametrize(
    ("template", "message", "column"),
    [
        ("ab ${{ 1", "`${{` is not closed", 4),
        ("ab ${{ }}", "the expression is empty", 8),
        ("${{ needs }}", "a mapping is no text", 5),
        ("${{ [1] }}", "a list is no text", 5),
        ("ab ${{ foo }}", "unknown name 'foo'", 8),
        ("x" * (TEMPLATE_LIMIT + 1), f"the limit is {TEMPLATE_LIMIT}", 1),
    ],
)
def test_expand_refusal(template: str, message: str, column: int) -> None:
    with pytest.raises(ExpressionError) as caught:
        expand(template, CONTEXT)
    assert message in str(caught.value)
    assert caught.value.column == column


def test_template_expressions_keep_their_source() -> None:
    found = template_expressions("a ${{ matrix.os }} b ${{ run.id }}")
    assert [expression.source for expression in found] == ["matrix.os", "run.id"]


def test_an_empty_condition_is_success() -> None:
    assert truth("", Context(success=True))
    assert not truth("  ", Context(success=False))
    assert truth("failure()", Context(failure=True))
    assert not truth("needs.build.outputs.empty", CONTEXT)


def test_run_values_have_the_known_keys() -> None:
    order = JobOrder(run_id="r", job_id="j", attempt=2, name="test", workflow="ci", spec=JobSpec(name="t", steps=()))
    found = run_values(order)
    assert tuple(found) == RUN_KEYS
    assert found == {"id": "r", "workflow": "ci", "job": "test", "job_id": "j", "attempt": "2"}


# --- against Python itself ---------------------------------------------------------------------------------

_LITERALS = st.one_of(
    st.sampled_from(["True", "False", "None", "''", '"a"', "'ab'", "0", "1", "2.5", "-3", "[1, 'a']", "[]"]),
)


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["and", "or", "==", "!=", "<", "<=", ">", ">=", "in", "not in"])
    return st.one_of(
        st.builds(lambda a, o, b: f"{a} {o} {b}", inner, operators, inner),
        st.builds(lambda a, o, b, p, c: f"{a} {o} {b} {p} {c}", inner, operators, inner, operators, inner),
        st.builds(lambda a: f"not {a}", inner),
        st.builds(lambda a: f"({a})", inner),
        st.builds(lambda a: f"[{a}]", inner),
    )


def _pythons(source: str) -> tuple[str, object]:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = eval(source, {"__builtins__": {}})  # our own generated text
    except (SyntaxError, TypeError):
        return "error", None
    return "value", found


def _same(ours: object, pythons: object) -> bool:
    if isinstance(pythons, list):
        return isinstance(ours, tuple) and len(ours) == len(pythons) and all(map(_same, ours, pythons))
    return type(ours) is type(pythons) and ours == pythons


@given(st.recursive(_LITERALS, _combined, max_leaves=6))
@settings(max_examples=400, deadline=None)
def test_means_what_python_means(source: str) -> None:
    kind, expected = _pythons(source)
    try:
        ours = value(source)
    except ExpressionError:
        # Ours may refuse more: there is no order between truth values and lists.
        assert kind == "error" or any(operator in source for operator in "<>")
        return
    if kind == "value":
        assert _same(ours, expected), (source, ours, expected)
    else:
        assert "None" in source and " in " in source  # nothing is in None, where Python raises


# --- totality ----------------------------------------------------------------------------------------------

_SYMBOLS = "( ) [ ] . , == != < <= > >= in not and or True False None 1 2.5 -1 'a' \"b\" ${{ }} x build result outputs"
_WORDS = [*CONTEXTS, *FUNCTIONS, *_SYMBOLS.split(" "), "combinations", "\\", "\0", "\ud800", "ä", "'", " "]


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(_WORDS), max_size=25).map(" ".join)))
@settings(max_examples=600, deadline=None)
def test_any_source_has_a_value_or_an_expression_error(source: str) -> None:
    for attempt in (lambda: value(source), lambda: expand(source, CONTEXT), lambda: truth(source, CONTEXT)):
        try:
            attempt()
        except ExpressionError as error:
            assert 1 <= error.column <= len(source) + 1


@pytest.mark.parametrize(
    "source",
    [
        "(" * SOURCE_LIMIT,
        "not " * 1000,
        "-" * SOURCE_LIMIT,
        "'" * 4095,
        '"\\' * 2000,
        "1," * 2000,
        "1 or " * 800 + "1",
        "0 < " * 1000 + "1",
        "needs" + ".a" * 2000,
        "1" * SOURCE_LIMIT,
        "." * SOURCE_LIMIT,
        "a" * SOURCE_LIMIT,
        " " * SOURCE_LIMIT,
        "1e" + "9" * 30,
    ],
)
def test_long_sources_end(source: str) -> None:
    try:
        value(source)
    except ExpressionError:
        pass


def test_numbers_beyond_json_are_compared_and_not_shown() -> None:
    huge = Context(matrix={"n": 10**5000, "f": math.inf})
    assert value("matrix.n > 1", huge)
    for key in ("n", "f"):
        with pytest.raises(ExpressionError, match="too large to show"):
            expand("${{ matrix." + key + " }}", huge)
