# SPDX-License-Identifier: Apache-2.0
"""Loads an author's files: the same way when compiling and when a function step runs.

A module found under ``.corral/workflows`` may be imported by the others by its name; it comes before installed
packages and after the standard library, which it never hides. Each local file is hashed from the very bytes that
are run, and byte code is neither read nor written. Standard library only, any Python from 3.9.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, ModuleType

WORKFLOWS = os.path.join(".corral", "workflows")
_INSTALLED = ("site-packages", "dist-packages")


class Tree:
    """A work tree by its real path, and the local files loaded from it so far: ``files`` maps the path below the
    tree, with forward slashes, to the SHA-256."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        self.workflows = os.path.join(self.root, WORKFLOWS)
        self.files: dict[str, str] = {}

    def relative(self, file: str) -> str | None:
        """``file`` below the tree, or None when it is not local: elsewhere, or installed."""
        path = os.path.normpath(os.path.join(self.root, file))
        if not path.startswith(self.root + os.sep):
            return None
        parts = path[len(self.root) + 1 :].split(os.sep)
        return None if any(part in _INSTALLED for part in parts) else "/".join(parts)

    def record(self, file: str, data: bytes) -> None:
        relative = self.relative(file)
        if relative is not None:
            self.files[relative] = hashlib.sha256(data).hexdigest()

    def entries(self) -> list[str]:
        """The workflow files, sorted; names that start with ``_`` are helpers, loaded only when imported."""
        names = sorted(os.listdir(self.workflows))
        return [os.path.join(self.workflows, name) for name in names if name.endswith(".py") and name[0] not in "_."]

    def module_name(self, file: str) -> str:
        """The name by which ``file`` is imported: its path below ``.corral/workflows`` where that is one."""
        below = os.path.relpath(file, self.workflows)
        parts = below[: -len(".py")].split(os.sep)
        if parts[-1] == "__init__":
            parts.pop()
        if parts and all(part.isidentifier() for part in parts) and not is_standard(parts[0]):
            return ".".join(parts)
        return "corral_author_" + hashlib.sha256(os.fsencode(os.path.abspath(file))).hexdigest()[:16]


def tree_of(file: str) -> Tree:
    """The tree that ``file`` belongs to: the one whose ``.corral/workflows`` it lies in, else its own directory."""
    directory = os.path.dirname(os.path.realpath(file))
    above = directory
    while above != os.path.dirname(above):
        if os.path.isdir(os.path.join(above, WORKFLOWS)):
            return Tree(above)
        above = os.path.dirname(above)
    return Tree(directory)


def is_standard(name: str) -> bool:
    """Whether ``name`` is a top-level module of the standard library."""
    names: frozenset[str] | None = getattr(sys, "stdlib_module_names", None)
    if names is not None:
        return name in names
    library = os.path.dirname(os.__file__)
    return name in sys.builtin_module_names or importlib.machinery.PathFinder.find_spec(name, [library]) is not None


class _Recorded(importlib.machinery.SourceFileLoader):
    """Compiles from source only, and records the bytes it compiled."""

    def __init__(self, name: str, path: str, tree: Tree) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        data = self.get_data(path)
        self._tree.record(path, data)
        return self.source_to_code(data, path)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A local module's spec; None leaves the module to Python's own finders."""
        if fullname.split(".")[0] == "corral":
            return None
        found = [
            spec
            for places in self._places(fullname, path)
            for spec in [importlib.machinery.PathFinder.find_spec(fullname, places, target)]
            if spec is not None
        ]
        regular = [spec for spec in found if spec.origin is not None]
        return self._local(regular[0]) if regular else next(filter(self._is_folder, found), None)

    def _places(self, fullname: str, path: Sequence[str] | None) -> Iterator[Sequence[str] | None]:
        if path is None and not is_standard(fullname):
            yield [self._tree.workflows]
        yield path

    def _is_folder(self, spec: importlib.machinery.ModuleSpec) -> bool:
        """A folder of the tree without ``__init__.py``."""
        return any(self._tree.relative(place) is not None for place in spec.submodule_search_locations or ())

    def _local(self, spec: importlib.machinery.ModuleSpec) -> importlib.machinery.ModuleSpec | None:
        if spec.origin is None or self._tree.relative(spec.origin) is None:
            return None
        if isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Recorded(spec.name, spec.origin, self._tree)
        elif os.path.isfile(spec.origin):
            with open(spec.origin, "rb") as file:
                self._tree.record(spec.origin, file.read())
        return spec


def install(tree: Tree) -> None:
    """Make the tree's modules importable in this process, for good."""
    sys.dont_write_bytecode = True
    sys.meta_path.insert(0, _Finder(tree))


def module_for(tree: Tree, file: str) -> ModuleType:
    """A new module for ``file``, registered but not run; its parent packages are imported."""
    name = tree.module_name(file)
    parent = name.rpartition(".")[0]
    if parent:
        importlib.import_module(parent)
    loader = _Recorded(name, file, tree)
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    if spec is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    return module


def load(tree: Tree, file: str) -> ModuleType:
    """The module of ``file``, run if it was not yet."""
    name = tree.module_name(file)
    if name in sys.modules:
        return sys.modules[name]
    module = module_for(tree, file)
    try:
        module.__spec__.loader.exec_module(module)  # type: ignore[union-attr]
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
