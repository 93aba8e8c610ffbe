# SPDX-License-Identifier: Apache-2.0
"""The masker: what it hides, and that no split of the input changes what comes out."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.agent.masking import MASK, Masker, forms


def masked(values: list[str], data: bytes) -> bytes:
    masker = Masker(values)
    return masker.feed(data) + masker.flush()


def test_whole_values_lines_and_encoded_forms_are_hidden() -> None:
    secret = "pa$$ word/+&?"
    for shown in (
        secret.encode(),
        base64.b64encode(secret.encode()),
        base64.urlsafe_b64encode(secret.encode()),
        quote(secret, safe="").encode(),
        b"pa%24%24+word%2F%2B%26%3F",
    ):
        assert masked([secret], b"<" + shown + b">") == b"<***>", shown


@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_base64_hides_it_at_every_alignment(before: int, after: int) -> None:
    secret = b"correct horse battery"
    text = base64.b64encode(b"A" * before + secret + b"B" * after)
    out = masked([secret.decode()], text)
    assert MASK in out
    # At most the characters that also hold bits of the neighbours are left of it.
    assert len(out) - len(MASK) <= len(text) - (len(secret) * 8 // 6 - 2)


def test_lines_of_a_multi_line_value() -> None:
    secret = "-----BEGIN-----\nabcdefghij\n{\n-----END-----\n"
    assert masked([secret], b"x abcdefghij y { z") == b"x *** y { z"
    assert masked([secret], secret.encode()) == b"***"
    assert masked([secret], secret.replace("\n", "\r\n").encode()).startswith(b"***")


def test_overlapping_occurrences_leave_nothing_visible() -> None:
    assert masked(["abcd", "cdef"], b"-abcdef-") == b"-***-"
    assert masked(["aaaa"], b"-aaaaaaa-") == b"-***-"
    assert masked(["aaaa"], b"aaaa aaaa") == b"*** ***"


def test_blank_values_hide_nothing() -> None:
    assert forms("") == forms("  \n") == frozenset()
    assert masked(["", " "], b"a b") == b"a b"


def test_what_cannot_be_a_secret_is_not_held_back() -> None:
    masker = Masker(["secret-value"])
    assert masker.feed(b"progress 10%\r") == b"progress 10%\r"
    assert masker.feed(b"maybe sec") == b"maybe "
    assert masker.feed(b"ond") == b"second"


def test_at_most_the_longest_form_is_held_back() -> None:
    masker = Masker(["x" * 100])
    longest = max(map(len, forms("x" * 100)))
    out = masker.feed(b"x" * 99)
    assert out == b"" and len(masker._held) < longest


def test_ref59_registering_later_never_unmasks() -> None:
    masker = Masker(["first-secret"])
    out = masker.feed(b"first-secret second-secret first-sec")
    masker.add("second-secret")
    out += masker.feed(b"ret second-secret") + masker.flush()
    assert out == b"*** second-secret *** ***"


ALPHABET = st.sampled_from("ab=%\n")
VALUES = st.lists(st.text(ALPHABET, min_size=1, max_size=8), min_size=1, max_size=4)
PIECES = st.lists(st.text(ALPHABET, max_size=12).map(str.encode), max_size=12)


@settings(max_examples=400, deadline=None)
@given(VALUES, PIECES)
def test_every_split_equals_the_whole(values: list[str], pieces: list[bytes]) -> None:
    masker = Masker(values)
    split = b"".join([*(masker.feed(piece) for piece in pieces), masker.flush()])
    assert split == masked(values, b"".join(pieces))


@settings(max_examples=200, deadline=None)
@given(VALUES, st.text(ALPHABET, max_size=60).map(str.encode))
def test_every_byte_of_every_occurrence_is_hidden(values: list[str], text: bytes) -> None:
    covered = [False] * len(text)
    for pattern in {form for value in values for form in forms(value)}:
        at = text.find(pattern)
        while at >= 0:
            covered[at : at + len(pattern)] = [True] * len(pattern)
            at = text.find(pattern, at + 1)
    left = bytes(byte for byte, hidden in zip(text, covered, strict=True) if not hidden)
    assert masked(values, text).replace(MASK, b"") == left


def test_T7_all_split_points_of_a_log_with_a_secret() -> None:
    values = ["s3cr3t-t0ken", "line one of a key\nline two of a key"]
    text = b"token s3cr3t-t0ken " + base64.b64encode(b"s3cr3t-t0ken") + b" line two of a key\n"
    whole = masked(values, text)
    assert b"s3cr3t" not in whole and b"two" not in whole
    for first in range(len(text)):
        masker = Masker(values)
        assert masker.feed(text[:first]) + masker.feed(text[first:]) + masker.flush() == whole
