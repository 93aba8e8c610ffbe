# SPDX-License-Identifier: Apache-2.0
"""Schema revisions, by the version each one leads to. Additive between neighbouring releases."""

from __future__ import annotations

from collections.abc import Callable

from alembic.operations import Operations

REVISIONS: dict[int, Callable[[Operations], None]] = {}
"""Version 1 is the first schema; it is created from ``corral.store.tables`` and needs no revision."""
