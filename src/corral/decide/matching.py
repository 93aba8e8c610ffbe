# SPDX-License-Identifier: Apache-2.0
"""The one matcher: dispatcher, scaler, preview and ``why`` all ask here.

A source of agents fits a job when the job's labels are a subset of its labels, all its mandatory labels are asked
for, and it has none of the labels the job excludes. A job without labels fits only the configured default pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from corral.model.labels import NO_LABELS, Labels
from corral.model.pools import Pool


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a job asks for."""

    labels: Labels
    excludes: Labels = NO_LABELS


@dataclass(frozen=True, kw_only=True)
class Offered:
    """What a pool or an agent has."""

    labels: Labels
    mandatory: Labels = NO_LABELS
    default: bool = False


@dataclass(frozen=True, kw_only=True)
class Size:
    """Cores and bytes. Of a job: what it asks for, None: what its pool gives. Of an agent: what its instance was made
    with, None: nothing holds it to any, or nobody knows."""

    cpu: float | None = None
    memory: int | None = None

    def holds(self, asked: Size) -> bool:
        """Is an agent of this size large enough?"""
        return _enough(self.cpu, asked.cpu) and _enough(self.memory, asked.memory)


def _enough(has: float | None, asked: float | None) -> bool:
    return has is None or asked is None or asked <= has


UNSIZED = Size()


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Why a source does not fit; all empty means that it does."""

    missing: Labels = NO_LABELS
    unasked: Labels = NO_LABELS
    """Mandatory labels that the job does not name."""
    excluded: Labels = NO_LABELS
    not_default: bool = False

    def __bool__(self) -> bool:
        return bool(self.missing or self.unasked or self.excluded or self.not_default)

    @property
    def distance(self) -> int:
        """How many things would have to change."""
        return len(self.missing) + len(self.unasked) + len(self.excluded) + self.not_default

    def sentence(self, name: str) -> str:
        """What stands between the job and the source ``name``."""
        parts = []
        if self.missing:
            parts.append(f"{name} lacks {_list(self.missing)}")
        if self.unasked:
            parts.append(f"{name} takes only jobs that ask for {_list(self.unasked)}")
        if self.excluded:
            parts.append(f"the job excludes {_list(self.excluded)} of {name}")
        if self.not_default:
            parts.append(f"the job asks for no labels and {name} is not the default pool")
        return "; ".join(parts)


def mismatch(wanted: Wanted, offered: Offered) -> Mismatch:
    """What stands between a job and a source of agents."""
    return Mismatch(
        missing=wanted.labels - offered.labels,
        unasked=offered.mandatory - wanted.labels,
        excluded=wanted.excludes & offered.labels,
        not_default=not wanted.labels and not offered.default,
    )


def fits(wanted: Wanted, offered: Offered) -> bool:
    """True where nothing stands between them."""
    return (
        wanted.labels <= offered.labels
        and offered.mandatory <= wanted.labels
        and not (wanted.excludes & offered.labels)
        and (offered.default or bool(wanted.labels))
    )


def pool_offer(pool: Pool) -> Offered:
    return Offered(labels=pool.labels, mandatory=pool.mandatory, default=pool.default)


def route(wanted: Wanted, pools: Iterable[Pool]) -> tuple[Pool, ...]:
    """The pools that fit, best first: fewest labels, ties by name."""
    fitting = (pool for pool in pools if fits(wanted, pool_offer(pool)))
    return tuple(sorted(fitting, key=lambda pool: (len(pool.labels), pool.name)))


def nearest(wanted: Wanted, pools: Iterable[Pool]) -> tuple[Pool, Mismatch] | None:
    """The pool with the least in the way, when none fits; None without any pool."""
    ranked = sorted(
        ((mismatch(wanted, pool_offer(pool)), pool) for pool in pools),
        key=lambda pair: (pair[0].distance, len(pair[1].labels), pair[1].name),
    )
    return (ranked[0][1], ranked[0][0]) if ranked else None


def _list(labels: Labels) -> str:
    return ", ".join(repr(label) for label in sorted(labels))
