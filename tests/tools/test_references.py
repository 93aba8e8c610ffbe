# SPDX-License-Identifier: Apache-2.0
"""The generated references say what the program does now; ``make docs`` writes them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli_reference", "api_reference", "metrics_reference", "grafana_dashboard"])
def test_a_reference_is_up_to_date(name: str) -> None:
    found = tool(name)
    assert found.PLACE.read_text() == found.reference(), f"run: python tools/{name}.py"
