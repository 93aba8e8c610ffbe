# SPDX-License-Identifier: Apache-2.0
"""Sealing, keys, ids and moments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.errors import PermanentError
from corral.model.ids import PREFIXES
from corral.model.secret import Secret
from corral.runtime import chance
from corral.runtime.chance import SeededChance, SystemChance, secret_token
from corral.runtime.clock import SystemClock, parse_rfc3339, rfc3339
from corral.runtime.sealing import KEY_BYTES, Sealer, SecretUnavailable, load_key

KEY = bytes(range(KEY_BYTES))


@given(st.text(), st.text())
def test_what_was_sealed_opens_in_its_place_only(value: str, context: str) -> None:
    sealer = Sealer(KEY, SystemChance())
    sealed = sealer.seal(Secret(value), context)
    assert sealer.open(sealed, context).reveal() == value
    for other in (Sealer(KEY[::-1], SystemChance()), sealer):
        with pytest.raises(SecretUnavailable):
            other.open(sealed, context if other is not sealer else context + "x")


@given(st.binary(max_size=80))
def test_what_was_never_sealed_is_unavailable(sealed: bytes) -> None:
    with pytest.raises(SecretUnavailable):
        Sealer(KEY, SystemChance()).open(sealed, "c")


def test_every_bit_counts_and_nothing_is_seen() -> None:
    sealer = Sealer(KEY, SeededChance(1))
    sealed = sealer.seal(Secret("canary"), "run_1/TOKEN")
    assert b"canary" not in sealed
    assert sealer.seal(Secret("canary"), "run_1/TOKEN") != sealed, "a nonce of its own each time"
    for index in range(len(sealed)):
        broken = bytes([*sealed[:index], sealed[index] ^ 1, *sealed[index + 1 :]])
        with pytest.raises(SecretUnavailable) as caught:
            sealer.open(broken, "run_1/TOKEN")
        assert "canary" not in str(caught.value)


def test_the_key_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "secrets.key"
    before = os.umask(0)
    try:
        key = load_key(path, SystemChance())
    finally:
        os.umask(before)
    assert (len(key), path.stat().st_mode & 0o777) == (KEY_BYTES, 0o600)
    assert load_key(path, SystemChance()) == key
    assert [entry.name for entry in tmp_path.iterdir()] == ["secrets.key"]


@pytest.mark.parametrize("content", [b"", b"short", bytes(33)])
def test_a_file_that_is_no_key_is_never_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secrets.key"
    path.write_bytes(content)
    with pytest.raises(PermanentError, match=f"holds {len(content)} bytes instead of 32; restore it from a copy"):
        load_key(path, SystemChance())
    assert path.read_bytes() == content


def test_a_key_that_cannot_be_made_or_read(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="cannot make the key file"):
        load_key(tmp_path / "none" / "secrets.key", SystemChance())
    (tmp_path / "secrets.key").mkdir()
    with pytest.raises(PermanentError, match="cannot read the key file"):
        load_key(tmp_path / "secrets.key", SystemChance())


LIMITED = """
import resource, sys
from pathlib import Path
from corral.model.errors import PermanentError
from corral.runtime.chance import SystemChance
from corral.runtime.sealing import load_key
resource.setrlimit(resource.RLIMIT_FSIZE, (8, resource.RLIM_INFINITY))
try:
    load_key(Path(sys.argv[1]), SystemChance())
except PermanentError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(len(load_key(Path(sys.argv[1]), SystemChance())))
"""


def test_a_full_disk_leaves_no_half_key_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "secrets.key")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert "cannot make the key file" in first
    assert second == "32"
    assert [entry.name for entry in tmp_path.iterdir()] == ["secrets.key"]


def test_ids_are_random_and_say_what_they_name() -> None:
    makers = {"run": chance.run_id, "job": chance.job_id, "agent": chance.agent_id, "token": chance.token_id}
    for kind, make in makers.items():
        made = {str(make(SystemChance())) for _ in range(200)}
        assert len(made) == 200
        assert all(name.startswith(PREFIXES[kind]) and name == name.lower() for name in made)
    assert len(chance.agent_id(SystemChance())) == len("agent_") + 26
    assert chance.cluster_id(SystemChance()).startswith("corral-")
    assert chance.coordinator_id(SystemChance()).startswith("coord_")


def test_credentials_hold_256_bits() -> None:
    token = secret_token(SystemChance(), "claim_")
    assert len(bytes.fromhex(token.removeprefix("claim_"))) == 32


def test_the_same_seed_is_the_same_history() -> None:
    one, two, other = SeededChance(7), SeededChance(7), SeededChance(8)
    assert [chance.run_id(one), one.uniform(0, 1)] == [chance.run_id(two), two.uniform(0, 1)]
    assert chance.run_id(one) != chance.run_id(other)


@given(st.integers(0, 253_402_300_799_999_999))
def test_moments_are_written_and_read_exactly(moment: int) -> None:
    text = rfc3339(moment)
    assert len(text) == 27 and text.endswith("Z")
    assert parse_rfc3339(text) == moment


def test_the_systems_clock_goes_forward() -> None:
    clock = SystemClock()
    first = (clock.monotonic(), clock.now())
    second = (clock.monotonic(), clock.now())
    assert second[0] >= first[0] and second[1] >= 1_700_000_000_000_000
