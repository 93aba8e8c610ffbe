# SPDX-License-Identifier: Apache-2.0
"""``corral diagnose``: what is shown, and with which exit code."""

from __future__ import annotations

import json

import pytest

from corral.model.views import DiagnoseRow
from tests.cli.double import DoubleWiring, corral


def rows(*statuses: str) -> tuple[DiagnoseRow, ...]:
    return tuple(
        DiagnoseRow(
            group="pools" if n else "database",
            name=f"check {n}",
            status=status,
            message=f"sentence \x1b[31m{n}",
            remedy="do this" if status in ("warning", "failed") else "",
        )
        for n, status in enumerate(statuses)
    )


@pytest.mark.parametrize(
    ("statuses", "code"),
    [(("ok", "skipped"), 0), (("ok", "warning"), 1), (("warning", "failed", "ok"), 2)],
)
def test_the_exit_code_says_how_bad_it_is(statuses: tuple[str, ...], code: int) -> None:
    wiring = DoubleWiring()
    wiring.api.diagnosis = rows(*statuses)
    assert corral("diagnose", wiring=wiring).exit_code == code
    assert corral("diagnose", "--json", wiring=wiring).exit_code == code


def test_rows_are_grouped_with_their_remedy_and_without_strangers_colours() -> None:
    wiring = DoubleWiring()
    wiring.api.diagnosis = rows("ok", "warning", "failed")
    shown = corral("diagnose", wiring=wiring).stdout
    assert shown.splitlines() == [
        "Database",
        "  ✓ check 0  sentence 0",
        "Pools",
        "  ! check 1  sentence 1",
        "             → do this",
        "  ✗ check 2  sentence 2",
        "             → do this",
        "1 ok, 1 warnings, 1 failed, 0 skipped",
    ]
    assert "\x1b" not in shown


def test_json_is_the_view_and_only_is_passed_on() -> None:
    wiring = DoubleWiring()
    wiring.api.diagnosis = rows("ok", "warning")
    found = json.loads(corral("diagnose", "--json", "--only", "check 0", wiring=wiring).stdout)
    assert (found["status"], [row["name"] for row in found["rows"]]) == ("ok", ["check 0"])
    wrong = corral("diagnose", "--only", "nothing", wiring=wiring)
    assert wrong.exit_code == 2
    assert "no check is called 'nothing'" in wrong.stderr
