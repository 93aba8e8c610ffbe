# SPDX-License-Identifier: Apache-2.0
"""The ``.git`` that goes along: made anew, so that no remote, hook, credential or setting of the author's is in it."""

from __future__ import annotations

from pathlib import Path

from corral.cli.source.git import Git, NotATree
from corral.cli.source.history import History


def write_repository(git: Git, history: History, target: Path) -> None:
    """Write a shallow repository of ``history`` into the empty directory ``target``."""
    (target / "objects" / "pack").mkdir(parents=True)
    (target / "refs" / "heads").mkdir(parents=True)
    (target / "refs" / "tags").mkdir()
    (target / "HEAD").write_text(f"ref: refs/heads/{history.branch}\n" if history.branch else f"{history.head}\n")
    (target / "packed-refs").write_text(_packed_refs(history), errors="surrogateescape")
    (target / "config").write_text(_config(git))
    if history.shallow:
        (target / "shallow").write_text("".join(f"{oid}\n" for oid in history.shallow))
    _write_pack(git, history, target / "objects" / "pack")
    git.run("read-tree", history.head, index=target / "index")


def _packed_refs(history: History) -> str:
    lines = ["# pack-refs with: peeled fully-peeled sorted "]
    if history.branch:
        lines.append(f"{history.head} refs/heads/{history.branch}")
    for name, (oid, commit) in history.tags.items():
        lines.append(f"{oid} refs/tags/{name}")
        if oid != commit:
            lines.append(f"^{commit}")
    return "".join(f"{line}\n" for line in lines)


def _config(git: Git) -> str:
    sha256 = git.line("rev-parse", "--show-object-format") == "sha256"
    core = f"[core]\n\trepositoryformatversion = {int(sha256)}\n\tfilemode = true\n\tbare = false\n"
    return core + ("[extensions]\n\tobjectFormat = sha256\n" if sha256 else "")


def _write_pack(git: Git, history: History, directory: Path) -> None:
    """One pack of the commits that go along, their trees and files, and the tags."""
    tags = {oid for oid, _ in history.tags.values()}
    # As when serving a shallow clone: the cut first, then what is wanted.
    wanted = [*(f"--shallow {oid}" for oid in history.shallow), history.head, *sorted(tags)]
    # Without deltas and threads the same history always gives the same bytes, whatever the author's packs look like.
    base = git.run(
        "pack-objects",
        "--revs",
        "--shallow",
        "--no-reuse-delta",
        "--no-reuse-object",
        "--window=0",
        "--threads=1",
        "--compression=6",
        "-q",
        str(directory / "pack"),
        stdin="".join(f"{line}\n" for line in wanted).encode(),
    )
    if not list(directory.glob("pack-*.pack")):
        raise NotATree(f"git made no pack of {git.directory}: {base.decode(errors='replace').strip()}")
