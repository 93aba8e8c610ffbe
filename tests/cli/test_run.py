# SPDX-License-Identifier: Apache-2.0
"""``run``, ``submit``, ``rerun``: what they ask of a coordinator, what they show, and how they end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from corral.cli.exits import ExitCode
from corral.cli.inputs import secrets, variables
from corral.cli.progress import Lines, _visible
from corral.model.errors import Invalid
from corral.model.spec import GitSource
from corral.model.views import JobView, RunView
from corral.runtime.clock import SystemClock
from tests.cli.double import WORKFLOW, DoubleWiring, corral, git, make_tree
from tests.waiting import eventually_async
from tests.web.fake_api import FakeApi


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    place = tmp_path / "tree"
    place.mkdir()
    return make_tree(place)


def ends(state: str) -> Any:
    """A run that goes on for a moment and ends so."""

    async def play(api: FakeApi) -> None:
        runs = api.runs_by_id
        (run,) = await eventually_async(lambda: [each for each in runs.values() if each.state == "queued"])
        await api.set_run(run.id, state="running")
        for job in run.jobs:
            await api.set_job(job.id, state="running", last_line="working\x1b[2J")
        await api.finish(run.id, state)

    return play


@pytest.mark.parametrize(
    ("state", "code"), [("succeeded", ExitCode.OK), ("failed", ExitCode.RUN_FAILED), ("cancelled", ExitCode.RUN_FAILED)]
)
def test_a_run_ends_with_its_table_its_result_and_the_commands_to_look_further(
    tree: Path, tmp_path: Path, state: str, code: ExitCode
) -> None:
    wiring = DoubleWiring(play=ends(state))
    done = corral("run", str(tree), "--state-dir", str(tmp_path / "st at"), "--max-agents", "2", wiring=wiring)
    assert done.exit_code == code, done.output
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["JOB", "STATE", "QUEUED", "PROVISIONED", "RUNNING", "TOTAL"]
    assert [row.split()[:6] for row in rows] == [
        ["build", state, "0.1s", "0.2s", "0.3s", "0.6s"],
        ["test", state, "0.1s", "0.2s", "0.3s", "0.6s"],
    ]
    (run,) = wiring.api.runs_by_id
    for command in ("logs", "why", "rerun"):
        assert f"corral {command} {run}" in done.stderr
    assert f"--state-dir '{tmp_path / 'st at'}'" in done.stderr
    assert wiring.asked == [("all_in_one", tmp_path / "st at", 2)]
    assert wiring.stops == [False]
    assert "\x1b" not in done.stderr


def test_the_order_carries_lock_source_variables_and_secrets(tree: Path, tmp_path: Path) -> None:
    (tree / ".corral" / "corral.lock.json").write_text("{}")
    wiring = DoubleWiring(play=ends("succeeded"))
    (tmp_path / "key").write_text("from a file\n")
    done = corral(
        *("run", str(tree / ".corral"), "--workflow", "ci", "--job", "build", "-e", "A=1=2", "-e", "B="),
        *("--secret", "ONE", "--secret", f"TWO=@{tmp_path / 'key'}", "--secret", "THREE=-", "--json"),
        wiring=wiring,
        env={"ONE": "from the environment"},
        input="from standard input\n",
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["state"] == "succeeded"
    (order,) = wiring.api.orders.values()
    assert (order.workflow, order.jobs, order.env) == ("ci", ("build",), {"A": "1=2", "B": ""})
    assert order.secrets == {
        "ONE": "from the environment",
        "TWO": "from a file",
        "THREE": "from standard input",
    }
    assert [workflow.name for workflow in order.lock.workflows] == ["ci"]
    assert order.source is not None
    assert list(wiring.api.sources) == [order.source.hash]
    assert order.event == {"kind": "local", "commit": git(tree, "rev-parse", "HEAD"), "branch": "main"}
    assert "from a file" not in done.output
    assert "from standard input" not in done.output


def test_a_commit_of_a_repository_is_submitted_instead_of_the_tree(tree: Path) -> None:
    wiring = DoubleWiring()
    where = ("--git", "https://host/r.git", "--commit", "0a" * 20, "--credential", "KEY", "--secret", "KEY")
    done = corral("submit", str(tree), "--url", "http://there", *where, wiring=wiring, env={"KEY": "hidden"})
    assert done.exit_code == 0, done.output
    (order,) = wiring.api.orders.values()
    assert order.git == GitSource(url="https://host/r.git", commit="0a" * 20, credential="KEY")
    assert order.source is None and not wiring.api.sources
    assert order.event == {"kind": "git", "commit": "0a" * 20, "repository": "https://host/r.git"}
    assert (order.secrets, "hidden" in done.output) == ({"KEY": "hidden"}, False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--git", "https://user:pw@host/r", "--commit", "0" * 40), "holds a user or password"),
        (("--git", "https://host/r"), "full hash"),
        (("--commit", "0" * 40), "--git"),
    ],
)
def test_what_is_wrong_with_a_git_source_is_said_at_once(tree: Path, options: tuple[str, ...], says: str) -> None:
    wiring = DoubleWiring()
    done = corral("submit", str(tree), "--url", "http://there", *options, wiring=wiring)
    assert done.exit_code == ExitCode.USAGE, done.output
    assert says in done.stderr and "pw@" not in done.output
    assert not wiring.api.orders


def test_what_cannot_run_is_said_before_anything_starts(tree: Path, tmp_path: Path) -> None:
    two = make_tree_with_two(tmp_path / "two")
    broken = tmp_path / "broken"
    broken.mkdir()
    make_tree(broken, WORKFLOW + 'ci.job("x", needs=["nope"], steps=[])\n')
    cases = [
        (("run", str(tree), "-w", "nope"), "no workflow 'nope' (there is ci)"),
        (("run", str(tree), "-j", "tset", "-j", "x"), "has no job 'tset'"),
        (("run", str(two)), "choose one with --workflow: ci, other"),
        (("run", str(tmp_path)), "there are no workflows"),
        (("run", str(broken)), "ci.py:"),
        (("run", str(tree), "-e", "1"), "'1' is not NAME=VALUE"),
        (("run", str(tree), "--secret", "A=value"), "can be seen by others"),
        (("run", str(tree), "--max-agents", "0"), "--max-agents"),
    ]
    for words, sentence in cases:
        wiring = DoubleWiring()
        refused = corral(*words, wiring=wiring)
        assert (refused.exit_code, refused.stdout) == (ExitCode.USAGE, ""), (words, refused.output)
        assert sentence in refused.stderr, (words, refused.stderr)
        assert wiring.asked == []


def make_tree_with_two(place: Path) -> Path:
    place.mkdir()
    return make_tree(place, WORKFLOW + 'other = Workflow("other")\nother.job("a", steps=[sh("true")])\n')


def test_submit_needs_a_server_and_prints_the_run(tree: Path) -> None:
    nowhere = corral("submit", str(tree), wiring=DoubleWiring())
    assert nowhere.exit_code == ExitCode.USAGE
    assert "--url" in nowhere.stderr
    wiring = DoubleWiring(live=True)
    done = corral("submit", str(tree), wiring=wiring)
    assert (done.exit_code, done.stdout.strip()) == (0, next(iter(wiring.api.runs_by_id)))
    again = corral("submit", str(tree), "--url", "http://there", "--json", wiring=wiring)
    assert json.loads(again.stdout)["state"] == "queued"
    assert len(wiring.api.sources) == 1


def test_rerun_runs_here_unless_a_server_holds_the_runs(tree: Path, tmp_path: Path) -> None:
    wiring = DoubleWiring(play=ends("succeeded"))
    corral("run", str(tree), wiring=wiring)
    (first,) = wiring.api.runs_by_id
    here = corral("rerun", "latest", "--json", wiring=wiring)
    assert (here.exit_code, json.loads(here.stdout)["original"]) == (0, first)
    wiring.live = True
    there = corral("rerun", first, wiring=wiring)
    assert there.exit_code == 0
    assert wiring.api.runs_by_id[there.stdout.strip()].original == first


def test_values_of_variables_and_secrets() -> None:
    assert variables(["A=1", "A=2"]) == {"A": "2"}
    with pytest.raises(Invalid) as refused:
        variables(["A", "=x", "a b=c"])
    assert len(refused.value.faults) == 3
    with pytest.raises(Invalid, match="1 fault"):
        secrets(["A=-", "B=-"])
    with pytest.raises(Invalid) as missing:
        secrets(["NO_SUCH_VARIABLE", "B=@/no/such/file", "C=topsecret", "1"])
    assert len(missing.value.faults) == 4
    assert "topsecret" not in str(missing.value)


def job(name: str, state: str, **more: Any) -> JobView:
    return JobView(id=f"job_{name}", run_id="run_x", name=name, state=state, **more)


def run_of(*jobs: JobView) -> RunView:
    return RunView(id="run_x", project="local", workflow="ci", title="", state="running", created_at="", jobs=jobs)


def test_plain_progress_says_each_change_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(SystemClock())
    views = [
        run_of(job("a", "queued", waiting_for="pool local has its 2 agents"), job("b", "waiting")),
        run_of(job("a", "offered"), job("b", "waiting")),
        run_of(job("a", "running", last_line="x"), job("b", "waiting")),
        run_of(job("a", "running", last_line="y"), job("b", "waiting")),
        run_of(job("a", "failed", total=1.5, finished_at="t", detail="exit code 3"), job("b", "skipped")),
    ]
    for view in views:
        lines.show(view)
    said = [line.split("s  ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert said == [
        "a  queued: pool local has its 2 agents",
        "a  running",
        "a  failed after 1.5s: exit code 3",
        "b  skipped",
    ]


def test_a_screen_too_small_shows_what_goes_on() -> None:
    run = run_of(*(job(f"done{n}", "succeeded") for n in range(50)), job("now", "running"), job("next", "queued"))
    shown, hidden = _visible(run, 4)
    assert {"now", "next"} <= {each.name for each in shown}
    assert (len(shown), hidden) == (4, 48)


def test_the_loop_of_the_double_is_left_clean() -> None:
    async def run() -> None:
        async with DoubleWiring().open_client(None, None, None) as client:
            assert (await client.runs()).items == ()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
