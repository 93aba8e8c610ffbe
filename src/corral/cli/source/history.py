# SPDX-License-Identifier: Apache-2.0
"""How much history goes along: HEAD, and what lies between it and its nearest tag, so that ``git describe`` works."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from corral.cli.source.git import Git, NotATree

HISTORY_LIMIT = 2000
"""Commits between HEAD and its nearest tag that are worth their bytes; beyond it only HEAD goes along."""


@dataclass(frozen=True, kw_only=True)
class History:
    """``commits``: what goes along, with their parents. ``tags`` of those: name → (object, commit it leads to).
    ``branch`` is empty where HEAD is detached."""

    head: str
    branch: str
    subject: str
    time: int
    commits: Mapping[str, tuple[str, ...]]
    tags: Mapping[str, tuple[str, str]]

    @property
    def shallow(self) -> tuple[str, ...]:
        """Commits whose parents do not go along."""
        return tuple(sorted(oid for oid, parents in self.commits.items() if set(parents) - set(self.commits)))


def history_of(git: Git) -> History:
    """:raises NotATree: the tree has no commit yet."""
    head = git.line("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if not head:
        raise NotATree(f"{git.directory} has no commit yet; make one first: git commit")
    commits = _commits(git, head)
    time, _, subject = git.line("log", "-1", "--no-show-signature", "--format=%ct %s", head).partition(" ")
    return History(
        head=head,
        branch=git.line("symbolic-ref", "--quiet", "HEAD").removeprefix("refs/heads/"),
        subject=subject,
        time=int(time or 0),
        commits=commits,
        tags=_tags(git, commits),
    )


def _commits(git: Git, head: str) -> dict[str, tuple[str, ...]]:
    known = _with_parents(git, "-1", head)
    tag = git.line("describe", "--tags", "--abbrev=0", head)
    count = git.line("rev-list", "--count", f"refs/tags/{tag}..{head}") if tag else ""
    if not count.isdigit() or int(count) > HISTORY_LIMIT:
        return known
    known |= _with_parents(git, f"refs/tags/{tag}..{head}")
    known |= _with_parents(git, "-1", f"refs/tags/{tag}^{{commit}}")
    return _whole_merges(git, known)


def _whole_merges(git: Git, known: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """A shallow commit loses all its parents: a merge half of whose parents go along gets the others too."""
    while halves := _halves(known):
        if len(known) > 2 * HISTORY_LIMIT:
            break
        for oid in halves:
            known |= _with_parents(git, "-1", oid)
    return known


def _halves(known: Mapping[str, tuple[str, ...]]) -> set[str]:
    missing: set[str] = set()
    for parents in known.values():
        absent = set(parents) - set(known)
        if absent and len(absent) < len(set(parents)):
            missing |= absent
    return missing


def _with_parents(git: Git, *revisions: str) -> dict[str, tuple[str, ...]]:
    lines = git.run("rev-list", "--parents", *revisions).decode().splitlines()
    return {oid: tuple(parents) for oid, *parents in (line.split() for line in lines)}


def _tags(git: Git, commits: Iterable[str]) -> dict[str, tuple[str, str]]:
    wanted = set(commits)
    form = "%(refname:strip=2)%00%(objectname)%00%(*objectname)"
    found: dict[str, tuple[str, str]] = {}
    for line in (
        git.run("for-each-ref", f"--format={form}", "refs/tags").decode("utf-8", "surrogateescape").splitlines()
    ):
        name, oid, peeled = line.split("\0")
        commit = peeled or oid
        if commit in wanted:
            found[name] = (oid, commit)
    return dict(sorted(found.items()))
