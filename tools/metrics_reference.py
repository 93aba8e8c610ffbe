# SPDX-License-Identifier: Apache-2.0
"""Writes ``docs/reference/metrics.md`` from the table of metrics; ``--check`` only says whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from generated import main

from corral.control.measures import METRICS
from corral.runtime.metrics import OPEN_LIMIT, Metric

PLACE = Path(__file__).parents[1] / "docs" / "reference" / "metrics.md"
HEAD = f"""\
# Metrics

Written by `tools/metrics_reference.py` from the table in `corral/control/measures.py` (`make docs`). They are at
`/metrics`; who may read them and what to do with them is in [operations](../operations.md).

Gauges are computed from the state at each scrape; while the database is away, those that need it are missing. Counters
and histograms begin at 0 with each start of a coordinator. A label without a list of values carries a name from the
configuration, at most {OPEN_LIMIT} different ones; every value that is not listed here becomes `other`.

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def reference() -> str:
    """The whole file."""
    return HEAD + "\n".join(_row(metric) for metric in METRICS) + "\n"


def _row(metric: Metric) -> str:
    labels = "; ".join(
        f"`{label.name}`" + (f": {', '.join(label.values)}" if label.values else "") for label in metric.labels
    )
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


if __name__ == "__main__":
    sys.exit(main(PLACE, reference))
