# SPDX-License-Identifier: Apache-2.0
"""``corral demo``: the whole way once, on a real project."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.demo.pinned import PACKAGE, VERSION
from corral.cli.failing import say
from corral.cli.interrupts import ending_cleanly
from corral.cli.options import AsJson, StateDir
from corral.cli.scratch import scratch
from corral.cli.wired import wiring_of
from corral.model.errors import PermanentError

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import RunView


class NoTests(PermanentError):
    code = "no_tests"
    status = 422


def command(
    context: typer.Context,
    package: Annotated[
        str, typer.Argument(metavar="PACKAGE", help="A package on the index: NAME or NAME==VERSION.")
    ] = PACKAGE,
    path: Annotated[
        Path | None, typer.Option("--path", metavar="DIR", help="A local tree instead; it is copied, not changed.")
    ] = None,
    parts: Annotated[int, typer.Option("--parts", min=1, max=64, help="Parts of the test suite.")] = 3,
    max_agents: Annotated[int, typer.Option("--max-agents", min=1, max=64, help="Agents at the same time.")] = 3,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Test a real package in parts, on agents made for it.

    Its own test suite runs. The package's source distribution comes from the index of your own pip settings.
    Ctrl-C cancels, twice kills.
    """
    from corral.cli.executing import Wanted, prepared, run_here, submit
    from corral.cli.statedir import default_state_dir, refuse_held

    place = (state_dir or default_state_dir()).absolute()
    refuse_held(place)
    with (
        ending_cleanly(),
        _project(package, path, parts) as tree,
        prepared(Wanted(path=tree, env={}, secrets={})) as (new, source),
    ):

        async def begin(client: Client) -> RunView:
            return await submit(client, new, source)

        code = asyncio.run(
            run_here(
                wiring_of(context),
                place,
                begin,
                max_agents=max_agents,
                as_json=as_json,
                shown_dir=state_dir,
            )
        )
    raise typer.Exit(code)


@contextlib.contextmanager
def _project(package: str, path: Path | None, parts: int) -> Iterator[Path]:
    """The project in a git repository of its own, removed at the end.

    :raises NoTests: it has none. :raises IndexAway, NoPackage: see :func:`corral.cli.demo.fetch.fetch`.
    """
    from corral.cli.demo.project import examine
    from corral.cli.demo.repository import make_repository

    with scratch("demo") as place:
        tree = _tree(package, path, place)
        project = examine(tree)
        if not project.test_files:
            raise NoTests(f"{tree.name} has no tests in its source: choose another package, or a tree with --path DIR")
        say(f"{tree.name}: {len(project.test_files)} test files, run with {project.runner} in {parts} parts")
        make_repository(tree, project, parts, tree.name)
        yield tree


def _tree(package: str, path: Path | None, place: Path) -> Path:
    from corral.cli.demo.fetch import fetch
    from corral.cli.demo.unpack import copy_tree, unpack

    if path is not None:
        return copy_tree(path, place)
    say(f"downloading {package}{f' {VERSION}' if package == PACKAGE else ''}")
    (place / "download").mkdir()
    (place / "project").mkdir()
    return unpack(fetch(package, place / "download"), place / "project")
