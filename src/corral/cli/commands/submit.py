# SPDX-License-Identifier: Apache-2.0
"""``corral submit``: the workflows of a work tree, on a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.commands.run import Env, Jobs, Secrets, Tree, Workflow
from corral.cli.failing import say
from corral.cli.interrupts import ending_cleanly
from corral.cli.options import AsJson, StateDir, Url, with_client
from corral.cli.output import write, write_json
from corral.cli.wired import wiring_of
from corral.model.errors import PermanentError

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.spec import GitSource


class NoServer(PermanentError):
    code = "no_server"


def command(
    context: typer.Context,
    path: Tree = Path(),
    workflow: Workflow = "",
    job: Jobs = None,
    env: Env = None,
    secret: Secrets = None,
    git: Annotated[
        str, typer.Option("--git", metavar="URL", help="Run on a commit of this repository, which the agents fetch.")
    ] = "",
    commit: Annotated[str, typer.Option("--commit", metavar="SHA", help="With --git: the full hash of it.")] = "",
    credential: Annotated[
        str,
        typer.Option(
            "--credential",
            metavar="NAME",
            help="With --git: the --secret that the repository asks for: TOKEN, USER:PASSWORD, or a key for ssh.",
        ),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show the run until it has ended.")] = False,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Run a workflow of a git work tree on a server.

    Uncommitted changes are included. Without --follow the id of the run is printed, and the run goes on without
    this command. With --git the workflows are PATH's, and the jobs run on that commit.
    """
    from corral.cli.executing import Wanted, follow_there, prepared, submit
    from corral.cli.inputs import secrets, variables
    from corral.cli.statedir import default_state_dir

    if not url and wiring_of(context).live_server((state_dir or default_state_dir()).absolute()) is None:
        raise NoServer(
            "there is no server to submit to: name one with --url, start one with corral server, or corral run"
        )
    wanted = Wanted(
        path=path,
        workflow=workflow,
        jobs=tuple(job or ()),
        env=variables(env or ()),
        secrets=secrets(secret or ()),
        git=_git(git, commit, credential),
    )
    with ending_cleanly(), prepared(wanted) as (new, source):

        async def work(client: Client) -> int:
            run = await submit(client, new, source)
            if follow:
                return await follow_there(client, run, as_json=as_json, state_dir=state_dir, url=url)
            if as_json:
                write_json(run)
            else:
                say(f"submitted; follow it with: corral logs {run.id} -f")
                write(run.id)
            return 0

        code = with_client(context, state_dir, url, work)
    raise typer.Exit(code)


def _git(url: str, commit: str, credential: str) -> GitSource | None:
    """:raises Invalid: with everything that is wrong or missing."""
    from corral.model.errors import Fault, Invalid
    from corral.model.gitsource import git_faults
    from corral.model.spec import GitSource

    if not url:
        if commit or credential:
            raise Invalid("the options", [Fault(path="--git", message="is missing", remedy="--git URL")])
        return None
    source = GitSource(url=url, commit=commit, credential=credential)
    faults = git_faults(source)
    if faults:
        raise Invalid("the git source", faults)
    return source
