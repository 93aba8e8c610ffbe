# SPDX-License-Identifier: Apache-2.0
"""A verification from the first inventory to the last scale-down, and how it is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable

from msgspec import Struct

from corral.cli.output import clean, coloured, write
from corral.cli.verifying.asking import Adversary
from corral.cli.verifying.rows import CHECKS, NotReached, Row, Status, failed, judge

COLOURS = {Status.PASSED: "green", Status.FAILED: "red", Status.SKIPPED: "yellow"}


class Verification(Struct, frozen=True, kw_only=True):
    """``left``: what could not be given back, one sentence each. ``reached``: False where not even the first event
    was answered."""

    rows: tuple[Row, ...]
    left: tuple[str, ...]
    reached: bool

    @property
    def passed(self) -> bool:
        return self.reached and not self.left and all(row.status is not Status.FAILED for row in self.rows)


async def verify(adversary: Adversary, on_row: Callable[[Row], None] = lambda row: None) -> Verification:
    """Every row, one after the other, and then everything is given back, also when this is cancelled."""
    rows: list[Row] = []
    left: list[str] = []
    try:
        for check in CHECKS:
            row = await judge(check, adversary)
            rows.append(row)
            on_row(row)
    except NotReached as wrong:
        return Verification(rows=(failed(CHECKS[0], wrong),), left=(), reached=False)
    finally:
        left = await adversary.clean_up()
    return Verification(rows=tuple(rows), left=tuple(left), reached=True)


def show(verification: Verification) -> None:
    """A table on a terminal, plain lines elsewhere."""
    if coloured(sys.stdout):
        _table(verification)
    else:
        for row in verification.rows:
            write(f"{row.status.value:<8}{row.name:<22}{clean(row.happened)}")
            if row.status is Status.FAILED:
                write(f"{'':<30}expected: {row.expected}")
                write(f"{'':<30}remedy: {row.remedy}")
    counts = {status: sum(row.status is status for row in verification.rows) for status in Status}
    write(", ".join(f"{count} {status.value}" for status, count in counts.items() if count))
    for sentence in verification.left:
        write(f"left behind: {clean(sentence)}")


def _table(verification: Verification) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "case", "what happened", "expected, and what to do", show_lines=True, expand=True)
    for row in verification.rows:
        mark = Text(row.status.value, style=COLOURS[row.status])
        advice = Text(row.expected)
        if row.remedy:
            advice.append("\n" + row.remedy, style="bold")
        table.add_row(mark, row.name, Text(clean(row.happened)), advice)
    Console(file=sys.stdout).print(table)
