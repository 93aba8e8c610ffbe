# SPDX-License-Identifier: Apache-2.0
"""Programs as provisioners: real processes, ended in every way there is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.backends.event.answering import BODY_LIMIT
from corral.backends.event.execute import ExecDeliverer
from corral.model.events import Answer, Exec, Verdict
from tests.backends.event.raw import CODE, event
from tests.waiting import eventually, eventually_async

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/", "SECRET_TOKEN": "opensesame-opensesame", "OTHER": "no"}


def run(
    place: Path,
    script: str,
    *arguments: str,
    kind: str = "corral.scaler.scale-up.v1",
    timeout: float = 20.0,
    env: tuple[str, ...] = (),
    **environ: str,
) -> Answer:
    """The answer of a shell script."""

    async def work() -> Answer:
        deliverer = ExecDeliverer(place, ENVIRON | environ)
        target = Exec(command=("sh", "-c", script, "sh", *arguments), env=env)
        try:
            return await deliverer.deliver(target, event(kind), event_id="evt_1", timeout=timeout)
        finally:
            await deliverer.close()

    return asyncio.run(work())


def of(place: Path, *command: str, directory: str = "") -> Answer:
    async def work() -> Answer:
        deliverer = ExecDeliverer(place, ENVIRON)
        target = Exec(command=command, directory=directory)
        try:
            return await deliverer.deliver(target, event(), event_id="evt_1", timeout=20)
        finally:
            await deliverer.close()

    return asyncio.run(work())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def pid_in(file: Path) -> int:
    return eventually(lambda: int(file.read_text() or 0) if file.exists() else 0, f"a pid in {file.name}")


@contextlib.contextmanager
def ending(*files: Path) -> Iterator[None]:
    """Whatever a test started and its guard failed to end is ended, by the pid it wrote."""
    try:
        yield
    finally:
        for file in files:
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("code", "verdict"),
    [(0, Verdict.DONE), (75, Verdict.LATER), (77, Verdict.STALE), (1, Verdict.REFUSED), (127, Verdict.REFUSED)],
)
def test_exit_codes(tmp_path: Path, code: int, verdict: Verdict) -> None:
    got = run(tmp_path, f"echo; echo first words >&2; echo second >&2; exit {code}")
    assert (got.verdict, got.detail) == (verdict, f"exit {code}: first words")


def test_the_event_is_on_standard_input_and_nowhere_else(tmp_path: Path) -> None:
    script = "cat > event; cat /proc/$$/cmdline > argv; env > env; cat /proc/$PPID/cmdline > warden; pwd > pwd"
    assert run(tmp_path, script, env=("SECRET_TOKEN", "MISSING"), LANG="C", TZ="UTC").verdict is Verdict.DONE
    assert (tmp_path / "event").read_bytes() == event()
    lines = (tmp_path / "env").read_text().splitlines()
    names = {line.partition("=")[0] for line in lines} - {"PWD", "OLDPWD", "SHLVL", "_"}
    ours = {"CORRAL_EVENT_TYPE", "CORRAL_AGENT_ID", "CORRAL_EVENT_ID"}
    assert names == {"PATH", "HOME", "LANG", "TZ", "SECRET_TOKEN", *ours}
    assert {"CORRAL_AGENT_ID=agent_a", "CORRAL_EVENT_ID=evt_1"} <= set(lines)
    for place in ("argv", "env", "warden"):
        assert CODE not in (tmp_path / place).read_text()
    assert (tmp_path / "pwd").read_text().strip() == str(tmp_path)


def test_L15_an_id_is_found_on_success_and_on_failure(tmp_path: Path) -> None:
    """L15."""
    assert run(tmp_path, """echo working; echo '{"provider_id": "i-3"}'""").provider_id == "i-3"
    assert run(tmp_path, """echo '{"error": {"provider_id": "i-4"}}'; exit 1""").provider_id == "i-4"
    assert run(tmp_path, """echo '{"provider_id": "i-5"}' >&2; exit 75""").provider_id == "i-5"


def test_T3_what_a_program_prints_is_masked(tmp_path: Path) -> None:
    """T1, T3, T6: the code, whole or cut, and values of named variables."""
    script = """
    code=$(sed 's/.*claim_code":"//; s/".*//')
    echo "{\\"provider_id\\": \\"$code\\"}"
    echo "$code $SECRET_TOKEN" >&2
    exit 1
    """
    got = run(tmp_path, script, env=("SECRET_TOKEN",))
    assert got.detail == "exit 1: [redacted] [redacted]"
    assert got.provider_id == ""


def test_a_listing_and_endless_output(tmp_path: Path) -> None:
    kind = "corral.scaler.inventory.v1"
    assert run(tmp_path, """echo '{"instances": []}'""", kind=kind).body == b'{"instances": []}\n'
    assert run(tmp_path, "head -c 4194304 /dev/zero", kind=kind).body == bytes(BODY_LIMIT)
    much = run(tmp_path, "head -c 30000000 /dev/zero; head -c 30000000 /dev/zero >&2", kind=kind)
    assert (much.verdict, much.body) == (Verdict.DONE, b"")
    assert "more than 4 MiB" in much.detail


def test_endless_output_takes_no_memory(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert run(tmp_path, "head -c 200000000 /dev/zero; head -c 200000000 /dev/zero >&2").verdict is Verdict.DONE
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("echo")
    (tmp_path / "strange").write_text("no program at all")
    (tmp_path / "strange").chmod(0o755)
    for command, says in (
        (("./absent",), f"there is no program {tmp_path}/absent"),
        (("no-such-program-anywhere",), "no program no-such-program-anywhere on the server's PATH"),
        (("./plain",), "is not executable; `chmod +x` it"),
        (("./strange",), "Exec format error"),
        ((str(tmp_path),), "is not executable"),
        ((), "command is empty"),
    ):
        got = of(tmp_path, *command)
        assert got.verdict is Verdict.LATER
        assert got.detail.startswith("not started: ")
        assert says in got.detail
    gone = of(tmp_path, "true", directory=str(tmp_path / "gone"))
    assert f"there is no directory {tmp_path}/gone" in gone.detail


# --- ends ----------------------------------------------------------------------------------------------------------

STUBBORN = """
trap '' TERM HUP INT
echo $$ > main
(trap '' TERM; echo $(exec sh -c 'echo $PPID') > child; while :; do sleep 1; done) &
setsid sh -c "trap '' TERM; echo \\$\\$ > daemon; while :; do sleep 1; done" &
while :; do sleep 1; done
"""
"""Ignores SIGTERM, with a child in its group and one in a session of its own."""


def stubborn(place: Path) -> tuple[Path, ...]:
    return tuple(place / name for name in ("main", "child", "daemon"))


def test_S5_at_the_deadline_everything_is_killed(tmp_path: Path) -> None:
    """S5: a program that hangs, and all that it started."""
    files = stubborn(tmp_path)
    with ending(*files):
        began = time.monotonic()
        got = run(tmp_path, STUBBORN, timeout=2.0)
        assert (got.verdict, got.detail) == (Verdict.UNANSWERED, "not done within 2 s and killed")
        assert time.monotonic() - began < 10
        for file in files:
            assert not alive(pid_in(file)), file.name


def test_it_is_asked_first(tmp_path: Path) -> None:
    """Terraform writes its state down when it is asked to end."""
    got = run(tmp_path, "trap 'echo asked > asked; exit 3' TERM; while :; do sleep 0.05; done", timeout=2.0)
    assert got.verdict is Verdict.UNANSWERED
    assert (tmp_path / "asked").exists()


def test_with_its_coordinator_everything_is_killed(tmp_path: Path) -> None:
    """kill -9 of the coordinator."""
    files = stubborn(tmp_path)
    root = Path(__file__).parents[3]
    paths = os.pathsep.join([str(root / "src"), str(root)])
    command = [sys.executable, "-m", "tests.backends.event.coordinator", str(tmp_path), "60", "sh", "-c", STUBBORN]
    with ending(*files), subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, cwd=root) as coordinator:
        pids = [pid_in(file) for file in files]
        assert all(alive(pid) for pid in pids)
        coordinator.kill()
        coordinator.wait()
        for pid in pids:
            eventually(lambda pid=pid: not alive(pid), f"process {pid} is gone")


def test_a_call_that_is_given_up_kills_it(tmp_path: Path) -> None:
    """As when the coordinator no longer trusts its lease."""
    files = stubborn(tmp_path)

    async def work() -> None:
        deliverer = ExecDeliverer(tmp_path, ENVIRON)
        target = Exec(command=("sh", "-c", STUBBORN))
        call = asyncio.create_task(deliverer.deliver(target, event(), event_id="e", timeout=60))
        await eventually_async(lambda: all(file.exists() and file.read_text() for file in files))
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        await deliverer.close()

    with ending(*files):
        asyncio.run(work())
        for file in files:
            assert not alive(pid_in(file)), file.name


def test_if_its_warden_is_killed_it_does_not_run_on(tmp_path: Path) -> None:
    file = tmp_path / "main"
    with ending(file):
        got = run(tmp_path, "echo $$ > main; kill -9 $PPID; while :; do sleep 1; done")
        assert (got.verdict, got.detail) == (Verdict.UNANSWERED, "its warden was killed")
        pid = pid_in(file)
        eventually(lambda: not alive(pid), "the program is gone")


def test_what_it_leaves_in_its_group_ends_with_it_and_a_daemon_lives_on(tmp_path: Path) -> None:
    """The daemon may even hold its output open: nobody waits for it."""
    script = """
    sh -c 'echo $$ > child; exec sleep 600' &
    setsid sh -c 'echo $$ > daemon; exec sleep 600' &
    while ! [ -s child ] || ! [ -s daemon ]; do sleep 0.01; done
    echo '{"provider_id": "i-1"}'
    """
    child, daemon = tmp_path / "child", tmp_path / "daemon"
    with ending(child, daemon):
        got = run(tmp_path, script)
        assert (got.verdict, got.provider_id) == (Verdict.DONE, "i-1")
        pid = pid_in(child)
        eventually(lambda: not alive(pid), "the child is gone")
        assert alive(pid_in(daemon))


def test_a_program_that_somebody_killed_is_unanswered(tmp_path: Path) -> None:
    got = run(tmp_path, "kill -9 $$")
    assert (got.verdict, got.detail) == (Verdict.UNANSWERED, "killed by signal 9")


def test_many_at_once_leave_no_descriptor_and_no_process(tmp_path: Path) -> None:
    """L9: a burst."""

    async def work() -> None:
        deliverer = ExecDeliverer(tmp_path, ENVIRON)
        target = Exec(command=("true",))
        for _ in range(3):
            calls = [deliverer.deliver(target, event(), event_id="e", timeout=60) for _ in range(20)]
            assert {answer.verdict for answer in await asyncio.gather(*calls)} == {Verdict.DONE}
        await deliverer.close()

    asyncio.run(work())
    before, others = len(list(Path("/proc/self/fd").iterdir())), children()
    asyncio.run(work())
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert children() <= others


def children() -> set[int]:
    """Of this test process, dead ones that nobody collected included."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(entry.read_text().rsplit(")", 1)[1].split()[1]) == os.getpid():
                found.add(int(entry.parent.name))
    return found
