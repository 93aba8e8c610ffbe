# SPDX-License-Identifier: Apache-2.0
"""Writes ``deploy/grafana/corral.json``, a panel for each metric that is worth a look, from the table of metrics; with
``--check`` only says whether it is up to date."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from generated import main

from corral.control import measures as m
from corral.runtime.metrics import Kind, Metric

PLACE = Path(__file__).parents[1] / "deploy" / "grafana" / "corral.json"
ROWS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    ("Queue", (m.JOBS_OLDEST, m.JOBS_WAITING, m.POOL_QUEUED, m.JOBS_ENDED, m.JOB_WAIT, m.DISPATCH)),
    ("Agents", (m.AGENTS_IDLE, m.AGENTS_BUSY, m.PROVISIONS, m.POOL_ROOM, m.CLUSTER_ROOM, m.CLAIMS)),
    ("Failures", (m.FAILURES, m.BACKOFF, m.CREATES, m.DESTROYS, m.CREATE_SECONDS)),
    ("Money", (m.CLUSTER_COST, m.LEAKED_COST, m.ABANDONED, m.STRAYS, m.GHOSTS)),
    ("Provisioners", (m.DELIVERY_LAG, m.DELIVERIES, m.EPOCH_BEHIND)),
    ("Server", (m.SERVICE_AGE, m.SERVICE_PASSES, m.DATABASE_WRITE, m.DATABASE_ERRORS, m.DISK_FREE, m.LOG_BYTES)),
)
WIDTH, HEIGHT, ACROSS = 8, 7, 3


def query(metric: Metric) -> str:
    """What a panel shows of the metric."""
    by = ", ".join(label.name for label in metric.labels)
    match metric.kind:
        case Kind.COUNTER:
            return f"sum by ({by}) (rate({metric.name}[5m]))" if by else f"sum(rate({metric.name}[5m]))"
        case Kind.HISTOGRAM:
            return f"histogram_quantile(0.95, sum by (le) (rate({metric.name}_bucket[5m])))"
        case Kind.GAUGE:
            return f"max by ({by}) ({metric.name})" if by else f"max({metric.name})"


def unit(metric: Metric) -> str:
    name = metric.name.removesuffix("_total")
    units = {"_seconds": "s", "_bytes": "bytes", "_cost_per_hour": "currency"}
    found = next((shown for suffix, shown in units.items() if name.endswith(suffix)), "short")
    return "Bps" if found == "bytes" and metric.kind is Kind.COUNTER else found


def dashboard() -> str:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, metrics in ROWS:
        panels.append({"type": "row", "title": title, "id": len(panels) + 1, "gridPos": _place(0, top, 24, 1)})
        for number, metric in enumerate(metrics):
            left, down = number % ACROSS, number // ACROSS
            place = _place(left * WIDTH, top + 1 + down * HEIGHT, WIDTH, HEIGHT)
            panels.append(_panel(metric, len(panels) + 1, place))
        top += 1 + -(-len(metrics) // ACROSS) * HEIGHT
    whole = {
        "title": "Corral",
        "uid": "corral",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": panels,
    }
    return json.dumps(whole, indent=1) + "\n"


def _place(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(metric: Metric, number: int, place: dict[str, int]) -> dict[str, Any]:
    labels = " ".join(f"{{{{{label.name}}}}}" for label in metric.labels)
    legend = "p95" if metric.kind is Kind.HISTOGRAM else labels
    return {
        "type": "timeseries",
        "id": number,
        "title": metric.name,
        "description": metric.help,
        "gridPos": place,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": unit(metric), "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": query(metric), "legendFormat": legend or metric.name}],
    }


if __name__ == "__main__":
    sys.exit(main(PLACE, dashboard))
