# SPDX-License-Identifier: Apache-2.0
"""What counts as a listing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.listings import read_listing
from corral.model.events import ListedInstance, Listing


def test_listings() -> None:
    one = ListedInstance(agent_id="a", cluster_id="c", provider_id="i-1")
    body = b'{"instances": [{"agent_id": "a", "cluster_id": "c", "provider_id": "i-1"}], "request": "r", "more": 1}'
    assert read_listing(body) == Listing(instances=(one,), request="r")
    assert read_listing(b'{"instances": []}') == Listing(instances=())
    assert read_listing(b'{"unsupported": true}') == Listing(unsupported=True)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"ok": true}',
        b'{"request": "r", "complete": true}',
        b'{"unsupported": false}',
        b'{"instances": null}',
        b'{"instances": [{}]}',
        b'{"instances": [{"agent_id": "a"}]}',
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"instances": ' + b"[" * 100_000,
        b'{"a": ' + b'{"a":' * 100_000,
    ],
)
def test_what_says_nothing_of_instances_is_no_empty_listing(body: bytes) -> None:
    assert read_listing(body) is None


@given(st.binary(max_size=200))
def test_no_bytes_raise(body: bytes) -> None:
    read_listing(body)
