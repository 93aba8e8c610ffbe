# SPDX-License-Identifier: Apache-2.0
"""Matrix expansion against a model that is too simple to be wrong."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from corral.workflow.export import expand_matrix

Values = st.sampled_from([0, 1, True, False, 1.0, "1", "a", ""])
Keys = st.sampled_from(["a", "b", "c"])
Axes = st.dictionaries(Keys, st.lists(Values, min_size=1, max_size=3), max_size=3)
Combinations = st.lists(st.dictionaries(Keys, Values, min_size=1, max_size=3), max_size=3)


def typed(value: object) -> tuple[str, object]:
    return type(value).__name__, value


def model(axes: dict[str, list[Any]], exclude: list[dict[str, Any]], include: list[dict[str, Any]]) -> list[Any]:
    """One axis after the other; then each exclude looked at by itself; then the includes."""
    found: list[dict[str, Any]] = [{}] if axes else []
    for name, values in axes.items():
        found = [{**combination, name: value} for combination in found for value in values]
    for unwanted in exclude:
        wanted = []
        for combination in found:
            hit = True
            for key, value in unwanted.items():
                if typed(combination[key]) != typed(value):
                    hit = False
            if not hit:
                wanted.append(combination)
        found = wanted
    return found + include


@given(st.data())
def test_expansion(data: st.DataObject) -> None:
    axes = data.draw(Axes)
    exclude = [
        {key: value for key, value in combination.items() if key in axes} for combination in data.draw(Combinations)
    ]
    exclude = [combination for combination in exclude if combination]
    include = data.draw(Combinations)
    found = expand_matrix(axes, exclude=exclude, include=include)
    expected = model(axes, exclude, include)
    assert [[(k, typed(v)) for k, v in c.items()] for c in found] == [
        [(k, typed(v)) for k, v in c.items()] for c in expected
    ]


def test_exclude_comes_before_include() -> None:
    found = expand_matrix({"os": ["a", "b"]}, exclude=[{"os": "a"}], include=[{"os": "a", "extra": 1}])
    assert found == [{"os": "b"}, {"os": "a", "extra": 1}]
