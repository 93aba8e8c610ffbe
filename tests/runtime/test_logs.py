# SPDX-License-Identifier: Apache-2.0
"""T2, T3, T5, T6: what is logged is one line with its ids, and nothing in it opens anything."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.runtime.logs import ConsoleLines, JsonLines, LogFormat, about, bind, configure

CANARIES = {
    "claim": "claim_" + "0a" * 32,
    "token": "corral_" + "1b" * 32,
    "key": "corral_agent_" + "2c" * 32,
    "static": "key_" + "3d" * 32,
    "webhook": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "bearer": "Bearer canarycanarycanary",
}
BODIES = {name: value.removeprefix("Bearer ")[8:] for name, value in CANARIES.items()}


def record(message: str, *args: object, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("corral.x", logging.WARNING, "x.py", 1, message, args, None)
    made.__dict__.update(more)
    return made


def shown(formatter: logging.Formatter, one: logging.LogRecord) -> str:
    return formatter.format(one)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The process's own logging, as it was afterwards."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.mark.parametrize("formatter", [ConsoleLines(), JsonLines()])
@pytest.mark.parametrize("name", CANARIES)
def test_no_credential_leaves_in_a_message_an_argument_a_field_or_a_traceback(
    formatter: logging.Formatter, name: str
) -> None:
    """T2: a dumped header. T5: a dumped environment. T6: a token that somebody logs whole."""
    canary, body = CANARIES[name], BODIES[name]
    one = record(f"sent {canary} and %s", {"env": {"X": canary}})
    try:
        try:
            raise KeyError(canary)
        except KeyError as error:
            raise ValueError(f"cannot use {canary}") from error
    except ValueError as error:
        one.exc_info = (type(error), error, error.__traceback__)
    with about(pool=f"x {canary}"):
        text = shown(formatter, one)
    assert body not in text
    assert text.count("[redacted]") >= 4


def test_a_json_line_has_time_level_logger_message_and_the_ids_among_its_arguments() -> None:
    one = record("job %s of %s on %s took %d s", "job_abc", "run_abc", "agent_abc", 5)
    found = json.loads(shown(JsonLines(), one))
    assert datetime.fromisoformat(found.pop("ts")).tzinfo is not None
    assert found == {
        "level": "warning",
        "logger": "corral.x",
        "message": "job job_abc of run_abc on agent_abc took 5 s",
        "run": "run_abc",
        "job": "job_abc",
        "agent": "agent_abc",
    }


def test_an_exception_is_a_structure_of_its_own() -> None:
    one = record("a pass failed")
    try:
        raise ValueError("no\nroom")
    except ValueError as error:
        one.exc_info = (type(error), error, error.__traceback__)
    line = shown(JsonLines(), one)
    assert "\n" not in line
    found = json.loads(line)["exception"]
    assert (found["type"], found["message"]) == ("ValueError", "no\nroom")
    assert "test_logs.py" in found["traceback"]


def test_a_task_inherits_what_its_maker_is_bound_to_and_keeps_its_own_to_itself() -> None:
    seen: list[dict[str, str]] = []

    async def work(agent: str) -> None:
        bind(agent=agent)
        await asyncio.sleep(0)
        seen.append(json.loads(shown(JsonLines(), record("x"))))

    async def whole() -> None:
        bind(coordinator="coord_1")
        await asyncio.gather(asyncio.create_task(work("agent_1")), asyncio.create_task(work("agent_2")))
        seen.append(json.loads(shown(JsonLines(), record("x"))))

    asyncio.run(whole())
    assert [each.get("agent") for each in seen] == ["agent_1", "agent_2", None]
    assert {each["coordinator"] for each in seen} == {"coord_1"}


@given(st.text())
def test_a_line_is_one_line_whatever_it_says(text: str) -> None:
    """Log injection: a stranger's line break makes no line of its own, and no terminal is moved."""
    for formatter in (ConsoleLines(), JsonLines()):
        line = shown(formatter, record("%s", text))
        assert len(line.splitlines()) == 1
        assert "\x1b" not in line
    assert json.loads(shown(JsonLines(), record("%s", "plain")))["message"] == "plain"


def test_on_a_console_a_forged_line_is_seen_for_what_it_is() -> None:
    line = shown(ConsoleLines(), record("%s", "x\n2025-01-01T00:00:00.000Z INFO corral: all is well\x1b[2J"))
    assert "x\\n2025-01-01" in line
    assert "\\x1b[2J" in line


def test_a_call_with_the_wrong_arguments_still_says_something() -> None:
    assert "took %d s" in json.loads(shown(JsonLines(), record("took %d s", "long")))["message"]


@pytest.mark.parametrize("format", LogFormat)
def test_the_process_logs_in_the_chosen_format_once(format: LogFormat, root: logging.Logger) -> None:
    first, second = io.StringIO(), io.StringIO()
    configure(format, verbose=False, stream=first)
    configure(format, verbose=True, stream=second)
    logging.getLogger("corral.test").info("hello %s", "run_1")
    assert first.getvalue() == ""
    (line,) = second.getvalue().splitlines()
    assert line.startswith("{") is (format is LogFormat.JSON)
    assert "run_1" in line
    assert len(root.handlers) == 1
