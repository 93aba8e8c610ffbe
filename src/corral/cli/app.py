# SPDX-License-Identifier: Apache-2.0
"""The command tree: a table of names, each imported when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from corral import __version__
from corral.cli.failing import guarded
from corral.cli.wired import Session


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Where a command is. ``attribute``: a function, or a ``typer.Typer`` of sub-commands."""

    module: str
    attribute: str = "command"


def _entry(name: str, attribute: str = "command") -> Entry:
    return Entry(module=f"corral.cli.commands.{name}", attribute=attribute)


COMMANDS: dict[str, Entry] = {
    "demo": _entry("demo"),
    "run": _entry("run"),
    "compile": _entry("compile", "compile_command"),
    "server": _entry("server"),
    "agent": _entry("agent", "app"),
    "submit": _entry("submit"),
    "runs": _entry("runs"),
    "logs": _entry("logs"),
    "why": _entry("why"),
    "cancel": _entry("cancel"),
    "rerun": _entry("rerun"),
    "agents": _entry("agents", "app"),
    "provisions": _entry("provisions", "app"),
    "pools": _entry("pools"),
    "config": _entry("config", "app"),
    "diagnose": _entry("diagnose"),
    "workflows": _entry("workflows", "app"),
    "token": _entry("token", "app"),
    "login": _entry("login"),
    "paths": _entry("paths"),
    "clean": _entry("clean"),
    "provisioner": _entry("provisioner", "app"),
    "cluster": _entry("cluster", "app"),
    "db": _entry("db", "app"),
    "firecracker": _entry("firecracker", "app"),
    "sim": _entry("sim", "app"),
}
"""In the order of ``corral --help``."""


class _Lazy(MutableMapping[str, Any]):
    """The table as the mapping of commands that Typer expects; a command is imported when it is looked up."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _load(name, COMMANDS[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]


def _load(name: str, entry: Entry) -> Any:
    target = getattr(importlib.import_module(entry.module), entry.attribute)
    app = target if isinstance(target, typer.Typer) else _single(target)
    command = typer.main.get_command(app)
    command.name = name
    return command


def _single(function: Any) -> typer.Typer:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(function)
    return app


class Group(TyperGroup):
    """The root: commands from the table, and one place where errors become sentences and exit codes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Lazy()

    def invoke(self, ctx: Any) -> Any:
        with guarded(ctx):
            return super().invoke(ctx)


app = typer.Typer(
    cls=Group,
    help="Self-hosted CI: queued jobs become short-lived agents, and every instance is given back.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"corral {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an unexpected failure.")] = False,
) -> None:
    if not isinstance(context.obj, Session):
        context.obj = Session()
    context.obj.debug = debug
