# SPDX-License-Identifier: Apache-2.0
"""``corral``: the one entry point."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.cli.wired import Wiring


GC_THRESHOLD = 50_000
"""Objects made between two looks for garbage; a cycle of that many small ones is a few MiB."""


def main(arguments: Sequence[str] | None = None, wiring: Wiring | None = None) -> int:
    """Run one command; the exit code. ``wiring``: what tests put in the place of the real one."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_standard_streams()
    if words == ["--version"]:
        # Asked for by scripts and prompts: answered without loading the command tree.
        from corral import __version__

        sys.stdout.write(f"corral {__version__}\n")
        return 0
    return _run(words, wiring)


def _open_standard_streams() -> None:
    """A caller may have closed them: then the next file or socket would get the number, and what is printed."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - it lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _run(words: list[str], wiring: Wiring | None) -> int:
    # Importing makes many objects and no garbage: looking for some every 700 of them is a sixth of a server's start.
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    import typer

    from corral.cli.app import app
    from corral.cli.exits import ExitCode
    from corral.cli.failing import forget_stdout, say_error
    from corral.cli.wired import Session

    try:
        typer.main.get_command(app).main(args=words, prog_name="corral", obj=Session(wiring=wiring))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else ExitCode.USAGE
    try:
        sys.stdout.flush()
    except OSError as error:
        forget_stdout()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            say_error("no space left where this command writes")
            return code or ExitCode.UNREACHABLE
        return code or ExitCode.BROKEN_PIPE
    return code


if __name__ == "__main__":
    sys.exit(main())
