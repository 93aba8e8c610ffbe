# SPDX-License-Identifier: Apache-2.0
"""A work tree as an archive, unpacked by the agent's own code: what git says there is what it says here."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent.archive import unpack
from corral.cli.source import Source, snapshot
from corral.cli.source.git import NotATree
from corral.model.errors import TooLarge
from tests.cli.double import git, make_tree


@contextlib.contextmanager
def unpacked(tree: Path, place: Path) -> Iterator[tuple[Path, Source, list[str]]]:
    """The archive of ``tree``, unpacked into ``place``, with what was said about it."""
    told: list[str] = []
    with snapshot(tree, told.append) as source:
        assert source.path.stat().st_size == source.size
        place.mkdir()
        with open(source.path, "rb") as file:
            unpack(file, place)
        yield place, source, told
    assert not source.path.exists()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    place = tmp_path / "tree"
    place.mkdir()
    return make_tree(place)


def commit(tree: Path, message: str, name: str = "README") -> str:
    (tree / name).write_text(message)
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", message)
    return git(tree, "rev-parse", "HEAD")


def test_a_clean_tree_arrives_clean(tree: Path, tmp_path: Path) -> None:
    with unpacked(tree, tmp_path / "out") as (out, source, told):
        assert git(out, "rev-parse", "HEAD") == git(tree, "rev-parse", "HEAD") == source.history.head
        assert git(out, "status", "--porcelain") == ""
        assert git(out, "symbolic-ref", "--short", "HEAD") == "main"
        assert git(out, "fsck", "--strict") == ""
        assert told == []


def test_uncommitted_changes_go_along_and_show_as_such(tree: Path, tmp_path: Path) -> None:
    commit(tree, "more", "gone")
    (tree / "README").write_text("changed\n")
    (tree / "gone").unlink()
    (tree / "new").write_text("untracked\n")
    (tree / "staged").write_text("staged\n")
    git(tree, "add", "staged")
    (tree / ".gitignore").write_text("ignored\n")
    (tree / "ignored").write_text("secret\n")
    with unpacked(tree, tmp_path / "out") as (out, _, _):
        assert (out / "README").read_text() == "changed\n"
        assert not (out / "gone").exists()
        assert not (out / "ignored").exists()
        assert set(git(out, "status", "--porcelain").splitlines()) == {
            "M README",
            " D gone",
            "?? .gitignore",
            "?? new",
            "?? staged",
        }


def test_describe_works_with_the_history_up_to_the_nearest_tag(tree: Path, tmp_path: Path) -> None:
    git(tree, "tag", "v0.9")
    commit(tree, "one")
    git(tree, "tag", "-a", "v1.0", "-m", "one")
    for number in range(3):
        commit(tree, f"later {number}")
    with unpacked(tree, tmp_path / "out") as (out, _, _):
        assert git(out, "describe", "--tags") == git(tree, "describe", "--tags")
        assert git(out, "describe") == git(tree, "describe")
        assert git(out, "rev-list", "--count", "HEAD") == "4"
        assert git(out, "tag") == "v1.0"
        assert git(out, "fsck", "--strict") == ""


def test_describe_works_across_merges_of_older_branches(tree: Path, tmp_path: Path) -> None:
    old = git(tree, "rev-parse", "HEAD")
    commit(tree, "main 1")
    git(tree, "tag", "v1")
    git(tree, "checkout", "-q", "-b", "side", old)
    commit(tree, "side", "side")
    git(tree, "checkout", "-q", "main")
    commit(tree, "main 2", "other")
    git(tree, "merge", "-q", "-m", "merge", "side")
    odd = git(tree, "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-p", old, "-m", "merges what it has already")
    git(tree, "reset", "-q", "--hard", odd)
    commit(tree, "main 3")
    with unpacked(tree, tmp_path / "out") as (out, _, _):
        assert git(out, "describe", "--tags") == git(tree, "describe", "--tags")
        assert git(out, "fsck", "--strict") == ""


def test_a_detached_head_and_a_shallow_clone(tree: Path, tmp_path: Path) -> None:
    commit(tree, "two")
    commit(tree, "three")
    git(tree, "checkout", "-q", "--detach")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "2", f"file://{tree}", "clone")
    for number, each in enumerate((tree, clone)):
        with unpacked(each, tmp_path / f"out{number}") as (out, _, _):
            assert git(out, "rev-parse", "HEAD") == git(tree, "rev-parse", "HEAD")
            assert git(out, "status", "--porcelain") == ""


def test_nothing_private_of_the_repository_goes_along(tree: Path, tmp_path: Path) -> None:
    git(tree, "remote", "add", "origin", "https://user:hunter2@example.org/x.git")
    git(tree, "config", "user.signingKey", "hunter2")
    git(tree, "config", "credential.helper", "store")
    (tree / ".git" / "hooks" / "post-checkout").write_text("#!/bin/sh\necho hunter2\n")
    (tree / ".git" / "description").write_text("hunter2")
    commit(tree, "amended hunter2")
    git(tree, "commit", "-q", "--amend", "-m", "Begin again")
    with unpacked(tree, tmp_path / "out") as (out, _, _):
        found = subprocess.run(["grep", "-ra", "hunter2", str(out / ".git")], capture_output=True)
        assert found.stdout == b""
        assert git(out, "remote") == ""
        assert not (out / ".git" / "hooks").exists()
        assert not (out / ".git" / "logs").exists()
        every = git(out, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype)")
        assert every.splitlines().count("commit") == 1


def test_modes_and_links_are_kept_and_links_never_leave_the_tree(tree: Path, tmp_path: Path) -> None:
    (tree / "run.sh").write_text("#!/bin/sh\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "private").write_text("x")
    (tree / "private").chmod(0o600)
    (tree / "d").mkdir()
    (tree / "d" / "up").symlink_to("../README")
    (tree / "dangling").symlink_to("nothing/here")
    links = {"abs": "/etc/passwd", "out": "../outside", "d/far": "../../x", "git": ".git/config", "loop": "loop"}
    for name, to in links.items():
        (tree / name).symlink_to(to)
    (tree / "hop").symlink_to("d/..")
    (tree / "through").symlink_to("hop/../../x")
    with unpacked(tree, tmp_path / "out") as (out, _, told):
        assert (out / "run.sh").stat().st_mode & 0o777 == 0o755
        assert (out / "private").stat().st_mode & 0o777 == 0o600
        assert (out / "d" / "up").readlink() == Path("../README")
        assert (out / "dangling").readlink() == Path("nothing/here")
        for name in (*links, "through"):
            assert not os.path.lexists(out / name), name
            assert any(name in sentence and "leaves the tree" in sentence for sentence in told), name


def test_a_file_that_replaced_a_directory_and_odd_names(tree: Path, tmp_path: Path) -> None:
    (tree / "sub").mkdir()
    commit(tree, "x", "sub/file")
    (tree / "sub" / "file").unlink()
    (tree / "sub").rmdir()
    (tree / "sub").write_text("now a file")
    odd = [b"sp ace", "ünï".encode(), b"new\nline", b"\xff\xfe", b"-dash", b'quo"te']
    for name in odd:
        (tree / os.fsdecode(name)).write_text("odd")
    with unpacked(tree, tmp_path / "out") as (out, _, _):
        assert (out / "sub").read_text() == "now a file"
        assert set(odd) <= {os.fsencode(path.name) for path in out.iterdir()}


def test_a_submodule_goes_along_when_it_is_checked_out(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    make_tree(other)
    git(tree, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "mod")
    git(tree, "commit", "-q", "-m", "mod")
    (tree / "mod" / "untracked").write_text("x")
    nested = tree / "nested"
    nested.mkdir()
    make_tree(nested)
    with unpacked(tree, tmp_path / "out") as (out, _, told):
        assert (out / "mod" / "README").read_text() == "hello\n"
        assert (out / "mod" / "untracked").exists()
        assert not (out / "mod" / ".git").exists()
        assert not (out / "nested").exists()
        assert any("nested/" in sentence for sentence in told)
    git(tree, "submodule", "deinit", "-q", "-f", "mod")
    with unpacked(tree, tmp_path / "out2") as (out, _, _):
        assert not (out / "mod" / "README").exists()


def test_the_same_tree_gives_the_same_archive_however_git_keeps_it(tree: Path, tmp_path: Path) -> None:
    git(tree, "tag", "v1")
    for number in range(5):
        commit(tree, "x" * 1000 + str(number))
    with snapshot(tree) as first:
        pass
    git(tree, "gc", "-q", "--aggressive")
    (tree / "README").touch()
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(tree), "clone")
    for each in (tree, clone):
        with snapshot(each) as again:
            assert again.hash == first.hash


def test_nothing_of_the_author_runs(tree: Path, tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {witness}\ncat\n")
    trap.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "core.editor", "diff.external", "core.sshCommand", "gpg.program"):
        git(tree, "config", name, str(trap))
    git(tree, "config", "filter.evil.clean", str(trap))
    git(tree, "config", "filter.evil.smudge", str(trap))
    git(tree, "config", "log.showSignature", "true")
    (tree / ".gitattributes").write_text("* filter=evil\n")
    (tree / "extra").write_text("x")
    for hook in ("post-index-change", "reference-transaction", "post-checkout", "pre-auto-gc"):
        path = tree / ".git" / "hooks" / hook
        path.write_text(trap.read_text())
        path.chmod(0o755)
    with snapshot(tree):
        pass
    assert not witness.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a tree to another user")
def test_a_tree_of_a_foreign_owner_is_read_after_saying_so(tree: Path, tmp_path: Path) -> None:
    subprocess.run(["chown", "-R", "65534:65534", str(tree)], check=True)
    home = tmp_path / "home"
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        with unpacked(tree, tmp_path / "out") as (out, _, told):
            assert git(out, "rev-parse", "HEAD")
        assert any("belongs to another user" in sentence for sentence in told)
        assert not (home / ".gitconfig").exists()


def test_a_path_that_is_no_tree_is_said_to_be_none(tree: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(NotATree, match=r"not in a git work tree.*git init"), snapshot(empty):
        pass
    git(empty, "init", "-q")
    with pytest.raises(NotATree, match="no commit yet"), snapshot(empty):
        pass
    (tree / "below").mkdir()
    with pytest.raises(NotATree, match="begins at"), snapshot(tree / "below"):
        pass


def test_a_tree_above_the_limit_names_its_largest_files(tree: Path) -> None:
    (tree / "large.bin").write_bytes(os.urandom(200_000))
    (tree / "larger.bin").write_bytes(os.urandom(300_000))
    with (
        pytest.raises(TooLarge, match=r"larger.bin \(300000 bytes\), large.bin \(200000"),
        snapshot(tree, limit=100_000),
    ):
        pass


def test_the_callers_git_variables_do_not_redirect_us(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    make_tree(other)
    commit(other, "another")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_DIR", str(other / ".git"))
        patch.setenv("GIT_WORK_TREE", str(other))
        with snapshot(tree) as source:
            head = source.history.head
    assert head == git(tree, "rev-parse", "HEAD")


def test_members_are_sorted_and_owned_by_nobody(tree: Path) -> None:
    with snapshot(tree) as source, tarfile.open(source.path) as tar:
        members = tar.getmembers()
    names = [member.name for member in members if not member.name.startswith(".git/")]
    assert names == sorted(names)
    assert {(member.uid, member.gid, member.uname) for member in members} == {(0, 0, "")}
    assert len({member.mtime for member in members}) == 1
