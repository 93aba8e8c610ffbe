# SPDX-License-Identifier: Apache-2.0
"""``corral provisioner``: is a user's own provisioner fit to be trusted with an account that bills by the minute?"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.exits import ExitCode
from corral.cli.failing import say
from corral.cli.options import AsJson, StateDir, Url, with_client
from corral.cli.output import table, write, write_json
from corral.model.errors import NotFound, Refused

if TYPE_CHECKING:
    from corral.backends.event.deliverers import Deliverers
    from corral.cli.verifying.report import Verification
    from corral.client import Client
    from corral.model.events import Answer, Target
    from corral.model.leaks import EpochView, LedgerView

app = typer.Typer(
    help="Tools for those who write provisioners.", rich_markup_mode=None, add_completion=False, no_args_is_help=True
)


@app.callback()
def provisioner() -> None:
    """Tools for those who write provisioners."""


@app.command()
def verify(
    target: Annotated[
        list[str] | None,
        typer.Argument(metavar="URL | -- COMMAND…", help="A webhook, or a program and its arguments after --."),
    ] = None,
    secret: Annotated[
        str, typer.Option("--secret", help="Webhook: the file that holds its whsec_ secret, or $NAME of a variable.")
    ] = "",
    pool: Annotated[str, typer.Option("--pool", help="Verify the provisioner of this pool of --config.")] = "",
    config: Annotated[Path | None, typer.Option("--config", help="The server's corral.yaml.")] = None,
    directory: Annotated[Path, typer.Option("--directory", help="Program: where it runs.")] = Path(),
    env: Annotated[
        list[str] | None, typer.Option("--env", help="Program: a variable that it sees; may be repeated.")
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", min=0.5, max=3600, help="Seconds that one event may take; of a pool, at most its own."
        ),
    ] = 60.0,
    list_lag: Annotated[
        float, typer.Option("--list-lag", min=0.1, max=600, help="Seconds that a listing may lag behind.")
    ] = 10.0,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Play the adversary against a provisioner: it makes and destroys about thirty instances.

    They are asked for under a cluster id of their own, with claim codes that nobody can redeem, and are destroyed at
    the end; what could not be is named. Exit code 0: every case passed or does not apply; 1: one failed, or something
    is left; 2: the provisioner could not be asked.
    """
    from corral.cli.statedir import SECRETS, default_state_dir

    place = (state_dir or default_state_dir()).absolute()
    secrets = place / SECRETS
    words = list(target or ())
    if pool:
        if words:
            raise typer.BadParameter("name a target or --pool, not both")
        found = _of_pool(pool, config)
    elif not words:
        raise typer.BadParameter("name a URL with --secret, a program after --, or a --pool of a --config")
    elif len(words) == 1 and words[0].startswith(("http://", "https://")):
        found, secrets = _webhook(words[0], secret, timeout)
    else:
        found = _program(words, directory, tuple(env or ()), timeout)
    done = asyncio.run(_verified(found, place, secrets, timeout, list_lag, quiet=as_json))
    if as_json:
        write_json(done)
    else:
        from corral.cli.verifying.report import show

        show(done)
    if not done.reached:
        raise typer.Exit(ExitCode.USAGE)
    raise typer.Exit(ExitCode.OK if done.passed else ExitCode.RUN_FAILED)


def _of_pool(name: str, config: Path | None) -> Target:
    from corral.cli.config import load_config, to_pool

    if config is None:
        raise typer.BadParameter("--pool needs --config FILE")
    pools = {each.name: to_pool(each) for each in load_config(config).pools}
    if name not in pools:
        raise NotFound(f"{config} has no pool {name!r}; there is {', '.join(sorted(pools)) or 'none'}")
    target = pools[name].target
    if target is None:
        raise Refused(f"pool {name} has backend {pools[name].backend}: only an event pool has a provisioner")
    return target


def _webhook(url: str, secret: str, timeout: float) -> tuple[Target, Path]:
    """The target, and the directory where its secret lies."""
    from corral.model.events import Webhook

    if not secret:
        raise typer.BadParameter("a webhook needs --secret FILE, or --secret '$NAME'")
    if secret.startswith("$"):
        return Webhook(url=url, secret=secret, timeout=timeout), Path.cwd()
    file = Path(secret).absolute()
    return Webhook(url=url, secret=file.name, timeout=timeout), file.parent


def _program(words: list[str], directory: Path, env: tuple[str, ...], timeout: float) -> Target:
    from corral.model.events import Exec

    return Exec(command=tuple(words), directory=str(directory.absolute()), env=env, timeout=timeout)


async def _verified(
    target: Target, place: Path, secrets: Path, timeout: float, lag: float, *, quiet: bool
) -> Verification:
    from corral.backends.event.deliverers import Deliverers
    from corral.backends.event.execute import ExecDeliverer
    from corral.backends.event.secretfile import SecretStore
    from corral.backends.event.webhook import WebhookDeliverer
    from corral.cli.verifying.asking import Adversary
    from corral.cli.verifying.report import verify as verification
    from corral.model.events import Webhook
    from corral.runtime.chance import SystemChance
    from corral.runtime.clock import SystemClock

    clock, chance = SystemClock(), SystemChance()
    programs = ExecDeliverer(place, os.environ)

    def deliverers(secrets: SecretStore) -> Deliverers:
        return Deliverers(webhooks=WebhookDeliverer(secrets, clock), programs=programs)

    honest = deliverers(SecretStore(secrets, os.environ))
    impostor = None
    if isinstance(target, Webhook):
        forged = {"FORGED": "whsec_" + base64.b64encode(chance.token_bytes(32)).decode()}
        impostor = _Forging(deliverers(SecretStore(place, forged)))
    adversary = Adversary(
        target,
        honest,
        impostor=impostor,
        clock=clock,
        chance=chance,
        timeout=min(timeout, target.timeout),
        patience=lag,
    )
    loud = sys.stderr.isatty() and not quiet
    try:
        return await verification(adversary, lambda row: say(f"{row.status.value}: {row.name}") if loud else None)
    finally:
        await honest.close()
        if impostor is not None:
            await impostor.close()


class _Forging:
    """A deliverer that signs with a key of its own."""

    def __init__(self, deliverers: Deliverers) -> None:
        self._deliverers = deliverers

    async def deliver(self, target: Target, event: bytes, *, event_id: str, timeout: float) -> Answer:
        import msgspec

        forged = msgspec.structs.replace(target, secret="$FORGED")
        return await self._deliverers.deliver(forged, event, event_id=event_id, timeout=timeout)

    async def close(self) -> None:
        await self._deliverers.close()


@app.command()
def inventory(
    context: typer.Context,
    now: Annotated[
        bool, typer.Option("--now", help="Ask every provisioner again first; it answers in its time.")
    ] = False,
    state_dir: StateDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show provisioners, leaked instances with their cost, and what needs somebody."""

    async def work(client: Client) -> LedgerView:
        return await client.inventory_now() if now else await client.ledger()

    view = with_client(context, state_dir, url, work)
    if as_json:
        write_json(view)
        return
    rows = [(each.key, each.listing, each.listed_at or "never", each.error or "-") for each in view.targets]
    write(table(("PROVISIONER", "LISTS", "LAST LISTING", "ERROR"), rows))
    leaks = [
        (leak.kind, leak.agent_id, leak.pool or "-", leak.provider_id or "-", f"{leak.hours:.1f}", f"{leak.cost:.2f}")
        for leak in view.leaks
    ]
    write(table(("LEAK", "AGENT", "POOL", "PROVIDER ID", "HOURS", "COST"), leaks))
    for alarm in view.alarms:
        say(f"{alarm.code} {alarm.subject}: {alarm.message}. {alarm.remedy}")


@app.command("approve-strays")
def approve_strays(
    context: typer.Context, state_dir: StateDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Let instances that nobody here knows be destroyed again, after a restore or a raised epoch.

    Look at `corral provisioner inventory` first: what a lost commit knew is listed there too.
    """

    async def work(client: Client) -> EpochView:
        return await client.approve_strays()

    view = with_client(context, state_dir, url, work)
    if as_json:
        write_json(view)
    else:
        say(f"strays may be destroyed (generation {view.generation})")
