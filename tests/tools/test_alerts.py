# SPDX-License-Identifier: Apache-2.0
"""Alert rules and dashboard speak of metrics, labels and values that exist; each alert says what to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from corral.control.measures import METRICS
from corral.runtime.metrics import Kind, Metric

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "corral-alerts.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "corral.json"
SERIES = {
    name: metric
    for metric in METRICS
    for name in (
        [metric.name]
        if metric.kind is not Kind.HISTOGRAM
        else [f"{metric.name}{suffix}" for suffix in ("_bucket", "_sum", "_count")]
    )
}


def rules() -> list[dict[str, Any]]:
    loaded = YAML(typ="safe").load(RULES.read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def faults(expression: str) -> list[str]:
    """What an expression names and the code does not have."""
    found: list[str] = []
    named: list[Metric] = []
    for name, selector in re.findall(r"\b(corral_\w+)(\{[^}]*\})?", expression):
        metric = SERIES.get(name)
        if metric is None:
            found.append(f"no metric {name}")
            continue
        named.append(metric)
        values = {label.name: label.values for label in metric.labels}
        for label, value in re.findall(r'(\w+)="([^"]*)"', selector):
            if label not in values:
                found.append(f"{name} has no label {label}")
            elif values[label] and value not in values[label]:
                found.append(f"{label} of {name} is never {value}")
    labels = {label.name for metric in named for label in metric.labels} | {"le"}
    for grouping in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        found += [f"nothing here has a label {each}" for each in re.split(r",\s*", grouping) if each not in labels]
    for name in re.findall(r"(?:rate|increase)\((corral_\w+)", expression):
        if name in SERIES and SERIES[name].kind is Kind.GAUGE:
            found.append(f"{name} is a level and has no rate")
    return found + ([] if named else ["names no metric of ours"])


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rule_speaks_of_what_exists_and_says_what_to_do(rule: dict[str, Any]) -> None:
    assert faults(rule["expr"]) == []
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert re.fullmatch(r"\d+[sm]", rule["for"])
    assert rule["expr"].startswith("absent(") or re.search(r"(>=?|<|==) [\d.]+", rule["expr"])
    labels = {label for grouping in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"]) for label in grouping.split()}
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels
    place, _, heading = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^## (\w+)$", (ROOT / place).read_text(), re.MULTILINE)
    assert heading in [each.lower() for each in headings]


def test_every_alert_has_one_rule_and_every_entry_of_the_page_is_one() -> None:
    names = [rule["alert"] for rule in rules()]
    page = (ROOT / "docs" / "alerts.md").read_text()
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == names
    assert len(set(names)) == len(names)
    for rule in rules():
        assert f"`{rule['labels']['severity']}` after {rule['for']} of `{rule['expr']}`" in page


def test_every_query_of_the_dashboard_speaks_of_what_exists() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(queries) > 20
    assert [fault for query in queries for fault in faults(query)] == []


@pytest.mark.parametrize(
    "expression",
    [
        "corral_nonsense > 1",
        'corral_jobs{state="asleep"} > 1',
        'corral_jobs{pool="x"} > 1',
        "max by (pool) (corral_jobs) > 1",
        "rate(corral_jobs[5m]) > 1",
        "up == 0",
    ],
)
def test_what_does_not_exist_is_found(expression: str) -> None:
    assert faults(expression)


def test_names_carry_prefix_and_unit() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"corral_[a-z][a-z_]*[a-z]", metric.name)
        assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER)
        assert metric.kind is not Kind.HISTOGRAM or metric.name.endswith("_seconds")
        assert metric.help.endswith(".")
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_prometheus_itself_takes_the_rules() -> None:
    done = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
