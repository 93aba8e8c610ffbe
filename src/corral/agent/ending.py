# SPDX-License-Identifier: Apache-2.0
"""How an agent process ends: its exit codes, documented in ``docs/agent.md``."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct


class ExitCode(IntEnum):
    DONE = 0
    """Its one job is done and acknowledged, it was drained, or it was released."""
    CONFIG = 2
    """The configuration file or a directory that it names cannot be used. Nothing was dialled."""
    REFUSED = 3
    """The coordinator refused it for good (unknown, expired, used, gone, revoked, protocol)."""
    REPLACED = 4
    """Another process registered as this agent."""
    UNANSWERED = 5
    """No coordinator answered for as long as the agent may go on; its job, if any, was killed."""
    STOPPED = 6
    """Asked twice to stop: the job in hand was cancelled and its end could not be reported in time."""


class Ending(Struct, frozen=True):
    code: ExitCode
    message: str
