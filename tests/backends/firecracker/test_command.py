# SPDX-License-Identifier: Apache-2.0
"""``corral firecracker api``: standard output is the answer and nothing else."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from corral.cli.commands.firecracker import app
from tests.backends.firecracker import contract

SECRET = "hunter2-hunter2"


class Served:
    """The contract server on a thread of its own, for a command that brings its own event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.contract = contract.Contract()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    def _run(self) -> None:
        async def serve() -> None:
            async with contract.contract_server(self.path) as self.contract:
                self._ready.set()
                await self._stop.wait()

        self._loop.run_until_complete(serve())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    contract.description()
    with Served(tmp_path / "fc.sock") as server:
        yield server


def invoke(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["api", *arguments], input=stdin)


def test_without_more_it_asks_what_lives_there(served: Served) -> None:
    done = invoke(str(served.path))
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout)["app_name"] == "a app_name"


def test_json_is_one_line_and_null_where_there_is_no_body(served: Served) -> None:
    done = invoke(str(served.path), "get", "/version", "--json")
    assert done.stdout == '{"firecracker_version":"a firecracker_version"}\n'
    put = invoke(str(served.path), "PATCH", "/vm", "--data", '{"state":"Paused"}', "--json")
    assert (put.exit_code, put.stdout) == (0, "null\n")
    assert invoke(str(served.path), "PATCH", "/vm", "-d", '{"state":"Paused"}').stdout == ""


def test_a_body_comes_from_a_file_or_standard_input_too(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "body.json"
    file.write_text(json.dumps({"token": SECRET}))
    assert invoke(str(served.path), "PUT", "/mmds", "-d", f"@{file}").exit_code == 0
    assert served.contract.store == {"token": SECRET}
    assert invoke(str(served.path), "PUT", "/mmds", "-d", "-", stdin='{"a":1}').exit_code == 0
    assert served.contract.store == {"a": 1}


def test_a_refusal_is_told_on_standard_error(served: Served) -> None:
    done = invoke(str(served.path), "PUT", "/vm", "-d", "{}")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "PUT /vm was answered with 400: Invalid request" in done.stderr


def test_a_socket_that_is_not_there_is_told_apart(tmp_path: Path) -> None:
    done = invoke(str(tmp_path / "none.sock"))
    assert (done.exit_code, done.stdout) == (3, "")
    assert "there is no socket at" in done.stderr


def test_a_server_that_says_nothing_costs_the_deadline(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "fc.sock"))
        listener.listen()
        done = invoke(str(tmp_path / "fc.sock"), "--deadline", "0.1")
    assert done.exit_code == 3 and "within 0.1 s" in done.stderr


@pytest.mark.parametrize("data", ["{" + SECRET, "@/nonexistent/body"])
def test_a_body_that_is_none_is_not_sent_and_not_shown(tmp_path: Path, data: str) -> None:
    done = invoke(str(tmp_path / "fc.sock"), "PUT", "/mmds", "-d", data)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and SECRET not in done.stderr


def test_a_body_nested_without_end_is_refused(tmp_path: Path) -> None:
    """In a process of its own: CPython 3.11 counts recursion wrongly after such a parse."""
    program = "from corral.cli.commands.firecracker import app; app()"
    command = [sys.executable, "-c", program, "api", str(tmp_path / "fc.sock"), "PUT", "/mmds", "-d", "-"]
    done = subprocess.run(command, input="[" * 100_000, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: the body is nested too deeply\n")


def test_a_method_that_the_api_does_not_know_is_a_usage_error(tmp_path: Path) -> None:
    done = invoke(str(tmp_path / "fc.sock"), "DELETE")
    assert done.exit_code == 2 and "GET, PUT and PATCH" in done.stderr


def test_a_path_that_is_too_long_offers_the_way_round(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    done = invoke(str(long))
    assert done.exit_code == 2 and "--long-path" in done.stderr
    assert "there is no socket at" in invoke(str(long), "--long-path").stderr
