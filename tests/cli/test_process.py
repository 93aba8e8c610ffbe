# SPDX-License-Identifier: Apache-2.0
"""``corral`` as its users start it: real processes, pipes, terminals and signals, on the real wiring."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.cli.exits import ExitCode
from tests.cli.double import make_tree
from tests.waiting import eventually

QUICK = """\
from corral.workflow import Workflow, sh

ci = Workflow("ci")
one = ci.job("one", steps=[sh("echo hello from one; cat README")])
ci.job("two", needs=[one], matrix={"n": [1, 2]}, steps=[sh('test "$N" = 1', env={"N": "${{ matrix.n }}"})])
"""
SLOW = """\
from corral.workflow import Workflow, sh

ci = Workflow("ci")
ci.job("slow", steps=[sh("echo $$ > {marks}/pid; trap 'echo asked > {marks}/asked; {then}' INT TERM; "
                         "while true; do sleep 0.05; done")],
       cleanup=[sh("echo cleaned > {marks}/cleaned")])
"""


def environment(place: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
    paths = [str(Path(__file__).parents[2] / "src"), *filter(None, [kept.get("PYTHONPATH")])]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "HOME": str(place),
        "TMPDIR": str(place / "tmp"),
        "TERM": "xterm",
    }


def start(place: Path, *words: str, **how: object) -> subprocess.Popen[bytes]:
    (place / "tmp").mkdir(exist_ok=True)
    settings: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    command = [sys.executable, "-m", "corral.cli", *words]
    return subprocess.Popen(command, env=environment(place), cwd=place, **(settings | how))  # type: ignore[call-overload, no-any-return]


def corral(place: Path, *words: str, code: int = 0) -> tuple[str, str]:
    with start(place, *words) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == code, err.decode()
    return out.decode(), err.decode()


@contextlib.contextmanager
def ending(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def left_behind(place: Path) -> list[str]:
    """Temporary files of ours, and processes of ours whose environment names the place."""
    found = [path.name for path in (place / "tmp").iterdir()]
    found += [path.name for path in (place / "state" / "work").glob("*")]
    marker = f"HOME={place}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


def tree_of(place: Path, workflow: str) -> Path:
    tree = place / "tree"
    tree.mkdir()
    return make_tree(tree, workflow)


def test_the_version_is_told_without_loading_the_command_tree(place: Path) -> None:
    assert corral(place, "--version")[0].startswith("corral ")
    loaded = [sys.executable, "-X", "importtime", "-m", "corral.cli", "--version"]
    shown = subprocess.run(loaded, env=environment(place), capture_output=True, text=True, check=True).stderr
    assert not re.search(r"\| +(typer|rich|httpx2|msgspec|asyncio)$", shown, re.MULTILINE)


@pytest.mark.parametrize(("words", "found"), [("corral ru", {"run", "runs"}), ("corral logs --fo", {"--follow"})])
def test_the_shell_completes_commands_and_options(place: Path, words: str, found: set[str]) -> None:
    asked = {
        "_CORRAL_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    command = [sys.executable, "-m", "corral.cli"]
    done = subprocess.run(command, env=environment(place) | asked, capture_output=True, text=True)
    assert set(done.stdout.split()) == found, done.stderr


def test_a_run_and_what_can_be_asked_about_it_afterwards_without_a_server(place: Path) -> None:
    tree = tree_of(place, QUICK)
    (tree / "README").write_text("changed, not committed\n")
    state = ("--state-dir", str(place / "state"))
    out, err = corral(place, "run", str(tree), *state, code=ExitCode.RUN_FAILED)
    rows = {line[:8].strip(): line[8:].split()[0] for line in out.splitlines()[1:]}
    assert rows == {"one": "succeeded", "two (1)": "succeeded", "two (2)": "failed"}
    (run,) = json.loads(corral(place, "runs", "--json", *state)[0])
    assert (run["state"], run["jobs_finished"]) == ("failed", 3)
    assert corral(place, "logs", "latest", "one", *state)[0] == "hello from one\nchanged, not committed\n"
    assert "failed" in corral(place, "why", "latest", "two (2)", *state)[0]
    shown = re.findall(r"^  corral (\w+) (run_\w+)", err, re.MULTILINE)
    assert shown == [("logs", run["id"]), ("why", run["id"]), ("rerun", run["id"])]
    again = json.loads(corral(place, "rerun", *state, "--failed", "--json", code=ExitCode.RUN_FAILED)[0])
    assert again["original"] == run["id"]
    assert (place / "state").stat().st_mode & 0o077 == 0
    assert json.loads(corral(place, "clean", "--all", "--json", *state)[0])["runs"] == 2
    assert json.loads(corral(place, "runs", "--json", *state)[0]) == []
    assert left_behind(place) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_the_first_interrupt_cancels_gracefully(place: Path, number: signal.Signals) -> None:
    marks = place / "marks"
    marks.mkdir()
    tree = tree_of(place, SLOW.format(marks=marks, then="exit 1"))
    with ending(start(place, "run", str(tree), "--state-dir", str(place / "state"))) as process:
        eventually(lambda: (marks / "pid").exists() and (marks / "pid").read_text().strip(), deadline=30)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED
    assert process.returncode == code, err.decode()
    assert b"press Ctrl-C again to kill" in err
    assert b"Traceback" not in err
    assert (marks / "asked").exists()
    assert (marks / "cleaned").exists()
    assert left_behind(place) == []
    (run,) = json.loads(corral(place, "runs", "--json", "--state-dir", str(place / "state"))[0])
    assert run["state"] == "cancelled"


def test_the_second_interrupt_kills(place: Path) -> None:
    marks = place / "marks"
    marks.mkdir()
    tree = tree_of(place, SLOW.format(marks=marks, then="true"))
    with ending(start(place, "run", str(tree), "--state-dir", str(place / "state"))) as process:
        eventually(lambda: (marks / "pid").exists() and (marks / "pid").read_text().strip())
        pid = int((marks / "pid").read_text())
        process.send_signal(signal.SIGINT)
        eventually(lambda: (marks / "asked").exists(), deadline=30)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == ExitCode.INTERRUPTED, err.decode()
    assert b"killing" in err
    assert time.monotonic() - begin < 9, "it waited for the grace of the first interrupt"
    assert not alive(pid)
    assert left_behind(place) == []


def test_a_killed_run_holds_no_slot_of_the_next(place: Path) -> None:
    """Its agents end with it and leave nothing to be found: the next run neither waits for them nor loses the run."""
    marks = place / "marks"
    marks.mkdir()
    tree = tree_of(place, SLOW.format(marks=marks, then="true"))
    options = ("--max-agents", "1", "--state-dir", str(place / "state"))
    with ending(start(place, "run", str(tree), *options)) as process:
        eventually(lambda: (marks / "pid").exists() and (marks / "pid").read_text().strip(), deadline=30)
        process.kill()
        process.communicate(timeout=30)
    pid = int((marks / "pid").read_text())
    eventually(lambda: not alive(pid), deadline=30)
    (tree / ".corral" / "workflows" / "ci.py").write_text(QUICK.replace('matrix={"n": [1, 2]}', 'matrix={"n": [1]}'))
    begin = time.monotonic()
    _, err = corral(place, "run", str(tree), *options)
    assert time.monotonic() - begin < 15, err
    runs = json.loads(corral(place, "runs", "--json", "--state-dir", str(place / "state"))[0])
    assert [run["state"] for run in runs] == ["succeeded", "failed"]


def test_what_needs_a_held_directory_to_itself_says_what_to_do_before_it_begins(place: Path) -> None:
    """Also what is cancelled while nobody is there to carry it out."""
    marks = place / "marks"
    marks.mkdir()
    tree = tree_of(place, SLOW.format(marks=marks, then="true"))
    state = ("--state-dir", str(place / "state"))
    with ending(start(place, "run", str(tree), *state)) as process:
        eventually(lambda: (marks / "pid").exists() and (marks / "pid").read_text().strip(), deadline=30)
        for words in (("demo",), ("run", str(tree))):
            _, err = corral(place, *words, *state, code=ExitCode.USAGE)
            assert f"another `corral run` or `corral demo` (process {process.pid})" in err
            assert "--state-dir DIR" in err
            assert "download" not in err
        process.kill()
        process.communicate(timeout=30)
    (run,) = json.loads(corral(place, "runs", "--json", *state)[0])
    _, err = corral(place, "cancel", run["id"], *state)
    assert f"run {run['id']} is cancelling\nno coordinator runs here: it ends with the next" in err


def test_a_run_beside_a_server_is_told_of_submit(place: Path) -> None:
    tree = tree_of(place, QUICK)
    state = ("--state-dir", str(place / "state"))
    with ending(start(place, "server", *state, "--listen", "127.0.0.1:0", "--allow-root")) as server:
        eventually((place / "state" / "server.json").exists, deadline=30)
        _, err = corral(place, "run", str(tree), *state, code=ExitCode.USAGE)
        assert f"(process {server.pid})" in err
        assert "`corral submit`" in err
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)


def test_an_interrupt_before_the_run_leaves_nothing(place: Path) -> None:
    """While author code is loaded nothing runs yet: it ends as any program does, and removes what it made."""
    tree = tree_of(place, "import pathlib, time\npathlib.Path(r'%s').touch()\ntime.sleep(60)\n" % (place / "loading"))
    with ending(start(place, "run", str(tree), "--state-dir", str(place / "state"))) as process:
        eventually((place / "loading").exists, deadline=30)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (ExitCode.INTERRUPTED, b""), err.decode()
    assert b"Traceback" not in err
    assert left_behind(place) == []


def in_terminal(place: Path, *words: str, size: tuple[int, int] = (24, 100)) -> tuple[int, bytes]:
    """Run in a terminal of its own; exit code and everything it showed."""
    import fcntl
    import struct
    import termios

    control, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    process = start(place, *words, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
    os.close(terminal)
    shown = bytearray()
    deadline = time.monotonic() + 60
    with ending(process):
        while time.monotonic() < deadline:
            ready, _, _ = select.select([control], [], [], 1)
            if ready:
                try:
                    shown += os.read(control, 65536)
                except OSError:
                    break
        process.wait(10)
    os.close(control)
    return process.returncode, bytes(shown)


def test_on_a_terminal_progress_is_painted_over_and_the_table_stays(place: Path) -> None:
    tree = tree_of(place, QUICK.replace('test "$N" = 1', "true"))
    code, shown = in_terminal(place, "run", str(tree), "--state-dir", str(place / "state"))
    assert code == 0, shown
    text = shown.decode()
    assert "\x1b[2K" in text, "nothing was painted over"
    assert re.search(r"run run_\w+  running", text)
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()
    assert any(line.split() == ["JOB", "STATE", "QUEUED", "PROVISIONED", "RUNNING", "TOTAL"] for line in last)
    assert "\x1b[32msucceeded" in text


def test_a_reader_that_goes_away_is_no_failure(place: Path) -> None:
    tree = tree_of(place, QUICK.replace("cat README", "head -c 3000000 /dev/zero"))
    state = ("--state-dir", str(place / "state"))
    corral(place, "run", str(tree), *state, code=ExitCode.RUN_FAILED)
    with ending(start(place, "logs", "latest", "one", *state)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(5)
        process.stdout.close()
        err = process.stderr.read()
        process.wait(30)
    assert process.returncode == ExitCode.BROKEN_PIPE
    assert b"Traceback" not in err
    assert b"rror" not in err


def test_a_port_in_use_names_its_holder(place: Path) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as held:
        port = held.getsockname()[1]
        options = ("--state-dir", str(place / "state"), "--listen", f"127.0.0.1:{port}")
        out, err = corral(place, "server", *options, code=ExitCode.USAGE)
    assert out == ""
    assert f"error: port {port} on 127.0.0.1 is in use by pid {os.getpid()}" in err


def test_commands_speak_to_the_server_that_holds_the_state_directory(place: Path) -> None:
    tree = tree_of(place, QUICK.replace('test "$N" = 1', "true"))
    state = ("--state-dir", str(place / "state"))
    options = ("--listen", "127.0.0.1:0", "--allow-root")
    with ending(start(place, "server", *state, *options)) as server:
        eventually((place / "state" / "server.json").exists, deadline=30)
        out, err = corral(place, "submit", str(tree), *state, "--follow", "--json")
        assert json.loads(out)["state"] == "succeeded", err
        url = json.loads((place / "state" / "server.json").read_text())["url"]
        assert "error: " in corral(place, "runs", "--url", url, code=ExitCode.NOT_ALLOWED)[1]
        token = (place / "state" / "admin.token").read_bytes()
        with start(place, "login", url, stdin=subprocess.PIPE) as login:
            login.communicate(token, timeout=30)
        assert login.returncode == 0
        saved = place / ".config" / "corral" / "credentials.json"
        assert saved.stat().st_mode & 0o777 == 0o600
        assert len(json.loads(corral(place, "runs", "--url", url, "--json")[0])) == 1
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert server.returncode == 0
    assert len(json.loads(corral(place, "runs", "--json", *state)[0])) == 1
    away = corral(place, "runs", "--url", url, code=ExitCode.UNREACHABLE)[1]
    assert "is the server running there?" in away


def test_a_wrong_token_is_not_saved(place: Path) -> None:
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with start(place, "login", url, stdin=subprocess.PIPE) as login:
        _, err = login.communicate(b"token\n", timeout=30)
    assert login.returncode == ExitCode.UNREACHABLE
    assert b"cannot reach" in err
    assert not (place / ".config").exists()
