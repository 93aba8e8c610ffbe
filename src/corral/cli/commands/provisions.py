# SPDX-License-Identifier: Apache-2.0
"""``corral provisions``: every instance that was asked for, what it costs, and what could not be confirmed gone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.failing import say
from corral.cli.finding import find_provision
from corral.cli.options import AsJson, StateDir, Url, with_client
from corral.cli.output import moment, seconds, table, write, write_json
from corral.model.errors import Refused
from corral.model.ids import AgentId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.client import Client
    from corral.model.views import DeliveryView, ProvisionView

app = typer.Typer(
    help="List the instances that were asked for, and what leaks.",
    rich_markup_mode=None,
    add_completion=False,
    invoke_without_command=True,
)
ProvisionRef = Annotated[
    str, typer.Argument(metavar="PROVISION", help="Id of the provision (its agent's), or the beginning of one.")
]
Pool = Annotated[str, typer.Option("--pool", metavar="NAME", help="Only those of one pool.")]
State = Annotated[
    str,
    typer.Option(
        "--state",
        metavar="STATE",
        help="Only those in one state: requested, active, releasing, abandoned or gone.",
    ),
]
Abandoned = Annotated[
    bool,
    typer.Option("--abandoned", help="The leak ledger: instances that could not be confirmed gone, and their cost."),
]


@app.callback()
def without_command(
    context: typer.Context, state_dir: StateDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """List the instances that were asked for and are not gone, newest first; or say something of one."""
    if context.invoked_subcommand is None:
        _list(context, state_dir, url, as_json, "", "")


@app.command("list")
def list_provisions(
    context: typer.Context,
    pool: Pool = "",
    state: State = "",
    abandoned: Abandoned = False,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the instances that were asked for and are not gone, newest first."""
    _list(context, state_dir, url, as_json, "abandoned" if abandoned else state, pool)


def _list(
    context: typer.Context, state_dir: Path | None, url: str | None, as_json: bool, state: str, pool: str
) -> None:
    async def work(client: Client) -> tuple[ProvisionView, ...]:
        return await client.provisions(state=state, pool=pool)

    found = with_client(context, state_dir, url, work)
    if as_json:
        write_json(found)
        return
    write(_table(found))
    if state == "abandoned" and found:
        say(_ledger(found))


def _table(found: Sequence[ProvisionView]) -> str:
    rows = [
        (
            each.id,
            each.pool,
            each.state,
            each.cause,
            each.job_id or "-",
            seconds(each.age),
            _money(each.cost) if each.cost_per_hour else "-",
            each.release_reason or each.error or "-",
        )
        for each in found
    ]
    return table(("PROVISION", "POOL", "STATE", "CAUSE", "JOB", "AGE", "COST", "WHY"), rows)


def _ledger(found: Sequence[ProvisionView]) -> str:
    """What leaks altogether."""
    hours = sum(each.age for each in found) / 3600
    cost = sum(each.cost for each in found)
    hourly = sum(each.cost_per_hour for each in found)
    return (
        f"{len(found)} could not be confirmed gone: {hours:.1f} instance-hours, {_money(cost)} so far and "
        f"{_money(hourly)} more each hour; corral provisions retry|forget PROVISION"
    )


def _money(value: float) -> str:
    return f"{value:.2f}"


@app.command()
def show(
    context: typer.Context,
    provision: ProvisionRef,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Tell the whole story of one instance, with what its provisioner was told."""

    async def work(client: Client) -> ProvisionView:
        return await client.provision(AgentId(await find_provision(client, provision)))

    view = with_client(context, state_dir, url, work)
    if as_json:
        write_json(view)
        return
    write(f"provision {view.id} of pool {view.pool} ({view.backend}) is {view.state}")
    facts = {
        "for": f"job {view.job_id} of run {view.run_id}" if view.job_id else view.cause,
        "labels": " ".join(view.labels),
        "provider's id": view.provider_id,
        "cost": f"{_money(view.cost)} at {view.cost_per_hour:g} an hour" if view.cost_per_hour else "",
        "error": view.error,
    }
    for name, value in facts.items():
        if value:
            write(f"{name}: {value}")
    for sentence in view.story:
        write(sentence)
    if view.deliveries:
        write(_events(view.deliveries))


def _events(events: Sequence[DeliveryView]) -> str:
    rows = [
        (
            str(event.sequence),
            event.kind,
            event.state,
            str(event.attempts),
            moment(event.sent_at),
            event.error or event.last or event.reason or "-",
        )
        for event in events
    ]
    return table(("SEQUENCE", "EVENT", "STATE", "SENDINGS", "LAST SENT", "WHAT CAME OF IT"), rows)


@app.command()
def retry(
    context: typer.Context,
    provision: ProvisionRef,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Try again to end an instance that could not be confirmed gone."""

    async def work(client: Client) -> ProvisionView:
        return await client.retry_provision(AgentId(await find_provision(client, provision, "abandoned")))

    view = with_client(context, state_dir, url, work)
    write_json(view) if as_json else say(f"provision {view.id}: it is asked to end again")


@app.command()
def forget(
    context: typer.Context,
    provision: ProvisionRef,
    yes: Annotated[bool, typer.Option("--yes", help="You looked, and the instance does not exist.")] = False,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Take an instance that you looked for and that does not exist off the leak ledger.

    Nothing more is asked of its provisioner. What you say is recorded with your token's id. Should its agent call
    nevertheless, it goes back to being ended.
    """

    async def work(client: Client) -> ProvisionView:
        found = await find_provision(client, provision, "abandoned")
        if not yes:
            message = f"look whether the instance of {found} exists; if it does not, say so with --yes"
            raise Refused(message)
        return await client.forget_provision(AgentId(found))

    view = with_client(context, state_dir, url, work)
    write_json(view) if as_json else say(f"provision {view.id}: off the leak ledger")
