# SPDX-License-Identifier: Apache-2.0
"""Exit codes of the command line, each with one meaning (``docs/reference/cli.md``)."""

from __future__ import annotations

from enum import IntEnum

from corral.model.errors import CorralError, Forbidden, TemporaryError, Unauthenticated


class ExitCode(IntEnum):
    OK = 0
    RUN_FAILED = 1
    """The run (or what was checked) ended badly; Corral itself worked."""
    USAGE = 2
    """Something the caller wrote is wrong: options, names, workflows, a tree."""
    UNREACHABLE = 3
    """No server, no package index, or it cannot take the call now: try again."""
    NOT_ALLOWED = 4
    """The token is missing, wrong, or of too small a role."""
    INTERNAL = 70
    """A failure inside Corral: a bug worth reporting."""
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    """Whoever read standard output went away."""
    TERMINATED = 143


MEANINGS = {
    ExitCode.OK: "Done; a run that was followed has succeeded.",
    ExitCode.RUN_FAILED: "The run failed or was cancelled by somebody else; a check found drift.",
    ExitCode.USAGE: "Wrong options, names, workflows, configuration or tree: change something first.",
    ExitCode.UNREACHABLE: "The server or the package index cannot be reached, or cannot take it now: try again.",
    ExitCode.NOT_ALLOWED: "The token is missing, wrong, or its role is too small.",
    ExitCode.INTERNAL: "Corral itself failed; the message names the file with the details.",
    ExitCode.INTERRUPTED: "Interrupted by Ctrl-C; the run was cancelled.",
    ExitCode.BROKEN_PIPE: "Whoever read standard output went away.",
    ExitCode.TERMINATED: "Ended by SIGTERM or SIGHUP; the run was cancelled.",
}


def exit_code_of(error: CorralError) -> ExitCode:
    if isinstance(error, Unauthenticated | Forbidden):
        return ExitCode.NOT_ALLOWED
    if isinstance(error, TemporaryError):
        return ExitCode.UNREACHABLE
    if error.code == "internal":
        return ExitCode.INTERNAL
    return ExitCode.USAGE
