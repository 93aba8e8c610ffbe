# SPDX-License-Identifier: Apache-2.0
"""YAML that a person wrote: strictly, with the place of every fault, and never anything but `Invalid`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.errors import Invalid
from corral.runtime.schema import dotted, misfits, nearest
from corral.runtime.yamlfile import DEPTH_LIMIT, SIZE_LIMIT, parse_yaml


def faults(text: str) -> list[str]:
    with pytest.raises(Invalid) as caught:
        parse_yaml(text, "f.yaml")
    return [str(fault) for fault in caught.value.faults]


def test_plain_data_with_its_places() -> None:
    document = parse_yaml("a: 1\nb:\n  - x\n  - {c: true, d: null}\ne: 1.5\nf: '7'\ng: 0x10\n", "f.yaml")
    assert document.data == {"a": 1, "b": ["x", {"c": True, "d": None}], "e": 1.5, "f": "7", "g": 16}
    fault = document.fault(("b", 1, "c"), "is odd", "make it even")
    assert str(fault) == "f.yaml:4:6: b[1].c: is odd (make it even)"
    assert str(document.fault(("b", 1, "missing", 3), "x")).startswith("f.yaml:4:5: b[1].missing[3]")


@pytest.mark.parametrize("empty", ["", "# only a comment\n", "---\n"])
def test_an_empty_file_is_an_empty_mapping_or_nothing(empty: str) -> None:
    assert not parse_yaml(empty, "f.yaml").data


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("a: &x [1]\nb: *x\n", "f.yaml:1:4", "aliases (*name) are not allowed"),
        ("a: &x\n  b: *x\n", "f.yaml:1:4", "aliases"),
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1", "is given twice"),
        ("a:\n  b: 1\n  b: 1\n", "f.yaml:3:3", "is given twice"),
        ("when: 2025-01-01\n", "f.yaml:1:7", "has type 'timestamp'"),
        ("a: !!binary aGk=\n", "f.yaml:1:4", "'!!binary'"),
        ("a: !mine x\n", "f.yaml:1:4", "'!mine'"),
        ("a: &x !mine x\n", "f.yaml:1:4", "'!mine'"),
        ("a: !mine {b: 1}\n", "f.yaml:1:4", "'!mine'"),
        ("a: !!set {b}\n", "f.yaml:1:4", "set"),
        ("a: !mine [1]\n", "f.yaml:1:4", "'!mine'"),
        ("a: !!python/object/apply:os.system [id]\n", "f.yaml:1:4", "python"),
        ("a: !!bool maybe\n", "f.yaml:1:4", "tag"),
        ("a: !!int '5'\n", "f.yaml:1:4", "tag"),
        ("a: !!null something\n", "f.yaml:1:4", "tag"),
        ("%YAML 1.1\n---\na: yes\n", "f.yaml:3:4", "'yes'"),
        ("a: 017\n", "f.yaml:1:4", "'017' is not a number"),
        ("a: .inf\n", "f.yaml:1:4", "'.inf' is not a number"),
        ("a: .nan\n", "f.yaml:1:4", "'.nan' is not a number"),
        ("? [a, b]\n: 1\n", "f.yaml:1:3", "a key must be a word"),
        ("a: [1, 2\nb: 3\n", "f.yaml:2:", ""),
        ("a: 'open\n", "f.yaml:", ""),
        ("\ta: 1\n", "f.yaml:1:", ""),
        ("a: 1\n---\nb: 2\n", "f.yaml:", ""),
        ("a: \x00\n", "f.yaml", "is not YAML"),
    ],
)
def test_what_is_not_allowed_is_named_with_its_place(text: str, at: str, what: str) -> None:
    (fault,) = faults(text)[:1]
    assert fault.startswith(at)
    assert what in fault


def test_ten_faults_are_ten_faults_in_order() -> None:
    lines = ["ok: 1", *(f"k{n}: !t{n} x" for n in range(4)), "ok: 2", *(f"d{n}: 2025-01-0{n + 1}" for n in range(5))]
    found = faults("\n".join(lines) + "\n")
    assert len(found) == 10
    assert [int(fault.split(":")[1]) for fault in found] == list(range(2, 12))


def test_depth_and_size_are_bounded() -> None:
    assert parse_yaml("[" * DEPTH_LIMIT + "]" * DEPTH_LIMIT, "f.yaml").data
    (fault,) = faults("[" * (DEPTH_LIMIT + 3) + "]" * (DEPTH_LIMIT + 3))
    assert f"is nested deeper than {DEPTH_LIMIT} levels" in fault
    assert faults("[" * 50_000)
    assert faults("{a: " * 20_000)
    assert faults("#" * (SIZE_LIMIT + 1)) == [f"f.yaml: is larger than {SIZE_LIMIT} bytes"]
    (fault,) = faults("a: " + "1" * 10_000)
    assert len(fault) < 500, "a long value is not repeated whole"


PIECES = st.sampled_from(
    [
        "a",
        "b: ",
        "- ",
        "\n",
        "  ",
        "&x ",
        "*x",
        "!t ",
        "!!int ",
        "{",
        "}",
        "[",
        "]",
        ",",
        "'",
        '"',
        "|\n",
        ">",
        "? ",
        ": ",
        "#",
        "%YAML 1.1\n",
        "---\n",
        "...\n",
        "<<: ",
        "1",
        ".5",
        "true",
        "null",
        "\\x",
        "\t",
        "\x85",
        "\ufeff",
        "é",
        "😀",
    ]
)


@given(st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=60))
@settings(max_examples=400)
def test_whatever_is_written_it_parses_or_is_invalid(text: str) -> None:
    try:
        document = parse_yaml(text, "f.yaml")
    except Invalid as error:
        assert error.faults
        assert all(fault.file == "f.yaml" for fault in error.faults)
    else:
        plain(document.data)


def plain(data: object) -> None:
    match data:
        case dict():
            assert all(isinstance(key, str) for key in data)
            for value in data.values():
                plain(value)
        case list():
            for value in data:
                plain(value)
        case _:
            assert data is None or isinstance(data, str | int | float | bool)


# --- against a type ----------------------------------------------------------------------------------------


def test_paths_are_written_as_people_write_them() -> None:
    assert dotted(("pools", 0, "labels", 2)) == "pools[0].labels[2]"
    assert dotted(()) == ""


def test_the_nearest_known_word() -> None:
    assert nearest("lables", ["labels", "name"]) == "did you mean 'labels'?"
    assert nearest("zzz", ["name", "labels"]) == "it takes labels, name"
    assert nearest("zzz", []) == "it takes no keys"


def test_every_misfit_of_a_document() -> None:
    found = {(dotted(m.path), m.message) for m in misfits({"a": "x", "c": 1}, dict[str, int])}
    assert found == {("a", "'x' is not of type 'integer'")}
