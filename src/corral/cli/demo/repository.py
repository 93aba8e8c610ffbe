# SPDX-License-Identifier: Apache-2.0
"""A fresh git repository around a project, with the demo's workflow in it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from corral.cli.demo.project import Project
from corral.model.errors import PermanentError

WORKFLOW = Path(__file__).parent / "workflows" / "ci.py"
_SETTINGS = (
    "user.name=corral demo",
    "user.email=demo@corral.invalid",
    "commit.gpgsign=false",
    "core.hooksPath=/dev/null",
    "core.autocrlf=false",
    "init.defaultBranch=main",
    "gc.auto=0",
)


class NoRepository(PermanentError):
    """git cannot make the repository."""

    code = "no_repository"


def make_repository(tree: Path, project: Project, parts: int, message: str) -> None:
    """Put the workflow into ``tree`` and commit all of it, as the first commit of a repository of its own."""
    place = tree / ".corral"
    shutil.rmtree(place, ignore_errors=True)
    (place / "workflows").mkdir(parents=True)
    (place / "workflows" / "ci.py").write_text(workflow_text(project, parts))
    _git(tree, "init", "--quiet", "--template=")
    _git(tree, "add", "--all", "--force")
    _git(tree, "commit", "--quiet", "--no-verify", "--message", message)


def workflow_text(project: Project, parts: int) -> str:
    """The checked-in workflow with this project's three settings."""
    text = WORKFLOW.read_text()
    settings = {
        "PARTS = 3": f"PARTS = {parts}",
        'RUNNER = "unittest"': f'RUNNER = "{project.runner}"',
        "REQUIREMENTS: list[str] = []": f"REQUIREMENTS: list[str] = {list(project.requirements)!r}",
    }
    for line, setting in settings.items():
        assert text.count(line) == 1, line
        text = text.replace(line, setting)
    return text


def _git(tree: Path, *arguments: str) -> None:
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *settings, *arguments], cwd=tree, env=environment, capture_output=True, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise NoRepository("git is not installed; sudo apt-get install -y git") from None
    if done.returncode != 0:
        raise NoRepository(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()[:300]}")
