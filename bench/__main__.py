# SPDX-License-Identifier: Apache-2.0
"""`make bench`, or `python -m bench [CASE …] [--runs N] [--json FILE]`: a table, and JSON for machines."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
from pathlib import Path

from bench.cases import CASES
from bench.harness import CONFIG, BenchFailed, Figure

RUNS = 5


def main() -> int:
    options = _options()
    figures: list[Figure] = []
    failed = 0
    for name in options.case or CASES:
        print(f"… {name}", file=sys.stderr, flush=True)
        try:
            figures += asyncio.run(CASES[name](options.runs))
        except BenchFailed as error:
            failed += 1
            print(f"{name}: {error}", file=sys.stderr)
    print(_table(figures))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(_report(figures, options.runs), indent=2) + "\n")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("case", nargs="*", choices=[*CASES, []], help="default: all")
    parser.add_argument("--runs", type=int, default=RUNS, help="figures are medians of this many runs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


def _table(figures: list[Figure]) -> str:
    rows = [("figure", "median", "min", "max", "target", "")]
    for figure in figures:
        verdict = {None: "", True: "met", False: "MISSED"}[figure.met]
        target = "" if figure.target is None else f"{'≤' if figure.better == 'lower' else '≥'} {figure.target:g}"
        values = (figure.median, min(figure.values), max(figure.values))
        rows.append((f"{figure.name} [{figure.unit}]", *(f"{value:.4g}" for value in values), target, verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _report(figures: list[Figure], runs: int) -> dict[str, object]:
    return {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "configuration": CONFIG,
        "runs": runs,
        "figures": [
            {
                "name": figure.name,
                "unit": figure.unit,
                "median": figure.median,
                "values": figure.values,
                "stdev": statistics.pstdev(figure.values),
                "target": figure.target,
                "met": figure.met,
                "note": figure.note,
            }
            for figure in figures
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
