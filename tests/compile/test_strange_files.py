# SPDX-License-Identifier: Apache-2.0
"""Workflow files that are no files: told in a sentence, never waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corral.compile import compile_tree
from corral.model.errors import Invalid


def test_pipes_directories_and_links_out_of_the_tree_are_faults(tmp_path: Path) -> None:
    workflows = tmp_path / "tree" / ".corral" / "workflows"
    workflows.mkdir(parents=True)
    os.mkfifo(workflows / "a.py")
    (workflows / "b.py").mkdir()
    (tmp_path / "outside.py").write_text("x = 1\n")
    (workflows / "c.py").symlink_to(tmp_path / "outside.py")
    with pytest.raises(Invalid) as caught:
        compile_tree(tmp_path / "tree", timeout=20)
    told = {fault.file: fault.message for fault in caught.value.faults}
    assert told[".corral/workflows/a.py"] == "is not a regular file"
    assert told[".corral/workflows/b.py"] == "is not a regular file"
    assert told[".corral/workflows/c.py"] == "is a link out of the tree"
