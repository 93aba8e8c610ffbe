# SPDX-License-Identifier: Apache-2.0
"""The generated files say what the program does now; ``make docs`` writes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.mark.parametrize(
    "name", ["cli_reference", "api_reference", "metrics_reference", "grafana_dashboard", "event_reference"]
)
def test_a_generated_file_is_up_to_date(name: str) -> None:
    done = subprocess.run([sys.executable, str(TOOLS / f"{name}.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stdout, "a generator prints nothing"
