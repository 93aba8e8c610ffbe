# SPDX-License-Identifier: Apache-2.0
"""Counters and histograms, each declared before it is used, and their text for Prometheus.

No global registry: whoever counts is given a :class:`Metrics`. Levels are not kept here, they are computed from the
state at each scrape (``docs/adr/0021-metrics.md``).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

OTHER = "other"
"""Stands for every label value that was not declared, so that a stranger's word never makes a time series."""
OPEN_LIMIT = 1000
"""Different values of one label whose values the configuration names; beyond it ``other``."""
MEDIA_TYPE = "text/plain; version=0.0.4"


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True)
class Label:
    """``values``: all there are; empty: names from the configuration, at most :data:`OPEN_LIMIT`."""

    name: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Metric:
    """``name`` carries prefix and unit, of a counter also ``_total``. ``buckets``: upper bounds of a histogram."""

    name: str
    kind: Kind
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Level:
    """One gauge as it is now. ``values``: of the metric's labels, in their order."""

    metric: Metric
    value: float
    values: tuple[str, ...] = ()


@dataclass(kw_only=True)
class _Histogram:
    counts: list[int]
    sum: float = 0.0


@dataclass(kw_only=True)
class _Series:
    counters: dict[tuple[str, ...], float] = field(default_factory=dict)
    histograms: dict[tuple[str, ...], _Histogram] = field(default_factory=dict)


class Metrics:
    """What is counted in one process. May be called from any thread."""

    def __init__(self, table: Sequence[Metric]) -> None:
        self.table = tuple(table)
        self._lock = threading.Lock()
        self._series: dict[Metric, _Series] = {metric: _Series() for metric in self.table}
        self._named: dict[tuple[Metric, str], set[str]] = {}
        for metric in self.table:
            if not metric.labels:
                self._begin(metric, ())

    def _begin(self, metric: Metric, values: tuple[str, ...]) -> None:
        """A series without labels is shown from the start: one that appears with its first event has no rate."""
        if metric.kind is Kind.COUNTER:
            self._series[metric].counters.setdefault(values, 0.0)
        elif metric.kind is Kind.HISTOGRAM:
            empty = _Histogram(counts=[0] * (len(metric.buckets) + 1))
            self._series[metric].histograms.setdefault(values, empty)

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter. :raises KeyError: not in the table, or not its labels."""
        assert metric.kind is Kind.COUNTER
        with self._lock:
            values = self._values(metric, labels)
            counters = self._series[metric].counters
            counters[values] = counters.get(values, 0.0) + amount

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add one observation to a histogram. :raises KeyError: not in the table, or not its labels."""
        assert metric.kind is Kind.HISTOGRAM
        with self._lock:
            values = self._values(metric, labels)
            self._begin(metric, values)
            found = self._series[metric].histograms[values]
            found.counts[bisect_left(metric.buckets, value)] += 1
            found.sum += value

    def counted(self, metric: Metric, **labels: str) -> float:
        """What a counter says now; of a histogram, how many observations."""
        values = tuple(labels[label.name] for label in metric.labels)
        with self._lock:
            if metric.kind is Kind.HISTOGRAM:
                found = self._series[metric].histograms.get(values)
                return float(sum(found.counts)) if found is not None else 0.0
            return self._series[metric].counters.get(values, 0.0)

    def render(self, levels: Iterable[Level]) -> bytes:
        """Everything in Prometheus' text format, in the order of the table."""
        return ("\n".join(self._lines(levels)) + "\n").encode("utf-8", "replace")

    # --- labels ---

    def _values(self, metric: Metric, labels: Mapping[str, str]) -> tuple[str, ...]:
        if len(labels) != len(metric.labels):
            raise KeyError(f"{metric.name} has the labels {[label.name for label in metric.labels]}, not {[*labels]}")
        return tuple(self._bounded(metric, label, labels[label.name]) for label in metric.labels)

    def _bounded(self, metric: Metric, label: Label, value: str) -> str:
        if label.values:
            return value if value in label.values else OTHER
        named = self._named.setdefault((metric, label.name), set())
        if value not in named and len(named) >= OPEN_LIMIT:
            return OTHER
        named.add(value)
        return value

    # --- showing ---

    def _lines(self, levels: Iterable[Level]) -> Iterator[str]:
        gauges: dict[Metric, list[Level]] = {}
        for level in levels:
            gauges.setdefault(level.metric, []).append(level)
        for metric in self.table:
            yield f"# HELP {metric.name} {_escape(metric.help, quotes=False)}"
            yield f"# TYPE {metric.name} {metric.kind}"
            match metric.kind:
                case Kind.GAUGE:
                    yield from (
                        _sample(metric.name, metric, each.values, each.value) for each in gauges.get(metric, ())
                    )
                case Kind.COUNTER:
                    with self._lock:
                        counters = list(self._series[metric].counters.items())
                    yield from (_sample(metric.name, metric, values, value) for values, value in counters)
                case Kind.HISTOGRAM:
                    with self._lock:
                        yield from _histogram(metric, self._series[metric].histograms)


def _sample(name: str, metric: Metric, values: Sequence[str], value: float, bound: str = "") -> str:
    pairs = [f'{label.name}="{_escape(text)}"' for label, text in zip(metric.labels, values, strict=True)]
    if bound:
        pairs.append(f'le="{bound}"')
    return f"{name}{{{','.join(pairs)}}} {float(value)!r}" if pairs else f"{name} {float(value)!r}"


def _histogram(metric: Metric, series: Mapping[tuple[str, ...], _Histogram]) -> list[str]:
    lines = []
    for values, found in series.items():
        so_far = 0
        for bound, count in zip([*map(repr, metric.buckets), "+Inf"], found.counts, strict=True):
            so_far += count
            lines.append(_sample(f"{metric.name}_bucket", metric, values, so_far, bound))
        lines.append(_sample(f"{metric.name}_sum", metric, values, found.sum))
        lines.append(_sample(f"{metric.name}_count", metric, values, so_far))
    return lines


def _escape(text: str, *, quotes: bool = True) -> str:
    if text.isalnum():
        return text
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
