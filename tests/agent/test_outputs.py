# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.agent.outputs import FILE_LIMIT, OutputsInvalid, parse, total_fault
from corral.model.spec import OUTPUT_VALUE_LIMIT
from corral.workflow.outputs import output_record


def test_lines_and_blocks() -> None:
    data = b"a=1\n\nb=x=y\nc<<END\none\n\ntwo\nEND\nd=\na=2\ne<<E\nE\nf=1 << 2\r\n"
    assert parse(data) == {"a": "2", "b": "x=y", "c": "one\n\ntwo", "d": "", "e": "", "f": "1 << 2"}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"no separator", "line 1"),
        (b"a=1\n1x=2", "line 2"),
        (b"a<<END\nnever closed\n", "line 1: a<<END"),
        (b"a=\xff", "UTF-8 at byte 2"),
        (b"a=" + b"x" * (OUTPUT_VALUE_LIMIT + 1), str(OUTPUT_VALUE_LIMIT + 1)),
        (b"x" * FILE_LIMIT, "larger"),
        (b"".join(b"n%d=%s\n" % (i, b"x" * OUTPUT_VALUE_LIMIT) for i in range(4)), "together"),
    ],
)
def test_faults_are_named(data: bytes, says: str) -> None:
    with pytest.raises(OutputsInvalid, match=says):
        parse(data)


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(OutputsInvalid) as caught:
        parse(b"bad one\nok=1\nbad two\n")
    assert "line 1" in str(caught.value) and "line 3" in str(caught.value)


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
        max_size=4,
    )
)
def test_what_function_steps_write_is_read_back(outputs: dict[str, str]) -> None:
    data = "".join(output_record(name, value) for name, value in outputs.items()).encode()
    assert parse(data) == outputs


def test_the_total_leaves_room_for_the_frame() -> None:
    assert total_fault({"a": "x" * 1000}) is None
    assert "together" in str(total_fault({f"n{i}": "x" * 250_000 for i in range(5)}))
