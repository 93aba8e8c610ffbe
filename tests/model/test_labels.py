# SPDX-License-Identifier: Apache-2.0
"""Label sets and errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.errors import Conflict, CorralError, Fault, Invalid, PermanentError, TemporaryError
from corral.model.labels import MAX_LABEL_LENGTH, label_fault, labels, reserved


@given(st.lists(st.text(max_size=8), max_size=5))
def test_labels_are_lower_cased_and_of_one_kind(values: list[str]) -> None:
    once = labels(values)
    assert labels(once) == once
    assert labels([*values, *values, *(value.upper() for value in values if value.isascii())]) == once


def test_case_and_blanks_do_not_matter() -> None:
    assert labels([" Linux ", "LINUX", "arm64"]) == {"linux", "arm64"}


@given(st.text(max_size=MAX_LABEL_LENGTH))
def test_a_label_without_fault_survives_the_database_column(value: str) -> None:
    """Labels are stored separated by blanks: none may hold one, or it would become two."""
    if label_fault(value) is None:
        (label,) = labels([value])
        assert " ".join([label, "other"]).split() == [label, "other"]


@pytest.mark.parametrize("good", ["linux", "x86_64", "py3.11", "corral:os:linux", "a/b", "a-b", "GPU", "9"])
def test_good_labels(good: str) -> None:
    assert label_fault(good) is None


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("a b", "may hold only"),
        ("-a", "may hold only"),
        ("ä", "may hold only"),
        ("a\nb", "may hold only"),
        ("x" * 129, "129 characters; the limit is 128"),
    ],
)
def test_bad_labels(bad: str, why: str) -> None:
    assert why in (label_fault(bad) or "")


def test_reserved_labels() -> None:
    assert reserved("corral:pool:x") and reserved(" CORRAL:x")
    assert not reserved("corral") and not reserved("x:corral:")


def every(kind: type[CorralError]) -> list[type[CorralError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in every(child))]


def test_every_error_is_temporary_or_permanent_with_a_code_and_a_status() -> None:
    for kind in every(CorralError)[1:]:
        # A name above several kinds may be either; what is raised is one of them.
        leaf = not kind.__subclasses__()
        assert not leaf or issubclass(kind, TemporaryError) != issubclass(kind, PermanentError), kind
        assert kind.code == kind.code.lower().replace("-", "_") and 400 <= kind.status < 600, kind


def test_a_fault_reads_as_one_line() -> None:
    fault = Fault(file="f.yaml", line=3, column=7, path="pools[0].name", message="is odd", remedy="make it even")
    assert str(fault) == "f.yaml:3:7: pools[0].name: is odd (make it even)"
    assert str(Fault(message="is odd")) == "is odd"


def test_invalid_shows_every_fault() -> None:
    error = Invalid("corral.yaml", [Fault(message="one"), Fault(message="two", line=2, file="f")])
    assert str(error) == "corral.yaml: 2 faults\n  one\n  f:2: two"
    assert str(Invalid("x", [Fault(message="one")])) == "x: 1 fault\n  one"


def test_internal_detail_is_not_public() -> None:
    error = Conflict("somebody was first", internal="row 7", retry_after=2.5)
    assert (str(error), error.retry_after, error.status) == ("somebody was first", 2.5, 409)
