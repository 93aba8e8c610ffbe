# SPDX-License-Identifier: Apache-2.0
"""Work trees for tests: files by name, with the author's indentation removed."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from corral.compile import compile_tree
from corral.model.errors import Fault, Invalid
from corral.model.spec import Lock


def make_tree(root: Path, **files: str) -> Path:
    """``.corral/workflows/NAME.py`` for each; ``__`` in a name is a slash."""
    folder = root / ".corral" / "workflows"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
    return root


def compiled(root: Path, **files: str) -> Lock:
    return compile_tree(make_tree(root, **files))


def faults_of(root: Path, **files: str) -> tuple[Fault, ...]:
    with pytest.raises(Invalid) as caught:
        compile_tree(make_tree(root, **files))
    return caught.value.faults
