# SPDX-License-Identifier: Apache-2.0
"""What each command prints, where, and with which exit code."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
from pathlib import Path

import msgspec
import pytest

from corral.cli.app import COMMANDS
from corral.cli.exits import MEANINGS, ExitCode
from corral.cli.output import clean, seconds, table
from corral.client import Unreachable
from corral.model.errors import Forbidden, StoreUnavailable, Unauthenticated
from corral.model.views import RunView
from tests.cli.double import DoubleWiring, corral
from tests.web.fake_api import FakeApi, new_run


def with_runs(*names: str, count: int = 1) -> tuple[DoubleWiring, list[RunView]]:
    wiring = DoubleWiring()
    views = [asyncio.run(wiring.api.create_run(new_run(*names, title=f"run {n}"))) for n in range(count)]
    return wiring, views


def printed(api: FakeApi, job_id: str, step: int, data: bytes) -> None:
    async def run() -> None:
        api.changed = asyncio.Condition()
        await api.print(job_id, step, data, final=True)

    asyncio.run(run())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_in_a_line_that_fits(name: str) -> None:
    shown = corral(name, "--help")
    assert shown.exit_code == 0
    listed = corral("--help").stdout
    line = next(line for line in listed.splitlines() if line.split()[:1] == [name])
    assert not line.endswith("..."), line


def test_runs_are_listed_newest_first_and_as_json() -> None:
    wiring, views = with_runs("build", count=3)
    lines = corral("runs", wiring=wiring).stdout.splitlines()
    assert lines[0].split() == ["RUN", "STATE", "WORKFLOW", "JOBS", "CREATED", "TITLE"]
    assert [line.split()[0] for line in lines[1:]] == [view.id for view in reversed(views)]
    assert [run["id"] for run in json.loads(corral("runs", "--json", wiring=wiring).stdout)] == [
        view.id for view in reversed(views)
    ]
    assert len(corral("runs", "-n", "1", wiring=wiring).stdout.splitlines()) == 2


def test_one_run_is_shown_with_its_jobs() -> None:
    wiring, (view,) = with_runs("build", "test")
    shown = corral("runs", view.id, wiring=wiring).stdout
    assert view.id in shown
    assert "build" in shown
    assert "test" in shown
    assert json.loads(corral("runs", "latest", "--json", wiring=wiring).stdout)["id"] == view.id


def test_ids_are_known_by_their_beginning() -> None:
    wiring, views = with_runs("build", count=2)
    first = views[0].id
    unique = first[:-1] + first[-1]
    assert json.loads(corral("runs", unique.removeprefix("run_"), "--json", wiring=wiring).stdout)["id"] == first
    many = corral("runs", "run_", wiring=wiring)
    assert many.exit_code == ExitCode.USAGE
    assert "2 runs begin with 'run_'" in many.stderr


def test_a_name_that_is_not_there_is_answered_with_what_comes_near() -> None:
    wiring, (view,) = with_runs("build", "test")
    near = corral("logs", "latest", "bulid", wiring=wiring)
    assert (near.exit_code, near.stdout) == (ExitCode.USAGE, "")
    assert "no job 'bulid'; did you mean 'build'?" in near.stderr
    wrong = corral("runs", view.id[:-1] + "z", wiring=wiring)
    assert wrong.exit_code == ExitCode.USAGE
    empty = corral("logs", wiring=DoubleWiring())
    assert "there are no runs yet" in empty.stderr


def test_a_wrong_command_or_option_is_answered_with_what_comes_near() -> None:
    command = corral("rums")
    assert (command.exit_code, command.stdout) == (ExitCode.USAGE, "")
    assert "Did you mean 'runs'?" in command.stderr
    option = corral("runs", "--limt", "3")
    assert option.exit_code == ExitCode.USAGE
    assert "--limit" in option.stderr


ODD = bytes(range(256)) + b"\x1b[31mred\x1b[0m\r\n"


def test_a_log_is_printed_byte_for_byte_and_its_heads_go_elsewhere() -> None:
    wiring, (view,) = with_runs("build", "test")
    for job in view.jobs:
        printed(wiring.api, job.id, 0, job.name.encode() + ODD)
    one = corral("logs", view.id, "build", wiring=wiring)
    assert one.stdout_bytes == b"build" + ODD
    assert "== build, step 0: say" in one.stderr
    assert corral("logs", view.id, wiring=wiring).stdout_bytes == b"build" + ODD + b"test" + ODD
    assert corral("logs", view.jobs[1].id, wiring=wiring).stdout_bytes == b"test" + ODD
    followed = corral("logs", view.id, "build", "-f", "--step", "0", wiring=wiring)
    assert followed.stdout_bytes == b"build" + ODD


def test_the_name_of_a_job_with_a_matrix_names_all_its_combinations() -> None:
    wiring, (view,) = with_runs("test (1)", "test (2)", "tester")
    for job in view.jobs:
        printed(wiring.api, job.id, 0, f"{job.name}\n".encode())
    assert corral("logs", view.id, "test", wiring=wiring).stdout.splitlines() == ["test (1)", "test (2)"]
    assert corral("logs", view.id, "tester", wiring=wiring).stdout.splitlines() == ["tester"]
    assert corral("why", view.id, "test", wiring=wiring).exit_code == ExitCode.USAGE


def test_a_log_as_json_is_one_object_per_line() -> None:
    wiring, (view,) = with_runs("build")
    printed(wiring.api, view.jobs[0].id, 0, ODD)
    shown = corral("logs", "--json", wiring=wiring)
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert b"".join(base64.b64decode(line["data"]) for line in lines) == ODD
    assert (lines[0]["job"], lines[0]["step"], lines[0]["offset"]) == ("build", 0, 0)
    assert shown.stderr == ""


def test_a_step_or_attempt_that_does_not_exist() -> None:
    wiring, (view,) = with_runs("build")
    assert "there is no 7" in corral("logs", view.id, "build", "--step", "7", wiring=wiring).stderr
    assert corral("logs", view.id, "build", "--attempt", "7", wiring=wiring).exit_code == ExitCode.USAGE


def test_why_tells_the_story_and_the_fix() -> None:
    wiring, (view,) = with_runs("build")
    shown = corral("why", wiring=wiring).stdout
    assert shown.splitlines()[-1] == "fix: Add gpu to the labels of pool local."
    assert json.loads(corral("why", view.id, "build", "--json", wiring=wiring).stdout)["code"] == "unroutable"


def test_cancel_is_graceful_unless_forced() -> None:
    wiring, (view,) = with_runs("build")
    first = corral("cancel", view.id, wiring=wiring)
    assert (first.exit_code, first.stdout) == (0, "")
    assert "cancelling" in first.stderr
    corral("cancel", view.id, "--force", "--json", wiring=wiring)
    assert wiring.api.cancels == [(view.id, False), (view.id, True)]


@pytest.mark.parametrize("name", ["agents", "pools"])
def test_agents_and_pools(name: str) -> None:
    wiring = DoubleWiring()
    assert "linux" in corral(name, wiring=wiring).stdout
    assert json.loads(corral(name, "--json", wiring=wiring).stdout)[0]["labels"] == ["linux"]


def test_a_token_is_printed_alone_and_can_be_revoked() -> None:
    wiring = DoubleWiring()
    made = corral("token", "create", "bot", "--role", "operator", wiring=wiring)
    assert made.stdout.strip() == "fresh-1"
    assert "shown only now" in made.stderr
    listed = json.loads(corral("token", "list", "--json", wiring=wiring).stdout)
    bot = next(each for each in listed if each["name"] == "bot")
    assert "fresh-1" not in corral("token", "list", wiring=wiring).stdout
    assert corral("token", "revoke", bot["id"], wiring=wiring).exit_code == 0
    assert corral("token", "create", "x", "--role", "king", wiring=wiring).exit_code == ExitCode.USAGE
    assert corral("token", "revoke", "tok_none", wiring=wiring).exit_code == ExitCode.USAGE


def test_clean_keeps_what_was_asked() -> None:
    wiring, views = with_runs("build", count=3)
    for view in views[:2]:
        wiring.api.runs_by_id[view.id] = msgspec.structs.replace(view, state="succeeded")
    assert json.loads(corral("clean", "--json", wiring=wiring).stdout) == {"runs": 0, "bytes": 0}
    assert json.loads(corral("clean", "--all", "--json", wiring=wiring).stdout)["runs"] == 2
    assert list(wiring.api.runs_by_id) == [views[2].id]
    assert corral("clean", "--keep-size", "two", wiring=wiring).exit_code == ExitCode.USAGE


def test_paths_names_every_place(tmp_path: Path) -> None:
    shown = json.loads(corral("paths", "--state-dir", str(tmp_path / "s"), "--json").stdout)
    assert shown["state"] == str(tmp_path / "s")
    assert shown["database"].startswith(shown["state"])
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailable("the disk is full; free some space"), ExitCode.UNREACHABLE),
        (Unauthenticated("this token is not known here"), ExitCode.NOT_ALLOWED),
        (Forbidden("needs admin"), ExitCode.NOT_ALLOWED),
        (Unreachable("cannot reach http://x"), ExitCode.UNREACHABLE),
        (ZeroDivisionError("boom"), ExitCode.INTERNAL),
    ],
)
def test_each_kind_of_failure_has_its_exit_code_and_one_sentence(
    error: Exception, code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    wiring = DoubleWiring()
    wiring.api.broken = error
    failed = corral("runs", wiring=wiring)
    assert (failed.exit_code, failed.stdout) == (code, "")
    assert failed.stderr.startswith("error: ")
    assert "Traceback" not in failed.stderr


class Bug:
    """A wiring that fails as our own code might."""

    def open_client(self, *arguments: object) -> object:
        raise ZeroDivisionError("line one\nline two")


def test_a_failure_inside_keeps_its_traceback_in_a_file_and_shows_it_with_debug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failed = corral("runs", wiring=Bug())
    assert failed.exit_code == ExitCode.INTERNAL
    assert len(failed.stderr.splitlines()) == 1
    (kept,) = tmp_path.glob("corral-failure-*.log")
    assert str(kept) in failed.stderr
    assert "Traceback" in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "Traceback" in corral("--debug", "runs", wiring=Bug()).stderr


def test_a_connection_takes_the_url_and_its_saved_token(tmp_path: Path) -> None:
    wiring = DoubleWiring()
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    (tmp_path / "corral").mkdir()
    saved = {"version": 1, "tokens": {"http://one:1": "token-1"}}
    (tmp_path / "corral" / "credentials.json").write_text(json.dumps(saved))
    corral("runs", "--url", "http://one:1/", wiring=wiring, env=env)
    corral("runs", wiring=wiring, env={**env, "CORRAL_URL": "http://two:2"})
    corral("runs", "--url", "http://one:1", wiring=wiring, env={**env, "CORRAL_TOKEN": "mine"})
    assert wiring.asked == [
        (None, "http://one:1/", "token-1"),
        (None, "http://two:2", None),
        (None, "http://one:1", "mine"),
    ]
    (tmp_path / "corral" / "credentials.json").write_text("{")
    damaged = corral("runs", "--url", "http://one:1", wiring=wiring, env=env)
    assert damaged.exit_code == ExitCode.USAGE
    assert "credentials.json" in damaged.stderr


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(ExitCode)


def test_names_and_log_lines_cannot_move_the_cursor() -> None:
    assert clean("a\x1b[2Jb\x1b]0;title\x07c\rd\x00e\u009bf") == "abcdef"
    assert "\x1b" not in table(("A", "B"), [("x\x1b[31m", "y\nz")])


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.04, "0.0s"), (59.94, "59.9s"), (61.0, "1m01s"), (3725.0, "1h02m")]
)
def test_durations(value: float | None, text: str) -> None:
    assert seconds(value) == text
