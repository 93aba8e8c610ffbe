# SPDX-License-Identifier: Apache-2.0
"""What a check of ``corral diagnose`` says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One sentence, and what to do about it. ``name`` empty: the check's own."""

    status: Status
    message: str
    remedy: str = ""
    name: str = ""


def ok(message: str, name: str = "") -> Row:
    return Row(status=Status.OK, message=message, name=name)


def warning(message: str, remedy: str = "", name: str = "") -> Row:
    return Row(status=Status.WARNING, message=message, remedy=remedy, name=name)


def failed(message: str, remedy: str = "", name: str = "") -> Row:
    return Row(status=Status.FAILED, message=message, remedy=remedy, name=name)


def skipped(message: str, name: str = "") -> Row:
    return Row(status=Status.SKIPPED, message=message, name=name)
