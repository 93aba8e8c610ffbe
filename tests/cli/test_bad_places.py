# SPDX-License-Identifier: Apache-2.0
"""Directories, streams and leftovers that are not as they should be."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from corral.cli.config import default_config
from corral.cli.scratch import scratch
from corral.cli.statedir import prepare_state_dir
from corral.cli.wiring import assemble
from corral.model.errors import StoreMisconfigured

CORRAL = [sys.executable, "-m", "corral.cli"]


def _corral(*words: str, shell: str = "", before: str = "") -> subprocess.CompletedProcess[str]:
    command = before + " ".join([*CORRAL, *words]) + f" {shell}"
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)


def test_a_directory_where_nothing_was_run_is_said_and_not_made(tmp_path: Path) -> None:
    place = tmp_path / "typo" / "deep"
    done = _corral("runs", "--state-dir", str(place))
    assert done.returncode == 2
    assert str(place) in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "typo").exists()


def test_an_empty_state_directory_is_never_the_current_one(tmp_path: Path) -> None:
    done = _corral("runs", "--state-dir", "''")
    assert done.returncode == 2
    assert "empty" in done.stderr


@pytest.mark.parametrize(("closed", "code"), [(">&-", 2), ("2>&-", 2), ("<&-", 2), (">&- 2>&-", 2)])
def test_closed_streams_are_no_reason_for_a_traceback(tmp_path: Path, closed: str, code: int) -> None:
    done = _corral("runs", "--state-dir", str(tmp_path / "none"), shell=closed)
    assert done.returncode == code
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("before", ["PYTHONUNBUFFERED=1 ", "PYTHONUNBUFFERED= "], ids=["at-once", "at-the-end"])
def test_a_full_disk_behind_standard_output_is_one_sentence(tmp_path: Path, before: str) -> None:
    done = _corral("paths", "--state-dir", str(tmp_path), shell="> /dev/full", before=before)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "no space left" in done.stderr


def test_what_a_killed_command_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, held = tmp_path / f"corral-test-{ended.pid}-abc", tmp_path / f"corral-test-{os.getpid()}-abc"
    for path in (left, held):
        (path / "inside").mkdir(parents=True)
    with scratch("test") as made:
        assert not left.exists()
        assert held.exists()
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert not made.exists()


def test_a_refused_start_leaves_the_holders_directory_as_it_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        state = prepare_state_dir(tmp_path / "state")
        holder = await assemble(state, default_config(), offline=True)
        state.chmod(0o711)
        with pytest.raises(StoreMisconfigured, match=str(os.getpid())):
            await assemble(prepare_state_dir(state), default_config(), offline=True)
        assert stat.S_IMODE(state.stat().st_mode) == 0o711
        await holder.close()

    asyncio.run(scenario())
