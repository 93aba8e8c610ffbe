# SPDX-License-Identifier: Apache-2.0
"""``corral logs``: checked, searched, from the end, into files."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.cli.exits import ExitCode
from corral.cli.logreading import Plain
from corral.model.views import RunView
from tests.cli.double import DoubleWiring, corral
from tests.web.fake_api import new_run

TEXT = b"one\n\x1b[31mtwo\x1b[0m\nthree\n"


def printed(
    data: bytes = TEXT,
    *,
    digest: str | None = None,
    size: int | None = None,
    missing: int = 0,
    lost: bool = False,
) -> DoubleWiring:
    """One run of one job whose only step printed ``data``, and what its agent reported of it."""
    wiring = DoubleWiring()
    view: RunView = asyncio.run(wiring.api.create_run(new_run("build")))
    job_id = view.jobs[0].id

    async def run() -> None:
        wiring.api.changed = asyncio.Condition()
        await wiring.api.print(job_id, 0, data, final=True)

    asyncio.run(run())
    job = wiring.api.job_by_id[job_id]
    step = msgspec.structs.replace(
        job.steps[0],
        state="lost" if lost else "succeeded",
        log_size=None if lost else len(data) if size is None else size,
        log_stored=len(data),
        log_digest=hashlib.sha256(data).hexdigest() if digest is None else digest,
        log_missing=missing,
    )
    wiring.api.job_by_id[job_id] = msgspec.structs.replace(job, steps=(step,))
    return wiring


def test_a_log_that_is_as_it_was_printed_verifies() -> None:
    shown = corral("logs", "--verify", wiring=printed())
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "1 logs are as they were printed" in shown.stderr


@pytest.mark.parametrize(
    ("wiring", "said"),
    [
        (printed(digest="0" * 64), "SHA-256"),
        (printed(size=5), "5 were reported"),
        (printed(digest="", missing=7), "7 bytes are missing"),
        (printed(lost=True), "how many bytes are missing is not known"),
    ],
)
def test_what_differs_is_named_and_the_exit_code_says_so(wiring: DoubleWiring, said: str) -> None:
    shown = corral("logs", "--verify", wiring=wiring)
    assert shown.exit_code == ExitCode.RUN_FAILED
    assert shown.stdout.startswith("build, step 0: say: ")
    assert said in shown.stdout
    assert said in json.loads(corral("logs", "--verify", "--json", wiring=wiring).stdout)["fault"]


def test_the_log_of_a_lost_agent_says_that_what_is_missing_is_not_known(tmp_path: Path) -> None:
    """R3, G7: nothing is passed over in silence, however the log is read."""
    wiring = printed(lost=True)
    sentence = "log incomplete: its agent never reported its end; how many bytes are missing is not known"
    shown = corral("logs", wiring=wiring)
    assert (shown.exit_code, shown.stdout_bytes) == (0, TEXT)
    assert sentence in shown.stderr
    assert sentence in corral("logs", "-o", str(tmp_path / "all"), wiring=wiring).stderr
    assert corral("runs", "show", "latest", wiring=wiring).stdout.rstrip().endswith(sentence)


def test_bytes_that_were_stored_and_cannot_be_read_are_damage_also_where_others_are_missing() -> None:
    shown = corral("logs", wiring=printed(size=len(TEXT) + 5, missing=7))
    assert shown.exit_code == ExitCode.RUN_FAILED
    assert f"log damaged: {len(TEXT)} bytes" in shown.stderr


def test_lines_that_match_are_shown_with_their_place_and_without_colours() -> None:
    shown = corral("logs", "--search", "^t.o$", wiring=printed())
    assert (shown.exit_code, shown.stdout) == (0, "build:0:2: two\n")
    assert json.loads(corral("logs", "--search", "thr", "--json", wiring=printed()).stdout)["line"] == 3
    assert corral("logs", "--search", "four", wiring=printed()).exit_code == ExitCode.RUN_FAILED
    assert corral("logs", "--search", "(", wiring=printed()).exit_code == ExitCode.USAGE


def test_a_line_without_end_is_searched_in_pieces() -> None:
    shown = corral("logs", "--search", "needle", wiring=printed(b"a\n" + b"x" * 300_000 + b"needle" + b"y" * 300_000))
    assert shown.exit_code == 0
    assert shown.stdout.startswith("build:0:2: ")
    assert len(shown.stdout) < 80_000


@pytest.mark.parametrize(("count", "expected"), [(1, b"three\n"), (2, TEXT[4:]), (3, TEXT), (9, TEXT)])
def test_only_the_last_lines(count: int, expected: bytes) -> None:
    assert corral("logs", "--tail", str(count), wiring=printed()).stdout_bytes == expected


def test_the_last_lines_of_a_log_larger_than_one_look() -> None:
    data = b"".join(b"line %06d\n" % n for n in range(50_000))
    shown = corral("logs", "--tail", "20000", wiring=printed(data))
    assert shown.stdout_bytes == data[-20_000 * 12 :]


def test_colours_are_kept_unless_they_are_unwanted() -> None:
    assert corral("logs", wiring=printed()).stdout_bytes == TEXT
    assert corral("logs", "--no-colour", wiring=printed()).stdout_bytes == b"one\ntwo\nthree\n"


@given(st.lists(st.integers(1, 5), max_size=30))
def test_escapes_are_taken_out_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    text = b"a\x1b[1;31mb\x1b]0;title\x07c\x1b[0m\x1b(d\n\x1bMe"
    plain = Plain()
    out, at = b"", 0
    for cut in cuts:
        out += plain.feed(text[at : at + cut])
        at += cut
    assert out + plain.feed(text[at:]) + plain.end() == b"abc\ne"


def test_one_step_is_written_to_a_file_and_a_run_below_a_directory(tmp_path: Path) -> None:
    one = tmp_path / "deep" / "one.log"
    assert corral("logs", "--step", "0", "-o", str(one), wiring=printed()).exit_code == 0
    assert one.read_bytes() == TEXT
    assert corral("logs", "-o", str(tmp_path / "all"), wiring=printed()).exit_code == 0
    assert (tmp_path / "all" / "build" / "00-say.log").read_bytes() == TEXT
    assert sorted(each.name for each in (tmp_path / "all").rglob("*")) == ["00-say.log", "build"]
    (tmp_path / "file").write_text("")
    bad = corral("logs", "-o", str(tmp_path / "file"), wiring=printed())
    assert bad.exit_code == ExitCode.USAGE
    assert "cannot write" in bad.stderr


def test_options_that_exclude_each_other_are_refused() -> None:
    for words in (["--verify", "--follow"], ["--search", "x", "--verify"], ["--tail", "1", "-o", "x"]):
        assert corral("logs", *words, wiring=printed()).exit_code == ExitCode.USAGE


def test_a_run_is_shown_with_its_steps() -> None:
    wiring = printed(missing=7)
    shown = corral("runs", "show", "latest", wiring=wiring)
    assert shown.exit_code == 0
    head, line = shown.stdout.splitlines()[-2:]
    assert head.split() == ["JOB", "STEP", "STATE", "EXIT", "TOOK", "LOG"]
    assert line.split()[:4] == ["build", "0", "say", "succeeded"]
    assert "23 B" in line
    assert line.endswith("log incomplete: 7 bytes are missing")
    view = json.loads(corral("runs", "show", "latest", "--json", wiring=wiring).stdout)
    assert view["jobs"][0]["steps"][0]["log_missing"] == 7
    assert "STEP" not in corral("runs", "latest", wiring=wiring).stdout
    assert corral("runs", "a", "b", wiring=wiring).exit_code == ExitCode.USAGE
