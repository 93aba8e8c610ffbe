# SPDX-License-Identifier: Apache-2.0
"""``corral config``: look at a configuration file before a server does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.failing import say
from corral.cli.options import AsJson, StateDir, Url, with_client
from corral.cli.output import table, write, write_json

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.views import ReloadView

app = typer.Typer(
    help="Check and explain the server's configuration file.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
)

File = Annotated[
    Path | None, typer.Argument(metavar="FILE", envvar="CORRAL_CONFIG", help="The file; none: the defaults.")
]


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", envvar="CORRAL_CONFIG", help="The file to check.")],
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Report every fault of a file with its line and remedy; exit 2 when there is one."""
    from corral.cli.config.loading import load_configuration
    from corral.cli.config.secrets import SecretPlaces
    from corral.cli.statedir import default_state_dir

    # A secret may be there where the server runs: here its absence is only said.
    places = SecretPlaces(state_dir=state_dir or default_state_dir(), required=False)
    found = load_configuration(file, secrets=places)
    config, warnings = found.config, [str(warning) for warning in found.warnings]
    if as_json:
        pools = [pool.name for pool in config.pools]
        write_json({"file": str(file), "pools": pools, "faults": [], "warnings": warnings})
    else:
        for warning in warnings:
            say(f"warning: {warning}")
        say(f"{file} is right: {len(config.pools)} pool{'s' if len(config.pools) != 1 else ''}")


@app.command()
def show(file: File = None, as_json: AsJson = False) -> None:
    """Print the configuration with every default filled in, and the pools with the labels they get."""
    from corral.cli.config import default_config, load_config, to_pool

    config = load_config(file) if file is not None else default_config()
    pools = [to_pool(pool) for pool in config.pools]
    if as_json:
        write_json(config)
        return
    rows = [(pool.name, pool.backend, str(pool.max_agents), " ".join(sorted(pool.labels))) for pool in pools]
    write(table(("POOL", "BACKEND", "MAX", "LABELS"), rows))


@app.command()
def schema() -> None:
    """Print the JSON Schema of the file, for editors."""
    import msgspec

    from corral.cli.config import ServerConfig

    write_json(msgspec.json.schema(ServerConfig))


@app.command()
def reload(context: typer.Context, state_dir: StateDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """Let the running server read its configuration again: all of it, or every fault and nothing changed."""
    from corral.cli.serving import reload_sentence

    async def work(client: Client) -> ReloadView:
        return await client.reload_config()

    view = with_client(context, state_dir, url, work)
    if as_json:
        write_json(view)
    else:
        say(f"reloaded: {reload_sentence(view)}")
