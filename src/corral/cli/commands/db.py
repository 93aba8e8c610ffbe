# SPDX-License-Identifier: Apache-2.0
"""``corral db``: look at the database, bring its schema up to date, carry it elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from corral.cli.failing import say
from corral.cli.options import AsJson, StateDir
from corral.cli.output import write_json
from corral.cli.statedir import DATABASE, default_state_dir
from corral.model.errors import Fault, Invalid, StoreMisconfigured

if TYPE_CHECKING:
    from sqlalchemy import Engine

T = TypeVar("T")

app = typer.Typer(
    help="The database: status, upgrade, backup, restore, move.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
)

DatabaseUrl = Annotated[
    str,
    typer.Option(
        "--database",
        envvar="CORRAL_DATABASE",
        metavar="URL",
        help="postgresql://USER@HOST/NAME; without it, the embedded database of the state directory.",
    ),
]


@app.command()
def status(state_dir: StateDir = None, database: DatabaseUrl = "", as_json: AsJson = False) -> None:
    """Show which database it is, its schema version and its size."""
    found = _postgres_status(database) if database else _sqlite_status(_file(state_dir))
    if as_json:
        write_json(found)
        return
    for key, value in found.items():
        typer.echo(f"{key.replace('_', ' ')}: {value}")


@app.command()
def upgrade(database: DatabaseUrl = "") -> None:
    """Create or upgrade the schema of a PostgreSQL database.

    An embedded database is upgraded by the next start, after a copy of it was taken.
    """
    if not database:
        raise Invalid("--database", [Fault(message="name the PostgreSQL database: --database postgresql://…")])
    from corral.store.upgrade import upgrade_postgres

    before, now = _with_postgres(database, upgrade_postgres)
    say(f"the schema has version {now}" + (f"; it had {before}" if before and before != now else ""))


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the copy.", show_default=False)],
    state_dir: StateDir = None,
) -> None:
    """Copy the embedded database, also while a server uses it.

    Logs and sources are files of the state directory (logs/, sources/), secrets are sealed with its secrets.key:
    copy these beside it.
    """
    from corral.store.transfer import backup_sqlite

    backup_sqlite(_file(state_dir), target.absolute())
    say(f"copied to {target}")


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="Made by corral db backup.", show_default=False)],
    state_dir: StateDir = None,
) -> None:
    """Put a copy in the place of the embedded database; no server may use it meanwhile.

    What is there now is kept beside it. The restored installation does not know what was made or ended after the copy
    was taken: instances that it does not know are left alone until you approve their removal.
    """
    from corral.cli.statedir import prepare_state_dir
    from corral.store.transfer import restore_sqlite

    directory = prepare_state_dir(state_dir or default_state_dir())
    kept = restore_sqlite(source.absolute(), directory / DATABASE, _unix_seconds())
    say(f"restored {source}" + (f"; what was there is {kept.name}" if kept is not None else ""))


@app.command()
def copy(database: DatabaseUrl = "", state_dir: StateDir = None, as_json: AsJson = False) -> None:
    """Copy the embedded database into an empty PostgreSQL one (after corral db upgrade); no server may use it."""
    if not database:
        raise Invalid("--database", [Fault(message="name the PostgreSQL database: --database postgresql://…")])
    from corral.store.transfer import copy_database, held_sqlite

    path = _file(state_dir)
    if not path.is_file():
        raise StoreMisconfigured(f"there is no database {path}")
    with held_sqlite(path) as engine:
        moved = _with_postgres(database, lambda target: copy_database(engine, target, _unix_seconds()))
    if as_json:
        write_json({"rows": moved.rows, "generation": moved.generation})
    else:
        say(f"{sum(moved.rows.values())} rows copied; the lease goes on with generation {moved.generation}")


def _file(state_dir: Path | None) -> Path:
    return (state_dir or default_state_dir()).absolute() / DATABASE


def _unix_seconds() -> int:
    from corral.runtime.clock import SECOND, SystemClock

    return SystemClock().now() // SECOND


def _sqlite_status(path: Path) -> dict[str, str]:
    from corral.store.tables import SCHEMA_VERSION
    from corral.store.transfer import check_backup

    version = check_backup(path)
    size = sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*") if each.suffix != ".lock")
    return {
        "engine": "sqlite",
        "place": str(path),
        "schema_version": str(version),
        "known_version": str(SCHEMA_VERSION),
        "bytes": str(size),
    }


def _postgres_status(url: str) -> dict[str, str]:
    from corral.store.upgrade import describe_postgres

    return {"engine": "postgresql", **_with_postgres(url, describe_postgres)}


def _with_postgres(url: str, use: Callable[[Engine], T]) -> T:
    from corral.store.postgres import open_engine
    from corral.store.translation import translated

    engine = open_engine(url)
    try:
        with translated():
            return use(engine)
    finally:
        engine.dispose()
