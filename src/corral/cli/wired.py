# SPDX-License-Identifier: Apache-2.0
"""What a command needs of the outside, so that tests can give it another: :mod:`corral.cli.wiring` is the real one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import typer

    from corral.client import Client
    from corral.model.errors import CorralError


class AllInOne(Protocol):
    """A coordinator with agents inside this process."""

    client: Client
    url: str
    state_dir: Path

    async def trouble(self) -> CorralError:
        """Returns when nothing can go on any more, with the reason."""
        ...

    async def stop(self, *, kill: bool = False) -> int:
        """Give everything back, bounded; how many instances are not confirmed gone. Idempotent."""
        ...


class Wiring(Protocol):
    """The functions of :mod:`corral.cli.wiring` that commands use."""

    def open_client(
        self, state_dir: Path | None, url: str | None, token: str | None
    ) -> AbstractAsyncContextManager[Client]: ...

    def all_in_one(
        self,
        state_dir: Path,
        *,
        max_agents: int | None = None,
        inherit_env: tuple[str, ...] | None = None,
        on_ready: Callable[[str], None] = lambda url: None,
    ) -> AbstractAsyncContextManager[Any]: ...

    def live_server(self, state_dir: Path) -> Any: ...


@dataclass(kw_only=True)
class Session:
    """One call of the command line."""

    wiring: Wiring | None = None
    debug: bool = False


def session_of(context: typer.Context) -> Session:
    """The session of a command's context."""
    found = context.find_root().obj
    return found if isinstance(found, Session) else Session()


def wiring_of(context: typer.Context) -> Wiring:
    """The wiring that this call was given; the real one is imported only when it is needed."""
    given = session_of(context).wiring
    if given is not None:
        return given
    from corral.cli import wiring

    return cast(Wiring, wiring)
