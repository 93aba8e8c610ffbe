# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from corral.backends.process.removal import remove_tree


def test_an_absent_tree_is_fine(tmp_path: Path) -> None:
    remove_tree(str(tmp_path / "absent"))


def test_a_tree_of_all_kinds(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "a" / "b" / "c").mkdir(parents=True)
    (top / "a" / "file").write_text("x")
    (top / "a" / "b" / "file").write_text("x")
    (top / "empty").mkdir()
    os.mkfifo(top / "a" / "pipe")
    (top / "dangling").symlink_to("nowhere")
    (top / b"not-\xff-text".decode("utf-8", "surrogateescape")).write_text("x")
    remove_tree(str(top))
    assert list(tmp_path.iterdir()) == []


def test_links_are_removed_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    (tmp_path / "top" / "in").mkdir(parents=True)
    (tmp_path / "top" / "in" / "link").symlink_to(outside)
    (tmp_path / "top" / "link").symlink_to(outside)
    remove_tree(str(tmp_path / "top"))
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "kept").exists()


def test_a_link_in_the_place_of_the_tree_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    (tmp_path / "top").symlink_to(outside)
    with pytest.raises(OSError):
        remove_tree(str(tmp_path / "top"))
    assert (outside / "kept").exists()


@pytest.mark.parametrize("mode", [0o000, 0o500, 0o100, 0o300])
def test_what_its_mode_protects(tmp_path: Path, mode: int) -> None:
    inner = tmp_path / "top" / "a" / "b"
    inner.mkdir(parents=True)
    for directory in (inner, inner.parent):
        (directory / "file").write_text("x")
        (directory / "file").chmod(0o000)
    for directory in (inner, inner.parent):
        directory.chmod(mode)
    remove_tree(str(tmp_path / "top"))
    assert list(tmp_path.iterdir()) == []


def test_a_tree_deeper_than_recursion_names_and_descriptors(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    here = os.open(tmp_path / "top", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("deeper", dir_fd=here)
        below = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("bottom", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)
    remove_tree(str(tmp_path / "top"))
    assert list(tmp_path.iterdir()) == []


def test_names_like_our_own(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "top" / f".removing-{number}" / "x").mkdir(parents=True)
    (tmp_path / "top" / "a" / "b" / "c").mkdir(parents=True)
    remove_tree(str(tmp_path / "top"))
    assert list(tmp_path.iterdir()) == []


def test_what_is_named_last_goes_too(tmp_path: Path) -> None:
    """That it stays while something resists is shown with a mount, in test_backend."""
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    (top / "journal").write_text("x")
    remove_tree(str(top), last=("journal", "absent"))
    assert not top.exists()
