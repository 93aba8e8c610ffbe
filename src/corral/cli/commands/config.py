# SPDX-License-Identifier: Apache-2.0
"""``corral config``: look at a configuration file before a server does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from corral.cli.failing import say
from corral.cli.options import AsJson
from corral.cli.output import table, write, write_json

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
    as_json: AsJson = False,
) -> None:
    """Report every fault of a file with its line and remedy; exit 2 when there is one."""
    from corral.cli.config import load_config

    config = load_config(file)
    if as_json:
        write_json({"file": str(file), "pools": [pool.name for pool in config.pools], "faults": []})
    else:
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
