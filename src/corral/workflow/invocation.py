# SPDX-License-Identifier: Apache-2.0
"""Runs one function step in this process; the contract is in ``runner.py``. Standard library only, Python from 3.9."""

from __future__ import annotations

import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from corral.workflow.context import StepContext, context_from
from corral.workflow.language import Function
from corral.workflow.loading import Tree, install, load, tree_of
from corral.workflow.outputs import output_record

NOT_LOADED = 2
INTERRUPTED = 130


class _NotLoaded(Exception):
    """The function could not be reached; the text says why."""


def invoke(argv: list[str]) -> int:
    """``argv``: FILE, QUALNAME. Returns the exit code."""
    try:
        file, qualname = argv
    except ValueError:
        return _complain("usage: runner.py FILE QUALNAME")
    tree = tree_of(file)
    install(tree)
    try:
        context = _context()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return _complain(f"corral: the step's context cannot be read: {error!r}")
    try:
        function = _function(tree, file, qualname)
    except _NotLoaded as error:
        return _complain(f"corral: {error}")
    except BaseException as error:
        return _ended(tree, error, NOT_LOADED)
    try:
        _finish(function(context) if takes_context(function) else function(), context)
    except BaseException as error:
        return _ended(tree, error, 1)
    return 0


def takes_context(function: Callable[..., object]) -> bool:
    """Whether the function wants the step's context; one without parameters does not."""
    return bool(inspect.signature(function).parameters)


def resolve(module: object, qualname: str) -> Callable[..., object]:
    """The function that ``qualname`` names in a loaded module.

    :raises AttributeError: there is none.
    """
    found: Any = module
    for name in qualname.split("."):
        found = getattr(found, name)
    function: Callable[..., object] = found.function if isinstance(found, Function) else found
    return function


def _function(tree: Tree, file: str, qualname: str) -> Callable[..., object]:
    if not os.path.isfile(file):
        raise _NotLoaded(f"there is no file {file}")
    module = load(tree, file)
    try:
        return resolve(module, qualname)
    except AttributeError:
        raise _NotLoaded(f"{file} has no function {qualname}: run `corral compile` and commit the result") from None


def _context() -> StepContext:
    path = os.environ.get("CORRAL_CONTEXT")
    data: Mapping[str, Any] = {}
    if path:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    return context_from(data, os.environ, _write)


def _write(name: str, value: object) -> None:
    record = output_record(name, value)
    path = os.environ.get("CORRAL_OUTPUT")
    if path:
        with open(path, "a", encoding="utf-8", newline="") as file:
            file.write(record)


def _finish(returned: object, context: StepContext) -> None:
    if returned is None:
        return
    if inspect.iscoroutine(returned):
        returned.close()
        raise TypeError("a step's function is not async: call asyncio.run() inside it")
    if not isinstance(returned, Mapping):
        raise TypeError(f"a step's function returns a dict of outputs or nothing, not {type(returned).__name__}")
    for name, value in returned.items():
        context.output(name, value)


def _ended(tree: Tree, error: BaseException, code: int) -> int:
    """Says how the author's code ended and returns the exit code for it."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)  # what the interpreter itself does with it
        return 1
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    for link in _chain(error):
        link.__traceback__ = _authors(tree, link)
    traceback.print_exception(type(error), error, error.__traceback__)
    return code


def _chain(error: BaseException) -> list[BaseException]:
    """The exception and those it came from, each once: a chain may be a circle."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is not None and link not in found:
            found.append(link)
            waiting += [link.__cause__, link.__context__]
    return found


def _authors(tree: Tree, error: BaseException) -> Any:
    """The traceback of the author's own frames: what leads to them is Corral's, what follows is a library's."""
    frames = []
    current = error.__traceback__
    while current is not None:
        if tree.relative(current.tb_frame.f_code.co_filename) is not None:
            frames.append(current)
        current = current.tb_next
    chain = None
    for frame in reversed(frames):
        frame.tb_next = chain
        chain = frame
    return chain


def _complain(message: str) -> int:
    print(message, file=sys.stderr)  # this is the step's log
    return NOT_LOADED
