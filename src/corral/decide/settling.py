# SPDX-License-Identifier: Apache-2.0
"""What becomes of a job when one of its attempts ended: done, tried again, or waiting for its agent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from corral.model.spec import JobSpec, OnLost, Reason, Result

NO_RETRY = frozenset(
    {
        Reason.CANCELLED,
        Reason.LOCK_MISMATCH,
        Reason.SECRET_UNAVAILABLE,
        Reason.EXPRESSION_FAILED,
        Reason.RUN_TIMEOUT,
        Reason.UNROUTABLE,
    }
)
"""Failures that the next try would meet again."""
OFFERS_MAX = 5
"""Offers of one job in a row that nobody took before it is given up."""
OFFER_BACKOFF_BASE = 1.0
OFFER_BACKOFF_MAX = 30.0


class Next(StrEnum):
    END = "end"
    RETRY = "retry"
    WAIT = "wait"


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """``pause``: seconds before the job may be offered again."""

    next: Next
    pause: float = 0.0


def after_failure(spec: JobSpec, tries: int, result: Result, reason: Reason) -> Settlement:
    """A reported end. ``tries`` counts the started attempts, this one included."""
    if result is Result.SUCCEEDED or result is Result.CANCELLED or reason in NO_RETRY or spec.retry is None:
        return Settlement(next=Next.END)
    if tries >= spec.retry.attempts:
        return Settlement(next=Next.END)
    return Settlement(next=Next.RETRY, pause=spec.retry.wait_after(tries))


LOST_TRIES_MAX = 3
"""Tries in all of a job whose agent keeps being lost, when it asks for ``on_lost: retry`` without its own number."""


def after_loss(spec: JobSpec, tries: int, *, instance_gone: bool) -> Settlement:
    """A started attempt whose agent or instance was lost.

    ``instance_gone``: it is known that nothing of the attempt runs any more, so ``wait`` has nothing to wait for.
    """
    policy = spec.on_lost
    if policy is OnLost.WAIT and not instance_gone:
        return Settlement(next=Next.WAIT)
    if policy is OnLost.FAIL:
        return Settlement(next=Next.END)
    if spec.retry is not None and tries < spec.retry.attempts:
        return Settlement(next=Next.RETRY, pause=spec.retry.wait_after(tries))
    if policy is OnLost.RETRY and spec.retry is None and tries < LOST_TRIES_MAX:
        return Settlement(next=Next.RETRY)
    return Settlement(next=Next.END)


def offer_pause(offers: int) -> float:
    """Seconds before a job is offered again after ``offers`` offers in a row that nobody took."""
    return float(min(OFFER_BACKOFF_BASE * 2 ** min(offers - 1, 10), OFFER_BACKOFF_MAX))
