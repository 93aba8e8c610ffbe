# SPDX-License-Identifier: Apache-2.0
"""``corral db`` on real databases."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from corral.cli.exits import ExitCode
from corral.runtime.clock import SystemClock
from corral.store.repo import installation
from corral.store.sqlite import SqliteDatabase
from corral.store.tables import SCHEMA_VERSION
from tests.cli.double import corral
from tests.postgres import server


def a_state(directory: Path) -> Path:
    async def run() -> None:
        database = SqliteDatabase.open(directory / "corral.db", SystemClock())
        await database.write(lambda c: installation.fact(c, "cluster_id", "cluster_1"))
        await database.close()

    asyncio.run(run())
    return directory


def test_status_backup_restore_of_the_embedded_database(tmp_path: Path) -> None:
    state = a_state(tmp_path)
    shown = json.loads(corral("db", "status", "--json", "--state-dir", str(state)).stdout)
    assert (shown["engine"], shown["schema_version"]) == ("sqlite", str(SCHEMA_VERSION))
    copy = tmp_path / "copy.db"
    assert corral("db", "backup", str(copy), "--state-dir", str(state)).exit_code == 0
    again = corral("db", "backup", str(copy), "--state-dir", str(state))
    assert again.exit_code == ExitCode.USAGE and "replaces nothing" in again.stderr
    restored = corral("db", "restore", str(copy), "--state-dir", str(state))
    assert restored.exit_code == 0 and "corral.db.replaced-1" in restored.stderr
    nothing = corral("db", "status", "--state-dir", str(tmp_path / "other"))
    assert nothing.exit_code == ExitCode.USAGE and "there is no file" in nothing.stderr


def test_upgrade_status_and_copy_to_postgresql(tmp_path: Path) -> None:
    url = server().empty()
    state = str(a_state(tmp_path))
    early = corral("db", "copy", "--database", url, "--state-dir", state)
    assert early.exit_code != 0 and "Traceback" not in early.stderr
    assert f"version {SCHEMA_VERSION}" in corral("db", "upgrade", "--database", url).stderr
    shown = json.loads(corral("db", "status", "--json", "--database", url).stdout)
    assert (shown["engine"], shown["schema_version"], shown["role"]) == ("postgresql", str(SCHEMA_VERSION), "primary")
    assert corral("db", "copy", "--database", url, "--state-dir", state).exit_code == 0
    twice = corral("db", "copy", "--database", url, "--state-dir", state)
    assert twice.exit_code == ExitCode.USAGE and "holds an installation already" in twice.stderr


def test_a_database_that_is_named_wrongly_or_not_at_all() -> None:
    assert corral("db", "upgrade").exit_code == ExitCode.USAGE
    assert corral("db", "status", "--database", "mysql://u@h/n").exit_code == ExitCode.USAGE
    away = corral("db", "status", "--database", "postgresql://u@127.0.0.1:1/n")
    assert away.exit_code == ExitCode.UNREACHABLE and "cannot be reached" in away.stderr
