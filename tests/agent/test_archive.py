# SPDX-License-Identifier: Apache-2.0
"""Source archives written by somebody hostile."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from corral.agent import archive
from corral.agent.archive import BadArchive, unpack


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as out:
        for info, data in members:
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    buffer.seek(0)
    return buffer


def file(name: str, data: bytes = b"data", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = mode, 1_000_000
    return info, data


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info, b""


def directory(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = tarfile.DIRTYPE, mode, 2_000_000
    return info, b""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    made = tmp_path / "outer" / "target"
    made.mkdir(parents=True)
    return made


def test_modes_times_and_links_are_kept(target: Path) -> None:
    unpack(
        tar(
            directory("sub", 0o750),
            file("sub/run", mode=0o4755),
            link("alias", "sub/run"),
            link("dangling", "sub/not-there"),
            link("hard", "sub/run", tarfile.LNKTYPE),
        ),
        target,
    )
    run = target / "sub" / "run"
    assert stat.S_IMODE(run.stat().st_mode) == 0o755, "no set-uid bit"
    assert (run.stat().st_mtime, (target / "sub").stat().st_mtime) == (1_000_000, 2_000_000)
    assert stat.S_IMODE((target / "sub").stat().st_mode) == 0o750
    assert str((target / "alias").readlink()) == "sub/run"
    assert str((target / "dangling").readlink()) == "sub/not-there"
    assert (target / "hard").samefile(run)


def test_a_directory_that_may_not_be_written_can_be_filled(target: Path) -> None:
    unpack(tar(directory("ro", 0o555), file("ro/a")), target)
    assert (target / "ro" / "a").read_bytes() == b"data"


@pytest.mark.parametrize(
    "members",
    [
        [file("/etc/evil")],
        [file("../evil")],
        [file("a/../../evil")],
        [link("out", "/etc/passwd")],
        [link("out", "../evil")],
        [link("a/out", "../../evil")],
        [link("here", "."), link("out", "here/../../evil")],
        [directory("d"), link("d/up", ".."), link("out", "d/up/../evil")],
        [link("out", "..", tarfile.LNKTYPE)],
        [link("out", "/etc/passwd", tarfile.LNKTYPE)],
        [link("out", "not-before", tarfile.LNKTYPE)],
        [link("fifo", "", tarfile.FIFOTYPE)],
        [link("disk", "", tarfile.BLKTYPE)],
        [link("tty", "", tarfile.CHRTYPE)],
        [link("both", "elsewhere"), file("both/inside")],
    ],
)
def test_nothing_leaves_the_tree(target: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    with pytest.raises(BadArchive):
        unpack(tar(*members), target)
    assert [p.name for p in target.parent.iterdir()] == ["target"]


def test_a_file_is_never_written_through_a_link(target: Path) -> None:
    outside = target.parent / "outside"
    outside.write_text("safe")
    # The file wins over the earlier link of the same name, or the archive is refused; never the link's target.
    try:
        unpack(tar(link("x", "../outside"), file("x", b"overwritten")), target)
    except BadArchive:
        pass
    assert outside.read_text() == "safe"


@pytest.mark.parametrize(
    "data",
    [b"", b"no archive at all", gzip.compress(b"no tar inside" * 100), b"\x1f\x8b\x08"],
    ids=["empty", "text", "gzip", "header"],
)
def test_damaged_archives_are_named(target: Path, data: bytes) -> None:
    with pytest.raises(BadArchive):
        unpack(io.BytesIO(data), target)


def test_a_truncated_archive(target: Path) -> None:
    data = tar(file("a", os.urandom(100_000))).getvalue()
    with pytest.raises(BadArchive):
        unpack(io.BytesIO(data[: len(data) // 2]), target)


def test_the_unpacked_size_is_bounded_before_it_is_written(target: Path) -> None:
    limit = archive._Unpacking(target, lambda: False)
    limit._bytes = archive.UNPACKED_LIMIT
    with (
        tarfile.open(fileobj=tar(file("one-more")), mode="r|gz") as opened,
        pytest.raises(BadArchive, match="one-more"),
    ):
        limit.run(opened)
    assert not (target / "one-more").exists()


def test_it_can_be_stopped(target: Path) -> None:
    with pytest.raises(BadArchive, match="stopped"):
        unpack(tar(file("a")), target, stopped=lambda: True)
