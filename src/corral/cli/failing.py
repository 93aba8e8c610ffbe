# SPDX-License-Identifier: Apache-2.0
"""How a command fails: a sentence and an exit code, never a traceback that nobody asked for."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from corral.cli.exits import ExitCode, exit_code_of
from corral.cli.wired import session_of
from corral.model.errors import CorralError

# Wrong options and the like; Typer shows them itself. It exports only the leaves of that tree.
_USAGE_ERRORS: tuple[type[BaseException], ...] = (typer.Exit, typer.Abort, typer.BadParameter.__mro__[2])


@contextlib.contextmanager
def guarded(context: Any) -> Iterator[None]:
    """Every error of a command becomes a sentence on standard error and an exit code."""
    try:
        yield
    except _USAGE_ERRORS:
        raise
    except CorralError as error:
        say_error(str(error))
        raise typer.Exit(exit_code_of(error)) from None
    except KeyboardInterrupt:
        say("interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except OSError as error:
        if isinstance(error, BrokenPipeError) or error.errno == errno.EPIPE:
            forget_stdout()
            raise typer.Exit(ExitCode.BROKEN_PIPE) from None
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            forget_stdout()
            say_error(f"no space left where this command writes{f' ({error.filename})' if error.filename else ''}")
            raise typer.Exit(ExitCode.UNREACHABLE) from None
        _unexpected(context, error)
    except Exception as error:
        _unexpected(context, error)


def _unexpected(context: Any, error: Exception) -> None:
    if session_of(context).debug:
        traceback.print_exception(error)
        raise typer.Exit(ExitCode.INTERNAL) from None
    place = _keep(error)
    details = f"details in {place}" if place else "run it again with --debug for the details"
    say_error(f"Corral failed inside ({type(error).__name__}: {_first_line(error)}); {details}")
    raise typer.Exit(ExitCode.INTERNAL) from None


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else ""


def _keep(error: Exception) -> Path | None:
    """The traceback in a file of its own; None where even that fails."""
    try:
        handle, name = tempfile.mkstemp(prefix="corral-failure-", suffix=".log")
        with open(handle, "w") as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return None
    return Path(name)


def say(message: str) -> None:
    """A message for the person, on standard error; a closed one is no reason to fail."""
    with contextlib.suppress(OSError, ValueError):
        print(message, file=sys.stderr, flush=True)  # noqa: T201


def say_error(message: str) -> None:
    say(f"error: {message}")


def forget_stdout() -> None:
    """Nobody reads: what is still buffered goes nowhere, also at exit."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
