# SPDX-License-Identifier: Apache-2.0
"""What becomes of a job when an attempt ended: the tables, walked."""

from __future__ import annotations

import itertools

import pytest

from corral.decide import settling
from corral.decide.settling import LOST_TRIES_MAX, NO_RETRY, Next, Settlement, after_failure, after_loss, offer_pause
from corral.model.spec import Backoff, JobSpec, OnLost, Reason, Result, RetrySpec


def spec(attempts: int | None = None, on_lost: OnLost | None = None) -> JobSpec:
    retry = RetrySpec(attempts=attempts, delay=2.0, max_delay=5.0) if attempts is not None else None
    return JobSpec(name="j", steps=(), retry=retry, on_lost=on_lost)


END = Settlement(next=Next.END)


@pytest.mark.parametrize(("result", "reason", "tries"), [*itertools.product(Result, Reason, (1, 2, 3))])
def test_after_a_reported_end(result: Result, reason: Reason, tries: int) -> None:
    assert after_failure(spec(), tries, result, reason) == END, "nobody asked for a retry"
    settlement = after_failure(spec(3), tries, result, reason)
    final = result in (Result.SUCCEEDED, Result.CANCELLED) or reason in NO_RETRY or tries >= 3
    assert settlement == (END if final else Settlement(next=Next.RETRY, pause=[2.0, 4.0][tries - 1]))


def test_what_the_next_try_would_meet_again_is_not_retried() -> None:
    assert {
        Reason.CANCELLED,
        Reason.LOCK_MISMATCH,
        Reason.SECRET_UNAVAILABLE,
        Reason.EXPRESSION_FAILED,
        Reason.RUN_TIMEOUT,
        Reason.UNROUTABLE,
    } == NO_RETRY


LOSS = {
    # (retry attempts, on_lost, tries) -> (instance away, instance gone)
    (None, None, 1): (Next.END, Next.END),
    (None, OnLost.FAIL, 1): (Next.END, Next.END),
    (None, OnLost.WAIT, 1): (Next.WAIT, Next.END),
    (None, OnLost.RETRY, 1): (Next.RETRY, Next.RETRY),
    (None, OnLost.RETRY, LOST_TRIES_MAX - 1): (Next.RETRY, Next.RETRY),
    (None, OnLost.RETRY, LOST_TRIES_MAX): (Next.END, Next.END),
    (2, None, 1): (Next.RETRY, Next.RETRY),
    (2, None, 2): (Next.END, Next.END),
    (2, OnLost.FAIL, 1): (Next.END, Next.END),
    (2, OnLost.WAIT, 1): (Next.WAIT, Next.RETRY),
    (2, OnLost.WAIT, 2): (Next.WAIT, Next.END),
    (2, OnLost.RETRY, 1): (Next.RETRY, Next.RETRY),
    (2, OnLost.RETRY, 2): (Next.END, Next.END),
}


@pytest.mark.parametrize("case", LOSS)
def test_after_a_loss(case: tuple[int | None, OnLost | None, int]) -> None:
    """R3: one declared policy per job decides, whether the agent is only away or its instance is gone."""
    attempts, on_lost, tries = case
    away, gone = LOSS[case]
    assert after_loss(spec(attempts, on_lost), tries, instance_gone=False).next is away
    assert after_loss(spec(attempts, on_lost), tries, instance_gone=True).next is gone


def test_waits() -> None:
    exponential = RetrySpec(attempts=9, delay=1.0, max_delay=30.0)
    assert [exponential.wait_after(n) for n in (1, 2, 3, 4, 5, 6, 1000)] == [1, 2, 4, 8, 16, 30, 30]
    fixed = RetrySpec(attempts=9, delay=3.0, backoff=Backoff.FIXED, max_delay=2.0)
    assert [fixed.wait_after(n) for n in (1, 5)] == [2, 2]
    assert [offer_pause(n) for n in (1, 2, 3, 4, 5, 6, 100)] == [1, 2, 4, 8, 16, 30, 30]
    assert settling.OFFERS_MAX == 5
