# SPDX-License-Identifier: Apache-2.0
"""Expressions: the small language of conditions and ``${{ }}`` templates, a subset of Python's expressions.

An expression is data. It is parsed by this module into a tree of eight node kinds and walked; nothing of it is ever
handed to Python's own parser or interpreter (whose manual warns that hostile input can crash it, and whose grammar
changes between versions, while the server and an agent must agree). Whatever is written means what Python means by
it, except that a key which is not there is None, and that looking into None gives None.

Grammar, loosest first::

    or:      and ("or" and)*
    and:     not ("and" not)*
    not:     "not" not | compare
    compare: atom (("==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "not" "in") atom)*
    atom:    text | number | True | False | None | "(" or ")" | "[" [or ("," or)*] "]"
           | FUNCTION "(" [or ("," or)*] ")" | CONTEXT ("." name | "[" or "]")*

Evaluation is total: it returns a value or raises :class:`ExpressionError`, in time linear in the source times the
size of the values it looks at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, NamedTuple, NoReturn, TypeVar, assert_never, overload

from msgspec import Struct

from corral.model.errors import PermanentError
from corral.model.spec import CombinationResult, JobOrder, NeedResult, Result, Scalar

SOURCE_LIMIT = 4096
"""Characters of one expression. Long enough for any condition a person reads, short enough to walk in a millisecond."""
TEMPLATE_LIMIT = 64 * 1024
"""Characters of one template, the text around its expressions included."""
DEPTH_LIMIT = 32
"""Nested brackets and negations: far below the interpreter's own recursion limit."""
TOKEN_LIMIT = 256
"""Tokens of one expression: it bounds how often one expression can look through a large output."""
RESULT_LIMIT = 256 * 1024
"""Bytes of UTF-8 of one result; equals the limit of one output's value."""
NUMBER_LIMIT = 32
"""Characters of one number."""
_SHOWN_BELOW = 10**40
"""Above it, a number from a matrix is nobody's; Python refuses to print integers of thousands of digits anyway."""

CONTEXTS = ("needs", "matrix", "env", "run", "event", "steps")
RUN_KEYS = ("id", "workflow", "job", "job_id", "attempt")
"""What ``run`` holds (see :func:`run_values`)."""

T = TypeVar("T")
Value = bool | int | float | str | Sequence["Value"] | Mapping[str, "Value"] | None


class ExpressionError(PermanentError):
    """The expression cannot be parsed or has no value. ``column`` counts characters from 1."""

    code = "expression_failed"
    status = 422

    def __init__(self, message: str, column: int = 1) -> None:
        super().__init__(message)
        self.column = column


# --- the tree ----------------------------------------------------------------------------------------------


class Literal(Struct, frozen=True):
    value: bool | int | float | str | None
    column: int


class Items(Struct, frozen=True):
    items: tuple[Node, ...]
    column: int


class Lookup(Struct, frozen=True):
    """``root`` is one of ``CONTEXTS``; an attribute is a key that is a text literal."""

    root: str
    keys: tuple[Node, ...]
    column: int


class Call(Struct, frozen=True):
    name: str
    arguments: tuple[Node, ...]
    column: int


class Not(Struct, frozen=True):
    operand: Node
    column: int


class Logic(Struct, frozen=True):
    """``operator`` is ``and`` or ``or``; the value is that of the operand which decides."""

    operator: str
    operands: tuple[Node, ...]
    column: int


class Comparison(Struct, frozen=True):
    operator: str
    right: Node
    column: int


class Compare(Struct, frozen=True):
    """A chain: each comparison's left side is the one before it."""

    left: Node
    comparisons: tuple[Comparison, ...]
    column: int


Node = Literal | Items | Lookup | Call | Not | Logic | Compare


class Expression(Struct, frozen=True):
    """A parsed expression; equal when the source is."""

    source: str
    root: Node

    def references(self) -> frozenset[tuple[str, ...]]:
        """The paths looked up, each as far as it is known without evaluating: ``("needs", "build", "result")``."""
        return frozenset(_path(node) for node in walk(self.root) if isinstance(node, Lookup))

    def calls(self) -> frozenset[str]:
        """The names of the functions called."""
        return frozenset(node.name for node in walk(self.root) if isinstance(node, Call))


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Literal():
            return ()
        case Items(items=found) | Lookup(keys=found) | Call(arguments=found) | Logic(operands=found):
            return found
        case Not(operand=operand):
            return (operand,)
        case Compare(left=left, comparisons=comparisons):
            return (left, *(comparison.right for comparison in comparisons))
    assert_never(node)


def _path(node: Lookup) -> tuple[str, ...]:
    path = [node.root]
    for key in node.keys:
        if not isinstance(key, Literal) or not isinstance(key.value, str):
            break
        path.append(key.value)
    return tuple(path)


# --- parsing -----------------------------------------------------------------------------------------------


class _Token(NamedTuple):
    kind: str
    text: str
    column: int


_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<name>[^\W\d]\w*)
      | (?P<text>'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")
      | (?P<close>\}\})
      | (?P<symbol>==|!=|<=|>=|[<>()\[\],.])
    """,
    re.VERBOSE,
)
_ESCAPES = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "r": "\r", "t": "\t"}
_WORDS = frozenset({"and", "or", "not", "in"})
_CONSTANTS: Mapping[str, bool | None] = {"True": True, "False": False, "None": None}
_COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">=", "in", "not"})


def parse(source: str) -> Expression:
    """Parse one expression.

    :raises ExpressionError: it is empty, too long, too deep, or not an expression of this language.
    """
    if len(source) > SOURCE_LIMIT:
        raise ExpressionError(f"the expression has {len(source)} characters; the limit is {SOURCE_LIMIT}")
    tokens = _bounded_tokens(source, 0, len(source))
    if tokens[-1].column <= len(source):
        raise ExpressionError("'}}' cannot stand here", tokens[-1].column)
    return Expression(source, _Parser(tokens).whole())


def _tokens(source: str, start: int, stop: int) -> Iterator[_Token]:
    """Tokens up to ``stop`` or to the first ``}}``, which becomes the ``end``."""
    position = start
    while position < stop:
        match = _TOKEN.match(source, position, stop)
        if match is None:
            raise ExpressionError(_misread(source, position), position + 1)
        kind = str(match.lastgroup)
        if kind == "close":
            break
        if kind != "space":
            text = match.group()
            yield _Token("word" if text in _WORDS else kind, text, position + 1)
        position = match.end()
    yield _Token("end", "", position + 1)


def _bounded_tokens(source: str, start: int, stop: int) -> list[_Token]:
    found = list(islice(_tokens(source, start, stop), TOKEN_LIMIT + 1))
    if found[-1].kind != "end":
        raise ExpressionError(f"the expression has more than {TOKEN_LIMIT} words and signs", found[-1].column)
    return found


def _misread(source: str, position: int) -> str:
    found = source[position]
    hints = {
        "&": "write `and`",
        "|": "write `or`",
        "!": "write `not` or `!=`",
        "=": "compare with `==`",
        "'": "the text is not closed",
        '"': "the text is not closed",
        "{": "there are no sets or mappings",
        "$": "no `${{ }}` inside an expression",
    }
    hint = hints.get(found, "arithmetic is not part of expressions" if found in "+-*/%" else "")
    if found.isdigit():
        hint = "not a decimal number"
    return f"{found!r} cannot stand here" + (f": {hint}" if hint else "")


class _Parser:
    """Recursive descent; ``_depth`` bounds the recursion."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    def whole(self) -> Node:
        if self._next.kind == "end":
            raise ExpressionError("the expression is empty", self._next.column)
        node = self._or()
        if self._next.kind != "end":
            self._refuse()
        return node

    @property
    def _next(self) -> _Token:
        return self._tokens[self._position]

    def _take(self) -> _Token:
        token = self._next
        self._position += 1
        return token

    def _skip(self, kind: str, text: str) -> bool:
        if self._next.kind == kind and self._next.text == text:
            self._position += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._skip("symbol", text):
            found = f"{self._next.text!r}" if self._next.text else "the end"
            raise ExpressionError(f"expected {text!r}, found {found}", self._next.column)

    def _refuse(self) -> NoReturn:
        if self._next.kind == "end":
            raise ExpressionError("the expression ends too early", self._next.column)
        raise ExpressionError(f"{self._next.text!r} cannot stand here", self._next.column)

    def _deeper(self, rule: Callable[[], Node]) -> Node:
        self._depth += 1
        if self._depth > DEPTH_LIMIT:
            raise ExpressionError(f"nested deeper than {DEPTH_LIMIT} levels", self._next.column)
        node = rule()
        self._depth -= 1
        return node

    def _or(self) -> Node:
        return self._logic("or", self._and)

    def _and(self) -> Node:
        return self._logic("and", self._not)

    def _logic(self, word: str, rule: Callable[[], Node]) -> Node:
        column = self._next.column
        operands = [rule()]
        while self._skip("word", word):
            operands.append(rule())
        return operands[0] if len(operands) == 1 else Logic(word, tuple(operands), column)

    def _not(self) -> Node:
        column = self._next.column
        if self._skip("word", "not"):
            return Not(self._deeper(self._not), column)
        return self._compare()

    def _compare(self) -> Node:
        column = self._next.column
        left = self._atom()
        comparisons = []
        while self._next.kind in ("symbol", "word") and self._next.text in _COMPARISONS:
            operator = self._take()
            name = operator.text
            if name == "not":
                if not self._skip("word", "in"):
                    self._refuse()
                name = "not in"
            comparisons.append(Comparison(name, self._atom(), operator.column))
        return Compare(left, tuple(comparisons), column) if comparisons else left

    def _atom(self) -> Node:
        token = self._next
        match token.kind:
            case "text":
                return Literal(_text(self._take()), token.column)
            case "number":
                return Literal(_number(self._take()), token.column)
            case "name":
                return self._named(self._take())
            case "symbol" if token.text == "(":
                self._take()
                node = self._deeper(self._or)
                self._expect(")")
                return node
            case "symbol" if token.text == "[":
                self._take()
                return Items(self._list("]"), token.column)
        self._refuse()

    def _list(self, end: str) -> tuple[Node, ...]:
        items: list[Node] = []
        while not self._skip("symbol", end):
            if items:
                self._expect(",")
                if self._skip("symbol", end):
                    break
            items.append(self._deeper(self._or))
        return tuple(items)

    def _named(self, token: _Token) -> Node:
        if token.text in _CONSTANTS:
            return Literal(_CONSTANTS[token.text], token.column)
        if self._skip("symbol", "("):
            return self._call(token)
        if token.text not in CONTEXTS:
            raise ExpressionError(_unknown_name(token.text), token.column)
        return Lookup(token.text, self._keys(), token.column)

    def _call(self, token: _Token) -> Node:
        function = FUNCTIONS.get(token.text)
        if function is None:
            raise ExpressionError(f"unknown function {token.text!r}{_nearest(token.text, FUNCTIONS)}", token.column)
        arguments = self._list(")")
        if len(arguments) != function.arity:
            takes = f"{function.arity} argument{'' if function.arity == 1 else 's'}"
            raise ExpressionError(f"{token.text}() takes {takes}, not {len(arguments)}", token.column)
        return Call(token.text, arguments, token.column)

    def _keys(self) -> tuple[Node, ...]:
        keys: list[Node] = []
        while True:
            if self._skip("symbol", "."):
                keys.append(self._attribute())
            elif self._skip("symbol", "["):
                keys.append(self._deeper(self._or))
                self._expect("]")
            else:
                return tuple(keys)

    def _attribute(self) -> Node:
        token = self._take() if self._next.kind in ("name", "word") else None
        if token is None:
            raise ExpressionError("expected a name after '.'", self._next.column)
        return Literal(token.text, token.column)


def _text(token: _Token) -> str:
    def unescape(match: re.Match[str]) -> str:
        try:
            return _ESCAPES[match.group(1)]
        except KeyError:
            known = " ".join(f"\\{key}" for key in _ESCAPES)
            raise ExpressionError(f"unknown escape \\{match.group(1)}; known: {known}", token.column) from None

    return re.sub(r"\\(.)", unescape, token.text[1:-1])


def _number(token: _Token) -> int | float:
    if len(token.text) > NUMBER_LIMIT:
        raise ExpressionError(f"a number has at most {NUMBER_LIMIT} characters", token.column)
    if not token.text.isascii():
        raise ExpressionError(f"{token.text!r} is not a decimal number", token.column)
    if token.text.lstrip("-").isdigit():
        return int(token.text)
    number = float(token.text)
    if not math.isfinite(number):
        raise ExpressionError(f"{token.text} is too large", token.column)
    return number


def _unknown_name(name: str) -> str:
    if name.capitalize() in _CONSTANTS:
        return f"unknown name {name!r}; did you mean {name.capitalize()!r}?"
    if name in FUNCTIONS:
        return f"{name!r} is a function; did you mean '{name}()'?"
    hint = _nearest(name, CONTEXTS)
    return f"unknown name {name!r}" + (hint or f"; known: {', '.join(CONTEXTS)}; text needs quotes")


def _nearest(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    from difflib import get_close_matches  # costs milliseconds, and only a refusal needs it

    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


# --- evaluating --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """An earlier step of the same job."""

    result: Result
    outputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Context:
    """What an expression may look at. ``run`` is :func:`run_values`.

    For a step, ``success`` means that no step before it failed, for a job that every job it needs succeeded.
    """

    needs: Mapping[str, NeedResult] = field(default_factory=dict)
    matrix: Mapping[str, Scalar] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, str] = field(default_factory=dict)
    event: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[str, StepOutcome] = field(default_factory=dict)
    success: bool = False
    failure: bool = False
    cancelled: bool = False


def run_values(order: JobOrder) -> dict[str, str]:
    """The ``run`` context of one attempt: the keys are ``RUN_KEYS``."""
    return {
        "id": order.run_id,
        "workflow": order.workflow,
        "job": order.name,
        "job_id": order.job_id,
        "attempt": str(order.attempt),
    }


def evaluate(expression: Expression, context: Context) -> Value:
    """The expression's value in ``context``.

    :raises ExpressionError: it compares or looks into what cannot be, or the result is above ``RESULT_LIMIT``.
    """
    value = _value(expression.root, context)
    if isinstance(value, str):
        _bounded(value)
    return value


def truth(expression_source: str, context: Context) -> bool:
    """Whether a condition holds; the empty one is ``success()``. Truth is Python's: empty and zero are false.

    :raises ExpressionError: it cannot be parsed or evaluated.
    """
    if not expression_source.strip():
        return context.success
    return bool(evaluate(parse(expression_source), context))


def _value(node: Node, context: Context) -> Value:
    match node:
        case Literal(value=value):
            return value
        case Items(items=items):
            return tuple(_value(item, context) for item in items)
        case Lookup():
            return _looked_up(node, context)
        case Call(name=name, arguments=arguments):
            return FUNCTIONS[name].call(context, [_value(a, context) for a in arguments], node.column)
        case Not(operand=operand):
            return not _value(operand, context)
        case Logic(operator=operator, operands=operands):
            return _decided(operands, context, stop_at=operator == "or")
        case Compare():
            return _compared(node, context)
    assert_never(node)


def _decided(operands: Sequence[Node], context: Context, *, stop_at: bool) -> Value:
    value: Value = None
    for operand in operands:
        value = _value(operand, context)
        if bool(value) is stop_at:
            break
    return value


def _compared(node: Compare, context: Context) -> bool:
    left = _value(node.left, context)
    for comparison in node.comparisons:
        right = _value(comparison.right, context)
        if not _holds(left, comparison.operator, right, comparison.column):
            return False
        left = right
    return True


def _holds(left: Value, operator: str, right: Value, column: int) -> bool:
    match operator:
        case "==":
            return _equal(left, right, column)
        case "!=":
            return not _equal(left, right, column)
        case "in":
            return _inside(right, left, column)
        case "not in":
            return not _inside(right, left, column)
    return _ordered(left, operator, right, column)


def _equal(left: Value, right: Value, column: int) -> bool:
    """Whole mappings are not compared: one of a thousand outputs would be looked through for each ``==``."""
    match left, right:
        case (Mapping(), _) | (_, Mapping()) | (_Combinations(), _) | (_, _Combinations()):
            raise ExpressionError("a mapping or a list of combinations cannot be compared: compare an entry", column)
        case tuple(), tuple():
            pairs = zip(left, right, strict=False)
            return len(left) == len(right) and all(_equal(one, other, column) for one, other in pairs)
    return left == right


def _ordered(left: Value, operator: str, right: Value, column: int) -> bool:
    match left, right:
        case str(), str():
            return _order(left < right, left == right, operator)
        case int() | float(), int() | float():
            return _order(left < right, left == right, operator)
    raise ExpressionError(f"{_kind(left)} and {_kind(right)} have no order ({operator})", column)


def _order(less: bool, equal: bool, operator: str) -> bool:
    return {"<": less, "<=": less or equal, ">": not less and not equal, ">=": not less}[operator]


def _inside(whole: Value, part: Value, column: int) -> bool:
    match whole:
        case None:
            return False
        case str():
            if part is None:
                return False
            if isinstance(part, str):
                return part in whole
            raise ExpressionError(f"only a text can be in a text, not {_kind(part)}", column)
        case Mapping():
            return isinstance(part, str) and part in whole
        case Sequence():
            return any(_equal(part, item, column) for item in whole)
    raise ExpressionError(f"nothing can be in {_kind(whole)}", column)


def _looked_up(node: Lookup, context: Context) -> Value:
    value = _root(node.root, context)
    for key in node.keys:
        value = _entry(value, _value(key, context), key.column)
    return value


def _entry(value: Value, key: Value, column: int) -> Value:
    match value, key:
        case None, _:
            return None
        case Mapping(), str():
            return value.get(key)
        case str(), _:
            raise ExpressionError(f"a text has no {key!r}" if isinstance(key, str) else "a text has no parts", column)
        case Sequence(), int() if not isinstance(key, bool):
            return value[key] if -len(value) <= key < len(value) else None
    raise ExpressionError(f"{_kind(value)} cannot be looked into with {_kind(key)}", column)


def _root(name: str, context: Context) -> Value:
    match name:
        case "needs":
            return _Each(context.needs, _need)
        case "steps":
            return _Each(context.steps, _outcome)
        case "matrix":
            return context.matrix
        case "env":
            return context.env
        case "run":
            return context.run
        case _:
            return context.event


class _Each(Mapping[str, Value], Generic[T]):
    """A mapping whose values are made when looked at: a lookup costs the same however many jobs are needed."""

    def __init__(self, source: Mapping[str, T], made: Callable[[T], Value]) -> None:
        self._source = source
        self._made = made

    def __getitem__(self, key: str) -> Value:
        return self._made(self._source[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)


class _Combinations(Sequence[Value]):
    """The combinations of a need, made when looked at."""

    def __init__(self, source: Sequence[CombinationResult]) -> None:
        self._source = source

    @overload
    def __getitem__(self, index: int) -> Value: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Value]: ...

    def __getitem__(self, index: int | slice) -> Value | Sequence[Value]:
        if isinstance(index, slice):
            return _Combinations(self._source[index])
        found = self._source[index]
        return {"matrix": found.matrix, "result": found.result.value, "outputs": found.outputs}

    def __len__(self) -> int:
        return len(self._source)


def _need(need: NeedResult) -> Value:
    return {"result": need.result.value, "outputs": need.outputs, "combinations": _Combinations(need.combinations)}


def _outcome(outcome: StepOutcome) -> Value:
    return {"result": outcome.result.value, "outputs": outcome.outputs}


def _kind(value: Value) -> str:
    match value:
        case None:
            return "nothing (None)"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case Mapping():
            return "a mapping"
        case _:
            return "a list"


# --- functions ---------------------------------------------------------------------------------------------

_Body = Callable[[Context, Sequence[Value], int], Value]


class _Function(NamedTuple):
    arity: int
    call: _Body


def _string(value: Value, column: int, name: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise ExpressionError(f"{name}() wants a text, not {_kind(value)}", column)


def _length(context: Context, arguments: Sequence[Value], column: int) -> Value:
    (value,) = arguments
    if value is None:
        return 0
    if isinstance(value, (str, Mapping, Sequence)):
        return len(value)
    raise ExpressionError(f"len() wants a text, a list or a mapping, not {_kind(value)}", column)


def _lower(context: Context, arguments: Sequence[Value], column: int) -> Value:
    return _string(arguments[0], column, "lower").lower()


def _starts(context: Context, arguments: Sequence[Value], column: int) -> Value:
    whole, part = (_string(value, column, "startswith") for value in arguments)
    return whole.startswith(part)


def _ends(context: Context, arguments: Sequence[Value], column: int) -> Value:
    whole, part = (_string(value, column, "endswith") for value in arguments)
    return whole.endswith(part)


FUNCTIONS: Mapping[str, _Function] = {
    "success": _Function(0, lambda context, arguments, column: context.success),
    "failure": _Function(0, lambda context, arguments, column: context.failure),
    "cancelled": _Function(0, lambda context, arguments, column: context.cancelled),
    "always": _Function(0, lambda context, arguments, column: True),
    "contains": _Function(2, lambda context, arguments, column: _inside(arguments[0], arguments[1], column)),
    "startswith": _Function(2, _starts),
    "endswith": _Function(2, _ends),
    "lower": _Function(1, _lower),
    "len": _Function(1, _length),
}
STATUS_FUNCTIONS = frozenset({"success", "failure", "cancelled", "always"})


# --- templates ---------------------------------------------------------------------------------------------

_OPEN = "${{"


def template_expressions(template: str) -> tuple[Expression, ...]:
    """The expressions of a template, in order; columns count from the template's start.

    :raises ExpressionError: the template is too long, an expression is not closed or not one.
    """
    return tuple(part for part in _parts(template) if isinstance(part, Expression))


def expand(template: str, context: Context) -> str:
    """The template with each ``${{ expression }}`` replaced by its value as text.

    None becomes the empty text, truth values ``true`` and ``false``, numbers as Python writes them.

    :raises ExpressionError: as :func:`evaluate`; also for a list or mapping, and above ``RESULT_LIMIT``.
    """
    pieces: list[str] = []
    size = 0
    for part in _parts(template):
        piece = part if isinstance(part, str) else shown(evaluate(part, context), part.root.column)
        size += len(piece)
        if size > RESULT_LIMIT:
            break
        pieces.append(piece)
    return _bounded("".join(pieces), size)


def shown(value: Value, column: int = 1) -> str:
    """One value as text.

    :raises ExpressionError: it is a list or a mapping.
    """
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int() | float() if abs(value) < _SHOWN_BELOW:
            return str(value)
        case int() | float():
            raise ExpressionError("the number is too large to show", column)
    raise ExpressionError(f"{_kind(value)} is no text: pick one entry of it, or use len()", column)


def _parts(template: str) -> Iterator[str | Expression]:
    if len(template) > TEMPLATE_LIMIT:
        raise ExpressionError(f"the template has {len(template)} characters; the limit is {TEMPLATE_LIMIT}")
    position = 0
    while (start := template.find(_OPEN, position)) >= 0:
        yield template[position:start]
        inside = start + len(_OPEN)
        tokens = _bounded_tokens(template, inside, min(len(template), inside + SOURCE_LIMIT))
        end = tokens[-1].column - 1
        if not template.startswith("}}", end):
            raise ExpressionError("`${{` is not closed by `}}`", start + 1)
        yield Expression(template[inside:end].strip(), _Parser(tokens).whole())
        position = end + 2
    yield template[position:]


def _bounded(text: str, size: int = 0) -> str:
    if size > RESULT_LIMIT or len(text.encode("utf-8", "surrogatepass")) > RESULT_LIMIT:
        raise ExpressionError(f"the result is above {RESULT_LIMIT} bytes")
    return text
