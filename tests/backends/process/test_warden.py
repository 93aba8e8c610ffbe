# SPDX-License-Identifier: Apache-2.0
"""The warden by itself, in its own interpreter, with stand-in agents that behave badly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corral.backends.process import guard, procfs
from tests.backends.process.rigs import WARDEN, alive, left_of, warden
from tests.waiting import eventually


def test_it_says_how_the_agent_exited(tmp_path: Path) -> None:
    with warden(tmp_path / "w", "exit", "3") as one:
        assert one.wait() == {
            "version": 1,
            "reason": "ended",
            "code": 3,
            "signal": None,
            "oom_kills": 0,
            "message": "",
        }


def test_it_says_which_signal_killed_the_agent(tmp_path: Path) -> None:
    with warden(tmp_path / "w", "die", str(int(signal.SIGSEGV))) as one:
        record = one.wait()
        assert (record["reason"], record["code"], record["signal"]) == ("ended", None, signal.SIGSEGV)


def test_it_names_itself_before_the_agent_runs(tmp_path: Path) -> None:
    with warden(tmp_path / "w", "idle") as one:
        one.said("up")
        pid, start, boot = one.said("warden").split()
        seen = procfs.stat(one.process.pid)
        assert seen is not None
        assert (int(pid), int(start), boot) == (one.process.pid, seen.start, procfs.boot_id())


def test_without_its_directory_it_starts_nothing(tmp_path: Path) -> None:
    """Its instance was removed before it came up: nobody would ever find it again."""
    command = [sys.executable, "-I", "-S", WARDEN, str(tmp_path / "gone"), "--home", str(tmp_path), "--"]
    done = subprocess.run(
        [*command, "/usr/bin/touch", str(tmp_path / "started")], timeout=20, check=False, capture_output=True
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert list(tmp_path.iterdir()) == []


def test_an_agent_that_cannot_be_started(tmp_path: Path) -> None:
    read, write = os.pipe()
    with warden(
        tmp_path / "w", options=("--ready", str(write), "--home", str(tmp_path / "absent")), fds=(write,)
    ) as one:
        os.close(write)
        record = one.wait()
        assert record["reason"] == "not_started"
        assert f"enter {tmp_path / 'absent'}: No such file or directory" in record["message"]
    assert os.read(read, 1000).decode() == f"failed 2 enter {tmp_path / 'absent'}: No such file or directory"
    os.close(read)


# --- the grant -------------------------------------------------------------------------------------------------


def test_Q8_an_agent_that_never_registers_is_ended_at_the_claim_deadline(tmp_path: Path) -> None:
    began = time.monotonic()
    with warden(tmp_path / "w", "silent", options=("--claim-seconds", "0.4")) as one:
        record = one.wait()
        assert (record["reason"], record["signal"]) == ("claim_ended", signal.SIGKILL)
        assert time.monotonic() - began >= 0.4


def test_the_grant_outlasts_the_claim_deadline(tmp_path: Path) -> None:
    began = time.monotonic()
    with warden(tmp_path / "w", "grants", "0.9", options=("--claim-seconds", "0.3")) as one:
        record = one.wait()
        assert record["reason"] == "grant_ended"
        assert time.monotonic() - began >= 0.9


def test_what_the_agent_said_last_counts(tmp_path: Path) -> None:
    with warden(tmp_path / "w", "grants", "1000", "0.3") as one:
        assert one.wait()["reason"] == "grant_ended"


def test_an_agent_that_is_stopped_cannot_outlive_its_grant(tmp_path: Path) -> None:
    with warden(tmp_path / "w", "stopped", options=("--claim-seconds", "0.6")) as one:
        agent = one.agent
        assert one.wait()["reason"] == "claim_ended"
        assert not alive(agent)


@pytest.mark.parametrize(
    "text", ["", "nonsense\n", "nan\n", "inf\n", "-inf\n", "1e400\n", "9" * 5000 + "\n", "99999999"]
)
def test_what_is_no_deadline_grants_nothing(tmp_path: Path, text: str) -> None:
    with warden(tmp_path / "w", "raw", text, options=("--claim-seconds", "0.3")) as one:
        assert one.wait()["reason"] == "claim_ended"


@pytest.mark.parametrize(
    ("line", "value"),
    [(b"12.5", 12.5), (b"7", 7.0), (b" 7 ", 7.0), (b"", None), (b"x", None), (b"nan", None), (b"1" * 64, None)],
)
def test_parse_deadline(line: bytes, value: float | None) -> None:
    assert guard.parse_deadline(line) == value


# --- stopping --------------------------------------------------------------------------------------------------


def test_sigterm_lets_the_agent_end_by_itself(tmp_path: Path) -> None:
    with warden(tmp_path / "w", "polite", options=("--grace", "10")) as one:
        one.said("up")
        one.process.send_signal(signal.SIGTERM)
        record = one.wait()
        assert (record["reason"], record["code"]) == ("stopped", 7)
        one.said("asked")


def test_sigterm_kills_one_that_does_not_listen(tmp_path: Path) -> None:
    with warden(tmp_path / "w", "stubborn", options=("--grace", "0.3")) as one:
        one.said("up")
        began = time.monotonic()
        one.process.send_signal(signal.SIGTERM)
        record = one.wait()
        assert (record["reason"], record["signal"]) == ("stopped", signal.SIGKILL)
        assert time.monotonic() - began >= 0.3


def test_a_second_sigterm_kills_at_once(tmp_path: Path) -> None:
    with warden(tmp_path / "w", "stubborn", options=("--grace", "1000")) as one:
        one.said("up")
        one.process.send_signal(signal.SIGTERM)

        def again() -> bool:
            one.process.send_signal(signal.SIGTERM)
            return one.process.poll() is not None

        eventually(again)
        assert one.exit["signal"] == signal.SIGKILL


def test_a_stopped_agent_hears_sigterm(tmp_path: Path) -> None:
    with warden(tmp_path / "w", "stopped", options=("--grace", "1000")) as one:
        agent = one.agent
        eventually(lambda: (seen := procfs.stat(agent)) is not None and seen.state == "T")
        one.process.send_signal(signal.SIGTERM)
        assert one.wait()["signal"] == signal.SIGTERM


def test_tied_it_ends_with_its_owner_and_removes_the_instance(tmp_path: Path) -> None:
    read, write = os.pipe()
    directory = tmp_path / "w"
    with warden(directory, "daemons", options=("--tied", str(read), "--grace", "0.3"), fds=(read,)) as one:
        os.close(read)
        one.said("up")
        assert one.process.poll() is None
        os.close(write)
        assert one.process.wait(20) == 0
        assert not directory.exists()
        assert left_of(str(directory)) == []


def test_killed_itself_it_takes_the_agent_along(tmp_path: Path) -> None:
    with warden(tmp_path / "w", "idle") as one:
        agent = one.agent
        one.process.kill()
        eventually(lambda: not alive(agent))


# --- nothing left ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("habit", "count"),
    [("daemons", 3), ("daemons-and-exit", 3), ("hidden", 1), ("stopped-children", 1), ("storm", 15), ("runner", 0)],
)
def test_nothing_is_left_running(tmp_path: Path, habit: str, count: int) -> None:
    directory = tmp_path / "w"
    with warden(directory, habit, options=("--grace", "0.2")) as one:
        pids = (
            eventually(
                lambda: found if len(found := [int(p.name) for p in directory.glob("pids/*")]) >= count else None
            )
            if count
            else []
        )
        if habit != "daemons-and-exit":
            one.said("up")
            one.process.send_signal(signal.SIGTERM)
        one.wait()
        assert [pid for pid in pids if alive(pid)] == []
        assert left_of(str(directory)) == []


def test_it_reaps_what_is_orphaned_to_it(tmp_path: Path) -> None:
    with warden(tmp_path / "w", "zombies") as one:
        agent = one.agent
        eventually(lambda: one.children() == [agent])


# --- what the agent gets ---------------------------------------------------------------------------------------


def test_output_is_kept_and_bounded(tmp_path: Path) -> None:
    count = 200_000
    with warden(tmp_path / "w", "talk", str(count)) as one:
        assert one.wait()["code"] == 0
        newest, older = (one.directory / name for name in (guard.OUTPUT, guard.OUTPUT_OLDER))
        assert newest.stat().st_size <= guard.OUTPUT_LIMIT
        assert older.stat().st_size <= guard.OUTPUT_LIMIT
        kept = older.read_text() + newest.read_text()
        assert kept.endswith(f"{count - 1:09}\n")
        assert len(kept) > guard.OUTPUT_LIMIT // 2


def test_little_output_is_kept_whole(tmp_path: Path) -> None:
    with warden(tmp_path / "w", "talk", "3") as one:
        one.wait()
        assert (one.directory / guard.OUTPUT).read_text() == "000000000\n000000001\n000000002\n"


def test_the_agent_starts_clean(tmp_path: Path) -> None:
    secret = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        with warden(tmp_path / "w", "facts", options=("--home", str(tmp_path / "w")), fds=(secret,)) as one:
            facts = json.loads(one.said("facts"))
    finally:
        os.close(secret)
    # 4 is the directory being listed.
    assert facts["fds"] == [0, 1, 2, 3, 4]
    assert facts["sid"] is True
    assert facts["umask"] == 0o077
    assert int(facts["blocked"], 16) == 0
    ignored = int(facts["ignored"], 16)
    # Python itself ignores SIGPIPE and SIGXFSZ, and 32 and 33 are the C library's own; nothing else is inherited.
    assert ignored & ~(1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1 | 0b11 << 31) == 0
    assert facts["cwd"] == str(tmp_path / "w")
