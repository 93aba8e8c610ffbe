# SPDX-License-Identifier: Apache-2.0
"""Random histories: a few on every run of the tests, many at night."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from corral.sim.run import run_seed

BATCHES = 10
PER_BATCH = 5
MINUTES = 2.0
NIGHTLY = range(10_000, 10_400, 20)


def play(first: int, count: int, minutes: float) -> None:
    counted = 0
    for seed in range(first, first + count):
        outcome, _ = run_seed(seed, minutes)
        assert not outcome.violation, (
            f"seed {seed}: {outcome.violation}: {outcome.message}\ncorral sim replay {seed} --minutes {minutes:g}"
        )
        counted += outcome.counts
    assert counted >= count // 2, "most seeds must meet faults and tear instances down, or they prove nothing"


@pytest.mark.parametrize("batch", range(BATCHES))
def test_seeds(batch: int) -> None:
    play(1 + batch * PER_BATCH, PER_BATCH, MINUTES)


@pytest.mark.nightly
@pytest.mark.parametrize("first", NIGHTLY)
def test_many_seeds(first: int) -> None:
    play(first, 20, 10.0)


def test_a_seed_is_one_history_in_every_process() -> None:
    """Another hash seed and another address space, the same digest of every event."""
    script = (
        "from corral.sim.run import run_seed; import json; o, _ = run_seed(7, 2.0);"
        " print(json.dumps([o.digest, o.events]))"
    )

    def told(hash_seed: str) -> list[object]:
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        found: list[object] = json.loads(done.stdout)
        return found

    here, _ = run_seed(7, 2.0)
    assert told("1") == told("4242") == [here.digest, here.events]
    assert here.events > 100


def test_the_kept_timeline_is_that_of_the_digest() -> None:
    bare, nothing = run_seed(7, 1.0)
    kept, entries = run_seed(7, 1.0, keep=True)
    assert (bare.digest, nothing) == (kept.digest, [])
    assert len(entries) == kept.events
    times = [entry.at for entry in entries]
    assert times == sorted(times)


def test_two_seeds_are_two_histories() -> None:
    assert run_seed(7, 0.5)[0].digest != run_seed(8, 0.5)[0].digest
