# SPDX-License-Identifier: Apache-2.0
"""Counters, histograms and their text; and that no stranger's word becomes a time series."""

from __future__ import annotations

import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from corral.runtime.metrics import OPEN_LIMIT, Kind, Label, Level, Metric, Metrics

JOBS = Metric(name="x_jobs_total", kind=Kind.COUNTER, help="Jobs.", labels=(Label(name="result", values=("a", "b")),))
POOLS = Metric(name="x_pools_total", kind=Kind.COUNTER, help="Pools.", labels=(Label(name="pool"),))
PLAIN = Metric(name="x_plain_total", kind=Kind.COUNTER, help="Plain.")
WAIT = Metric(name="x_wait_seconds", kind=Kind.HISTOGRAM, help="Wait.", buckets=(1.0, 2.0))
LEVEL = Metric(name="x_level", kind=Kind.GAUGE, help="Level\nof \\ it.", labels=(Label(name="pool"),))


def fresh() -> Metrics:
    return Metrics((JOBS, POOLS, PLAIN, WAIT, LEVEL))


def samples(metrics: Metrics, *levels: Level) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = metrics.render(levels).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_counter_adds_up_by_labels() -> None:
    metrics = fresh()
    metrics.count(JOBS, result="a")
    metrics.count(JOBS, 2, result="a")
    metrics.count(JOBS, result="b")
    found = samples(metrics)
    assert found[("x_jobs_total", (("result", "a"),))] == 3
    assert found[("x_jobs_total", (("result", "b"),))] == 1


def test_a_counter_without_labels_is_there_before_its_first_event() -> None:
    assert samples(fresh())[("x_plain_total", ())] == 0
    assert samples(fresh())[("x_wait_seconds_count", ())] == 0


def test_a_histogram_counts_a_value_at_a_bound_below_it() -> None:
    metrics = fresh()
    for value in (0.5, 1.0, 1.5, 9.0):
        metrics.observe(WAIT, value)
    found = samples(metrics)
    bounds = {dict(labels)["le"]: value for (name, labels), value in found.items() if name == "x_wait_seconds_bucket"}
    assert bounds == {"1.0": 2, "2.0": 3, "+Inf": 4}
    assert (found[("x_wait_seconds_sum", ())], found[("x_wait_seconds_count", ())]) == (12.0, 4)


def test_a_value_that_was_not_declared_is_other() -> None:
    metrics = fresh()
    metrics.count(JOBS, result="' or 1=1")
    assert samples(metrics)[("x_jobs_total", (("result", "other"),))] == 1


def test_names_from_the_configuration_are_bounded_in_number() -> None:
    metrics = fresh()
    for number in range(OPEN_LIMIT + 5):
        metrics.count(POOLS, pool=f"p{number}")
    found = samples(metrics)
    assert found[("x_pools_total", (("pool", "other"),))] == 5
    assert len([name for name, _ in found if name == "x_pools_total"]) == OPEN_LIMIT + 1


def test_labels_that_were_not_declared_are_a_bug_that_shows() -> None:
    for labels in ({}, {"result": "a", "job": "x"}, {"job": "x"}):
        with pytest.raises(KeyError):
            fresh().count(JOBS, **labels)


def test_levels_are_only_what_this_scrape_saw() -> None:
    metrics = fresh()
    name = 'q"uo\\te\n'
    assert samples(metrics, Level(metric=LEVEL, value=2, values=(name,)))[("x_level", (("pool", name),))] == 2
    assert not [key for key in samples(metrics) if key[0] == "x_level"]


def test_counting_from_many_threads_loses_nothing() -> None:
    metrics = fresh()

    def work() -> None:
        for _ in range(1000):
            metrics.count(PLAIN)
            metrics.observe(WAIT, 1.0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (metrics.counted(PLAIN), metrics.counted(WAIT)) == (4000, 4000)
