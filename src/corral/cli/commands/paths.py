# SPDX-License-Identifier: Apache-2.0
"""``corral paths``: every place on this machine that Corral uses."""

from __future__ import annotations

from pathlib import Path

import typer

from corral.cli.credentials import config_dir, credentials_file
from corral.cli.options import AsJson, StateDir
from corral.cli.output import table, write, write_json


def command(context: typer.Context, state_dir: StateDir = None, as_json: AsJson = False) -> None:
    """Print the directories and files that Corral uses.

    None of them has to exist.
    """
    places = _places(state_dir)
    if as_json:
        write_json({name: str(path) for name, (path, _) in places.items()})
        return
    write(table(("NAME", "PATH", "HOLDS"), [(name, str(path), text) for name, (path, text) in places.items()]))


def _places(state_dir: Path | None) -> dict[str, tuple[Path, str]]:
    from corral.cli import statedir

    state = (state_dir or statedir.default_state_dir()).absolute()
    return {
        "state": (state, "everything that a coordinator on this machine keeps"),
        "database": (state / statedir.DATABASE, "runs, jobs, agents, tokens (as hashes)"),
        "logs": (state / statedir.LOGS, "logs of the steps, compressed"),
        "sources": (state / statedir.SOURCES, "source archives of the runs"),
        "work": (state / statedir.WORK, "work directories of running agents"),
        "cache": (state / statedir.CACHE, "caches of the pools"),
        "key": (state / statedir.KEY_FILE, "the key of the secrets of unfinished jobs"),
        "server": (state / statedir.SERVER_FILE, "where the coordinator that holds this directory listens"),
        "admin-token": (state / statedir.TOKEN_FILE, "the first admin token"),
        "config": (config_dir(), "settings of the command line"),
        "credentials": (credentials_file(), "tokens saved by corral login"),
    }
