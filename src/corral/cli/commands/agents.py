# SPDX-License-Identifier: Apache-2.0
"""``corral agents``: who is there to run jobs, and what operators ask of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.failing import say
from corral.cli.finding import find_agent
from corral.cli.options import AsJson, StateDir, Url, with_client
from corral.cli.output import moment, table, write, write_json
from corral.model.ids import AgentId
from corral.model.views import DrainAgent

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import AgentView

WAIT_LOOK = 0.5
"""Seconds between two looks at an agent that drains."""

app = typer.Typer(
    help="List the agents, or cordon and drain one.",
    rich_markup_mode=None,
    add_completion=False,
    invoke_without_command=True,
)
AgentRef = Annotated[
    str, typer.Argument(metavar="AGENT", help="Id of the agent, the beginning of one, or the name of its token.")
]


@app.callback()
def without_command(
    context: typer.Context, state_dir: StateDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """List the agents whose instance is not gone, newest first; or ask something of one."""
    if context.invoked_subcommand is None:
        _list(context, state_dir, url, as_json)


@app.command("list")
def list_agents(context: typer.Context, state_dir: StateDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the agents whose instance is not gone, newest first."""
    _list(context, state_dir, url, as_json)


def _list(context: typer.Context, state_dir: Path | None, url: str | None, as_json: bool) -> None:
    async def work(client: Client) -> tuple[AgentView, ...]:
        return await client.agents()

    agents = with_client(context, state_dir, url, work)
    if as_json:
        write_json(agents)
        return
    rows = [
        (
            agent.id,
            agent.pool or agent.name or "-",
            agent.state,
            agent.job_id or "-",
            moment(agent.last_seen_at),
            _standing(agent) or " ".join(agent.labels),
        )
        for agent in agents
    ]
    write(table(("AGENT", "POOL", "STATE", "JOB", "LAST SEEN", "LABELS OR CORDON"), rows))


def _standing(agent: AgentView) -> str:
    """Why nothing is offered to it."""
    words = {"cordon": "cordoned", "drain": "draining"}
    if agent.hold:
        by = f" by {agent.held_by}" if agent.held_by else ""
        return f"{words.get(agent.hold, agent.hold)}{by} since {moment(agent.held_at)}"
    return agent.cordon_reason


@app.command()
def cordon(
    context: typer.Context, agent: AgentRef, state_dir: StateDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Offer nothing more to an agent.

    The job it has goes on. It stays so, also when the agent registers again, until it is uncordoned.
    """

    async def work(client: Client) -> AgentView:
        return await client.cordon_agent(AgentId((await find_agent(client, agent)).id))

    _ask(context, state_dir, url, as_json, work, "nothing more is offered to it")


@app.command()
def uncordon(
    context: typer.Context, agent: AgentRef, state_dir: StateDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Let an agent be offered jobs again.

    A static agent that was told to drain ends all the same; it takes jobs when it is started again.
    """

    async def work(client: Client) -> AgentView:
        return await client.uncordon_agent(AgentId((await find_agent(client, agent)).id))

    _ask(context, state_dir, url, as_json, work, "it may be offered jobs")


@app.command()
def drain(
    context: typer.Context,
    agent: AgentRef,
    hand_back_after: Annotated[
        float | None,
        typer.Option(
            "--hand-back-after",
            min=0,
            metavar="SECONDS",
            help="Give up a job that has not ended by then; its policy for loss says what becomes of it.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it is not connected any more.")] = False,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Offer nothing more to an agent, and end it after the job it has.

    An instance that Corral made is given back. A static agent's process ends; while it is not uncordoned, it ends
    again whenever it is started.
    """
    how = DrainAgent(hand_back_after=hand_back_after)

    async def work(client: Client) -> AgentView:
        view = await client.drain_agent(AgentId((await find_agent(client, agent)).id), how)
        return await _until_left(client, view) if wait else view

    _ask(context, state_dir, url, as_json, work, "drained" if wait else "it ends after the job it has")


async def _until_left(client: Client, view: AgentView) -> AgentView:
    while view.state == "online":
        await asyncio.sleep(WAIT_LOOK)
        now = next((each for each in await client.agents() if each.id == view.id), None)
        if now is None:
            return view
        view = now
    return view


def _ask(
    context: typer.Context,
    state_dir: Path | None,
    url: str | None,
    as_json: bool,
    work: Callable[[Client], Awaitable[AgentView]],
    sentence: str,
) -> None:
    view = with_client(context, state_dir, url, work)
    if as_json:
        write_json(view)
    else:
        say(f"agent {view.id}{f' ({view.name})' if view.name else ''}: {sentence}")
