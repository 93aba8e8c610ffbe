# SPDX-License-Identifier: Apache-2.0
"""``corral provisioner verify`` as it is called; what the adversary finds is tested in tests/provisioners."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.test_process import corral, ending, in_terminal, start
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
RECEIPT_ONLY = """\
#!/bin/sh
case $CORRAL_EVENT_TYPE in
*inventory*) echo '{"unsupported": true}' ;;
*) exit 1 ;;
esac
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


def script(place: Path, text: str) -> str:
    path = place / "provision"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_failure_is_a_row_with_a_remedy_and_exit_code_1(place: Path) -> None:
    command = script(place, RECEIPT_ONLY)
    out, _ = corral(place, "provisioner", "verify", "--", command, code=1)
    lines = {line[8:30].strip(): line for line in out.splitlines()}
    assert lines["receipt"].startswith("passed  receipt               it lists nothing")
    assert lines["list lag"].startswith("skipped ")
    assert lines["stale epoch"].startswith("failed  stale epoch           a plain scale-up: refused (exit 1)")
    assert "remedy: keep the highest epoch per cluster id" in out
    assert "left behind: agent_" in out
    assert "\x1b" not in out
    told = json.loads(corral(place, "provisioner", "verify", "--json", "--", command, code=1)[0])
    assert (told["reached"], len(told["rows"])) == (True, 16)


def test_it_is_a_table_on_a_terminal(place: Path) -> None:
    code, out = in_terminal(place, "provisioner", "verify", "--", script(place, RECEIPT_ONLY), size=(60, 120))
    assert code == 1
    text = out.decode()
    assert "what happened" in text
    assert "\x1b[31mfailed" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--", "/absent/program"), "there is no program /absent/program"),
        (("--secret", "$S", "http://127.0.0.1:9/"), "no connection"),
        (("--secret", "absent", "http://127.0.0.1:9/"), "cannot read the secret's file"),
    ],
)
def test_what_cannot_be_asked_is_exit_code_2(place: Path, words: tuple[str, ...], says: str) -> None:
    if "$S" in words:
        secret = place / "secret"
        secret.write_text("whsec_" + "QUJD" * 10)
        secret.chmod(0o600)
        words = tuple(str(secret) if word == "$S" else word for word in words)
    out, _ = corral(place, "provisioner", "verify", *words, code=2)
    assert says in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "name a URL with --secret"),
        (("https://x.example",), "a webhook needs --secret FILE"),
        (("--pool", "local"), "--pool needs --config FILE"),
        (("--pool", "local", "--config", "corral.yaml", "--", "true"), "not both"),
        (("--pool", "local", "--config", "corral.yaml"), "only an event pool has a provisioner"),
        (("--pool", "cloud", "--config", "corral.yaml"), "has no pool 'cloud'; there is local"),
    ],
)
def test_wrong_words(place: Path, words: tuple[str, ...], says: str) -> None:
    text = "version: 1\npools:\n  - {name: local, backend: process, labels: [a], max_agents: 1}\n"
    (place / "corral.yaml").write_text(text)
    _, err = corral(place, "provisioner", "verify", *words, code=2)
    assert says in " ".join(err.replace("│", " ").split())


def test_everything_is_given_back_also_after_an_interrupt(place: Path) -> None:
    """The instances of the rows that were done when Ctrl-C came."""
    cloud = place / "cloud"
    words = ["provisioner", "verify", "--env", "PYTHONPATH", "--directory", str(ROOT), "--"]
    with ending(start(place, *words, sys.executable, "-m", "tests.provisioner.cloud", str(cloud))) as process:
        eventually(lambda: (cloud / "instances").is_dir() and len(list((cloud / "instances").iterdir())) >= 2)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert list((cloud / "instances").iterdir()) == []
