# SPDX-License-Identifier: Apache-2.0
"""``corral workflows``: what is registered with the server, for events to start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.commands.run import Tree
from corral.cli.failing import say
from corral.cli.options import AsJson, StateDir, Url, with_client
from corral.cli.output import moment, table, write, write_json

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import WorkflowView

app = typer.Typer(
    help="Register workflows with the server, for events to start.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A registered workflow (corral workflows list).")]


@app.command()
def register(
    context: typer.Context,
    path: Tree = Path(),
    workflow: Annotated[
        list[str] | None,
        typer.Option("--workflow", "-w", metavar="NAME", help="Only this one; repeatable. Default: all with an event."),
    ] = None,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Register the workflows of a git work tree that declare an event.

    The tree as it is now, uncommitted changes included, is kept with them; what was registered under the same names
    is replaced.
    """
    from corral.cli.executing import snapshot_of

    with snapshot_of(path, tuple(workflow or ())) as (wanted, source):

        async def work(client: Client) -> tuple[WorkflowView, ...]:
            if await client.source_size(source.hash) is None:
                await client.put_source(source.hash, source.chunks())
            return await client.register_workflows(wanted)

        views = with_client(context, state_dir, url, work)
    if as_json:
        write_json(views)
        return
    for view in views:
        again = "" if view.version == 1 else f", for the {view.version}. time"
        say(f"workflow {view.name} is registered{again}: {', '.join(view.events)}")


@app.command("list")
def list_workflows(
    context: typer.Context, state_dir: StateDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """List the registered workflows."""

    async def work(client: Client) -> tuple[WorkflowView, ...]:
        return await client.workflows()

    views = with_client(context, state_dir, url, work)
    if as_json:
        write_json(views)
        return
    rows = [
        (
            view.name,
            ", ".join(view.pools) or "-",
            ", ".join(view.events),
            moment(view.registered_at),
            view.registered_by or "-",
        )
        for view in views
    ]
    write(table(("WORKFLOW", "POOLS", "EVENTS", "REGISTERED", "BY"), rows))


@app.command()
def show(
    context: typer.Context, name: Name, state_dir: StateDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Show one registered workflow."""

    async def work(client: Client) -> WorkflowView:
        return await client.workflow(name)

    view = with_client(context, state_dir, url, work)
    if as_json:
        write_json(view)
        return
    write(
        table(
            ("WORKFLOW", view.name),
            [
                ("description", view.description or "-"),
                ("events", ", ".join(view.events)),
                ("jobs", ", ".join(view.jobs)),
                ("provisioner of", ", ".join(view.pools) or "-"),
                ("written in", f"{view.file}:{view.line}"),
                ("source", view.source_hash[:12] or "-"),
                ("registered", f"{moment(view.registered_at)} by {view.registered_by or '-'}, version {view.version}"),
            ],
        )
    )


@app.command()
def remove(
    context: typer.Context, name: Name, state_dir: StateDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Remove a registered workflow.

    Refused while a pool names it as its provisioner, or instances are left that only it can destroy.
    """

    async def work(client: Client) -> WorkflowView:
        return await client.remove_workflow(name)

    view = with_client(context, state_dir, url, work)
    if as_json:
        write_json(view)
    else:
        say(f"workflow {view.name} is not registered any more")
