# SPDX-License-Identifier: Apache-2.0
"""The one matcher."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from corral.decide.matching import Mismatch, Offered, Wanted, fits, mismatch, nearest, pool_offer, route
from corral.model.pools import Pool
from tests.decide import strategies


def pool(name: str, labels: str = "", mandatory: str = "", *, default: bool = False) -> Pool:
    return Pool(
        name=name,
        backend="process",
        labels=frozenset(labels.split()),
        mandatory=frozenset(mandatory.split()),
        max_agents=1,
        default=default,
    )


def want(labels: str = "", excludes: str = "") -> Wanted:
    return Wanted(labels=frozenset(labels.split()), excludes=frozenset(excludes.split()))


@given(strategies.wanted, strategies.offered)
def test_fitting_is_having_nothing_in_the_way(wanted: Wanted, offered: Offered) -> None:
    difference = mismatch(wanted, offered)
    assert fits(wanted, offered) == (not difference)
    assert (difference.distance == 0) == (not difference)
    assert bool(difference.sentence("p")) == bool(difference)


@given(strategies.wanted, strategies.offered)
def test_removing_what_is_in_the_way_makes_it_fit(wanted: Wanted, offered: Offered) -> None:
    difference = mismatch(wanted, offered)
    assume(not wanted.labels & wanted.excludes)
    mended = Offered(
        labels=(offered.labels | difference.missing) - difference.excluded,
        mandatory=offered.mandatory - difference.unasked,
        default=offered.default or difference.not_default,
    )
    assert fits(wanted, mended)


@given(strategies.wanted, strategies.pools(5))
def test_the_route_holds_just_the_fitting_pools_smallest_first(wanted: Wanted, pools: tuple[Pool, ...]) -> None:
    way = route(wanted, pools)
    assert {p.name for p in way} == {p.name for p in pools if fits(wanted, pool_offer(p))}
    keys = [(len(p.labels), p.name) for p in way]
    assert keys == sorted(keys)
    assert route(wanted, tuple(reversed(pools))) == way


@given(strategies.wanted, strategies.pools(5))
def test_the_nearest_has_the_least_in_the_way(wanted: Wanted, pools: tuple[Pool, ...]) -> None:
    near = nearest(wanted, pools)
    if not pools:
        assert near is None
        return
    assert near is not None
    found, difference = near
    assert difference == mismatch(wanted, pool_offer(found))
    assert difference.distance == min(mismatch(wanted, pool_offer(p)).distance for p in pools)


def test_no_labels_fit_only_the_default_pool() -> None:
    other, default = pool("a", "linux"), pool("b", "linux big", default=True)
    assert route(want(), (other, default)) == (default,)
    assert route(want(), (other,)) == ()


def test_mandatory_labels_have_to_be_asked_for() -> None:
    gpu = pool("gpu", "linux gpu", "gpu")
    assert route(want("linux"), (gpu,)) == ()
    assert route(want("linux gpu"), (gpu,)) == (gpu,)


def test_excluded_labels() -> None:
    arm = pool("arm", "linux arm64")
    assert route(want("linux", "arm64"), (arm,)) == ()
    assert route(want("linux", "x86_64"), (arm,)) == (arm,)


def test_ties_go_by_name() -> None:
    assert [p.name for p in route(want("x"), (pool("b", "x y"), pool("a", "x z"), pool("c", "x")))] == ["c", "a", "b"]


def test_sentences_name_what_is_in_the_way() -> None:
    difference = Mismatch(
        missing=frozenset({"gpu", "arm64"}), unasked=frozenset({"big"}), excluded=frozenset({"linux"}), not_default=True
    )
    assert difference.sentence("pool p") == (
        "pool p lacks 'arm64', 'gpu'; pool p takes only jobs that ask for 'big'; the job excludes 'linux' of pool p; "
        "the job asks for no labels and pool p is not the default pool"
    )


@given(st.permutations((pool("a", "x"), pool("b", "x y"), pool("c", "x y z"))))
def test_the_order_of_the_configuration_does_not_matter(pools: list[Pool]) -> None:
    assert [p.name for p in route(want("x"), pools)] == ["a", "b", "c"]
