# SPDX-License-Identifier: Apache-2.0
"""Loads every workflow of a tree in this process and reports, as JSON lines, what they say and what is wrong.

Started as ``PYTHON runner.py --collect TREE SKIP REPORT_FD TRACE_FD`` by ``corral.compile``; SKIP: files to leave
out, with commas. Lines on REPORT_FD: ``{"loading": file}`` before each file, so that a process that ends early names
the culprit, then one ``{"workflows", "files", "faults", "incomplete"}``. On SIGUSR1, and on a crash of the
interpreter, the stack is written to TRACE_FD, so that an endless loop has a line number. Standard library only, any
Python from 3.9.
"""

from __future__ import annotations

import ast
import builtins
import faulthandler
import json
import os
import re
import signal
import sys
from types import CodeType, ModuleType, TracebackType
from typing import Any

from corral.workflow.export import Export
from corral.workflow.language import Workflow, declared
from corral.workflow.loading import Tree, install, module_for
from corral.workflow.words import did_you_mean

_LANGUAGE_FOLDER = os.path.dirname(os.path.abspath(__file__))


def collect(argv: list[str]) -> int:
    root, skip, report, trace = argv
    skipped = skip.split(",")
    faulthandler.enable(file=int(trace), all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=int(trace), all_threads=False)
    collector = _Collector(Tree(root), int(report))
    collector.load([file for file in collector.tree.entries() if collector.tree.relative(file) not in skipped])
    collector.finish()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # neither a thread nor an exit handler of the author's keeps the report waiting


class _Collector:
    def __init__(self, tree: Tree, report: int) -> None:
        self.tree = tree
        self._report = report
        self._export = Export(tree)
        self._incomplete: list[str] = []

    def load(self, files: list[str]) -> None:
        install(self.tree)
        for file in files:
            self._tell({"loading": self.tree.relative(file)})
            before = len(self._export.faults)
            self._load(file)
            if len(self._export.faults) > before:
                self._incomplete.append(str(self.tree.relative(file)))

    def finish(self) -> None:
        workflows = [found for workflow in declared() for found in self._exported(workflow)]
        self._tell(
            {
                "workflows": workflows,
                "files": self.tree.files,
                "faults": self._export.faults,
                "incomplete": self._incomplete,
            }
        )

    def _exported(self, workflow: Workflow) -> list[dict[str, Any]]:
        """The workflow as data; an author's own class may raise while it is read."""
        try:
            return [self._export.workflow(workflow)]
        except Exception as error:
            self._failed(workflow.origin.file, error)
            return []

    def _tell(self, line: dict[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        while data:
            data = data[os.write(self._report, data) :]

    def _load(self, file: str) -> None:
        """Run the file statement by statement: after one fails, the others still tell what is wrong with them."""
        name = self.tree.module_name(file)
        if name in sys.modules:
            return
        strange = _strange(self.tree.root, file)
        if strange:
            where = str(self.tree.relative(file))
            fault = {"file": where, "line": 0, "column": 0, "path": "", "message": strange, "remedy": "remove it"}
            self._export.faults.append(fault)
            return
        try:
            module = module_for(self.tree, file)
            with open(file, "rb") as opened:
                data = opened.read()
            self.tree.record(file, data)
            statements = _statements(data, file)
        except BaseException as error:
            self._failed(file, error)
            return
        lost: set[str] = set()
        for statement, code in statements:
            self._run(file, module, statement, code, lost)

    def _run(self, file: str, module: ModuleType, statement: ast.stmt, code: CodeType, lost: set[str]) -> None:
        try:
            exec(code, module.__dict__)
        except BaseException as error:
            if not (isinstance(error, NameError) and lost & {_missing_name(error), "*"}):
                self._failed(file, error)
            lost |= _bound(statement)

    def _failed(self, file: str, error: BaseException) -> None:
        where, line, column = self._place(file, error)
        message, remedy = _explained(error)
        fault = {"file": where, "line": line, "column": column, "path": "", "message": message, "remedy": remedy}
        if fault not in self._export.faults:
            self._export.faults.append(fault)

    def _place(self, file: str, error: BaseException) -> tuple[str, int, int]:
        if isinstance(error, SyntaxError) and error.filename and self.tree.relative(error.filename) is not None:
            return str(self.tree.relative(error.filename)), error.lineno or 0, error.offset or 0
        place = (str(self.tree.relative(file)), 0)
        for frame_file, line in _frames(error.__traceback__):
            relative = self.tree.relative(frame_file)
            if relative is not None and os.path.dirname(frame_file) != _LANGUAGE_FOLDER:
                place = (relative, line)
        return (*place, 0)


def _strange(root: str, file: str) -> str:
    """What is wrong with a workflow file that is no file of the tree; opening a pipe would wait for ever."""
    if os.path.commonpath([root, os.path.realpath(file)]) != root:
        return "is a link out of the tree"
    if not os.path.isfile(file):
        return "is not a regular file"
    return ""


def _frames(traceback: TracebackType | None) -> list[tuple[str, int]]:
    found = []
    while traceback is not None:
        found.append((traceback.tb_frame.f_code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found


def _statements(data: bytes, file: str) -> list[tuple[ast.stmt, CodeType]]:
    """Each statement with its code. The whole is compiled first: some errors show only there."""
    whole = compile(data, file, "exec", dont_inherit=True)
    flags = whole.co_flags & _FUTURE_FLAGS
    tree = ast.parse(data, file)
    return [
        (statement, compile(ast.Module([statement], []), file, "exec", flags=flags, dont_inherit=True))
        for statement in tree.body
    ]


def _future_flags() -> int:
    import __future__

    flags = 0
    for name in __future__.all_feature_names:
        flags |= getattr(__future__, name).compiler_flag
    return flags


_FUTURE_FLAGS = _future_flags()


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement would have given a meaning at module level, as far as its text shows."""
    found: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return found


def _missing_name(error: NameError) -> str:
    name = getattr(error, "name", None)  # Python 3.10 and later
    match = re.search(r"'([^']+)'", str(error))
    return str(name or (match.group(1) if match else ""))


def _explained(error: BaseException) -> tuple[str, str]:
    """What happened in one line, and what to do."""
    text = _text(error)
    if isinstance(error, SyntaxError):
        return f"syntax error: {error.msg}", "correct the Python syntax"
    if isinstance(error, NameError):
        name = _missing_name(error)
        return f"name {name!r} is not defined{_similar(error, name)}", "define or import it"
    if isinstance(error, ImportError):
        return re.sub(r" \(.*\)$", "", text) + _similar_import(error), _IMPORTING
    if isinstance(error, AttributeError):
        wanted, owner = getattr(error, "name", None), getattr(error, "obj", None)
        hint = did_you_mean(wanted, dir(owner)) if isinstance(wanted, str) and owner is not None else ""
        return f"AttributeError: {text}{hint}", _RAISED
    if isinstance(error, SystemExit):
        return f"the workflow ended its process: sys.exit({error.code!r})", "remove it: a workflow only describes jobs"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__, _RAISED


def _text(error: BaseException) -> str:
    try:
        return " ".join(str(error).split())[:500]
    except Exception:  # an author's __str__ may do anything
        return ""


_RAISED = "a workflow file must load without an exception"
_IMPORTING = "compiling sees the standard library, packages installed beside Corral, and .corral/workflows"


def _similar(error: BaseException, name: str) -> str:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return ""
    frame = traceback.tb_frame
    return did_you_mean(name, [*frame.f_locals, *frame.f_globals, *dir(builtins)])


def _similar_import(error: ImportError) -> str:
    """``from corral.workflow import Retri``: Python says only that there is none."""
    match = re.search(r"cannot import name '([^']+)'", str(error))
    module = sys.modules.get(error.name or "")
    if match is None or module is None:
        return ""
    public = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
    return did_you_mean(match.group(1), public)
