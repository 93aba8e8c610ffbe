# SPDX-License-Identifier: Apache-2.0
"""The lints notice a breach and say what to do. (`make lint` runs them over the repository.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import lints


def written(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("import time\n", "imports time"),
        ("from random import choice\n", "imports random"),
        ("import uuid as u\n", "imports uuid"),
        ("def f():\n    import secrets\n", "imports secrets"),
        ("from datetime import datetime\nx = datetime.now()\n", "calls datetime.now()"),
        ("import asyncio\nx = asyncio.get_running_loop().time()\n", "reads the event loop's clock"),
        ("import os\nx = os.urandom(3)\n", "reads os.urandom"),
    ],
)
def test_reading_a_clock_is_noticed_with_what_to_do(tmp_path: Path, text: str, what: str) -> None:
    path = written(tmp_path, "src/corral/control/thing.py", text)
    (line,) = lints.clocks(tmp_path, path)
    assert what in line
    assert "corral.runtime" in line


def test_the_runtime_room_may(tmp_path: Path) -> None:
    path = written(tmp_path, "src/corral/runtime/clock.py", "import time\n")
    assert list(lints.clocks(tmp_path, path)) == []


def test_a_missing_licence_line(tmp_path: Path) -> None:
    assert list(lints.licence(tmp_path, written(tmp_path, "a.py", "x = 1\n"))) == [
        "a.py:1: no licence line; write `# SPDX-License-Identifier: Apache-2.0` first"
    ]
    assert list(lints.licence(tmp_path, written(tmp_path, "b.py", "# SPDX-License-Identifier: Apache-2.0\n"))) == []
    assert list(lints.licence(tmp_path, written(tmp_path, "c.py", ""))) == []


@pytest.mark.parametrize("name", ["utils.py", "helpers/__init__.py", "log_manager.py", "common.py"])
def test_a_name_that_says_nothing(tmp_path: Path, name: str) -> None:
    assert len(list(lints.vague_name(tmp_path, written(tmp_path, name, "")))) == 1


def test_other_names_are_fine(tmp_path: Path) -> None:
    assert list(lints.vague_name(tmp_path, written(tmp_path, "commonly.py", ""))) == []
